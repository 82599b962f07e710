"""`python -m edged.job.check`: a child process that checks, explains and compiles job documents.

The API delegates to it, so that neither the API nor the daemon parses untrusted documents or waits
for a compiler.  A request is one line of JSON on standard input.  The answer is lines of JSON on
standard output, the last of which has `verdict`:

    {"text": "name = …", "format": "toml", "compile": true, "explain": false}
    {"progress": {"step": "expressions", "done": 1, "of": 3}}
    {"verdict": {"faults": [{"path", "problem", "advice"}], "warnings": […], "name": …,
                 "document": {…} or null, "plan": {…} or null}}

Kernels of expressions are compiled into the daemon's cache.  The process ends with its standard
input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from edged.documents import reader as doc
from edged.errors import EdgedError, JobError, KernelError
from edged.expressions import cache
from edged.job.explain import explain
from edged.job.plan import JobPlan, faults, parse_job
from edged.job.plan_warnings import warnings
from edged.operators.base import OperatorPlan
from edged.platform.processes import NICENESS
from edged.sinks.base import SinkPlan

Progress = Callable[[str, int, int], None]


def verdict(request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """The verdict on a document; a wrong document is a verdict, not an exception."""
    try:
        document = doc.loads(
            str(request["text"]), "document", json_text=request.get("format") == "json"
        )
        progress("parse", 0, 1)
        wrong = faults(document)
    except JobError as fault:
        wrong = [fault]
    except RecursionError:
        wrong = [JobError("document", "is nested too deeply", "this is not a job document")]
    if wrong:
        return _refused(wrong)
    plan = parse_job(document)
    try:
        if request.get("compile"):
            compile_expressions(plan, progress)
    except JobError as fault:
        return _refused([fault])
    except EdgedError as problem:
        return _refused([JobError("operators", str(problem))])
    return {
        "faults": [],
        "warnings": warnings(plan),
        "name": plan.name,
        "document": plan.document,
        "plan": explain(plan) if request.get("explain") else None,
    }


def generated(plan: JobPlan) -> list[str]:
    """The sources of the kernels that a job's expressions need."""
    operators = [text for part in plan.operators.values() for text in part.generated()]
    return operators + [text for part in plan.sinks.values() for text in part.generated()]


def compile_expressions(plan: JobPlan, progress: Progress, child: bool = False) -> None:
    """Compile the kernels of all expressions into the cache, in this process or in a `child`.

    Raises JobError for one of an operator, KernelError for others.
    """
    total, done = len(generated(plan)), 0
    parts: list[OperatorPlan | SinkPlan] = [*plan.operators.values(), *plan.sinks.values()]
    for part in parts:
        for text in part.generated():
            progress("expressions", done, total)
            done += 1
            try:
                cache.kernel(text, child)
            except KernelError as problem:
                if isinstance(part, OperatorPlan):
                    raise part.fault_of(problem) from problem
                raise
    progress("expressions", total, total)


def code_faults(plan: JobPlan) -> list[JobError]:
    """What the compiler refuses in the code of users."""
    wrong = []
    for part in plan.operators.values():
        for text in part.generated() if part.checks_code else ():
            try:
                cache.kernel(text)
            except KernelError as problem:
                wrong.append(part.fault_of(problem))
    return wrong


def main(lines: TextIO, out: TextIO) -> None:
    """Answer requests until standard input ends."""

    def reply(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    def progress(step: str, done: int, of: int) -> None:
        reply({"progress": {"step": step, "done": done, "of": of}})

    for line in lines:
        reply({"verdict": verdict(json.loads(line), progress)})


def _refused(wrong: list[JobError]) -> dict[str, Any]:
    rows = [{"path": f.path, "problem": f.problem, "advice": f.advice} for f in wrong]
    return {"faults": rows, "warnings": [], "name": None, "document": None, "plan": None}


if __name__ == "__main__":
    os.nice(NICENESS)
    main(sys.stdin, sys.stdout)
