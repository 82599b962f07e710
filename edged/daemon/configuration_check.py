"""`python -m edged.daemon.configuration_check`: the child process that checks a configuration.

It reads the question `{"path": …, "flags": {…}}` as JSON from standard input and writes a pickled
`ConfigVerdict` to standard output (`edged.daemon.reload`).
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Mapping
from typing import Any

from edged.config import read
from edged.config.code_directories import set_code_directories
from edged.daemon.configuration import ConfigVerdict, job_files, plans, problems
from edged.errors import EdgedError
from edged.job.check import compile_expressions
from edged.platform.processes import NICENESS


def check(path: str | None, flags: Mapping[str, tuple[str, Any]]) -> ConfigVerdict:
    """Read the configuration, find all faults, and compile the jobs' expressions."""
    config, wrong = read(path, flags=flags)
    set_code_directories(config)
    found: list[EdgedError] = [*wrong] or problems(config)
    if found:
        return ConfigVerdict(config, [], [str(problem) for problem in found])
    files = job_files(config)
    try:
        for plan in plans(files):
            compile_expressions(plan, lambda *_: None)
    except EdgedError as problem:
        return ConfigVerdict(config, [], [str(problem)])
    return ConfigVerdict(config, files, [])


def main() -> None:
    """Answer one question."""
    question = json.load(sys.stdin)
    os.nice(NICENESS)
    verdict = check(question["path"], question["flags"])
    sys.stdout.buffer.write(pickle.dumps(verdict))


if __name__ == "__main__":
    main()
