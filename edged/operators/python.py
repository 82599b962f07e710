"""`python`: code of the user's on Arrow batches, in processes of its own.

    [operators.scored]
    type = "python"
    input = "readings"
    file = "score.py"                       # or package = "ENTRY POINT" (edged.operators.user.code)
    keys = ["machine"]
    columns = { time = "timestamp", machine = "string", score = "float64" }
    processes = 2

The code defines `class Operator` or `def on_batch` (`edged.operators.python_child.instances`).
With `keys` it has an instance for each logical partition of the keys, which the processes share;
without keys, one instance.  Output rows come in the order of the partitions, so that they do not
depend on the number of processes.  Their event times are at least the watermark before them, which
`behind` moves back; rows before it are dropped and counted.

Bounds: `timeout` of a batch, `memory` of a process; what else the kernel enforces says the status
(`edged.operators.python_child.sandbox`).  Rows on which the code fails are set aside.

Guarantees: state is in snapshots.  A replay gives the same bytes, if the code is deterministic: if
it is not, `deterministic = false` puts its outputs into the log.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from edged.data.flow import Link, State
from edged.data.schema import Schema
from edged.data.schema_document import columns, time_column
from edged.data.workers import Workers
from edged.documents import reader as doc
from edged.documents.faults import FaultCollector, each
from edged.documents.units import show_duration, show_size
from edged.errors import JobError
from edged.operators._python_operator import PythonOperator
from edged.operators._python_rows import PARTITIONS_MAX
from edged.operators._python_terms import PythonTerms
from edged.operators.base import InstanceOf, OperatorPlan, operator
from edged.operators.user import code as user_code
from edged.operators.user.code import CODE_KEYS, UserCode

PROCESSES_MAX = 64
FILE_BYTES_MAX = 1 << 30
ON_ERROR = ("set_aside", "stop")
_KEYS = (
    "keys", "partitions", "processes", "settings", "files", "columns", "time", "outputs", "behind",
    "timeout", "memory", "on_error", "deterministic", "files_sha256",
)  # fmt: skip
_SHAPE = "class Operator with on_batch(self, batch), or def on_batch(batch, context)"


@operator("python")
@dataclass(frozen=True)
class PythonPlan(OperatorPlan):
    """A checked `python` operator."""

    links: ClassVar[tuple[str, ...]] = ("input",)
    keys: ClassVar[frozenset[str]] = frozenset({*_KEYS, *CODE_KEYS})

    id: str
    input: Link
    output: Link
    named: dict[str, Link]
    """Named outputs; empty: there is one without a name."""
    code: UserCode = field(repr=False)
    has_class: bool
    stateful: bool
    by: tuple[str, ...]
    partitions: int
    processes: int
    settings: dict[str, Any]
    files: dict[str, tuple[str, str]]
    """Path and SHA-256 of each file, by name."""
    behind_us: int
    timeout_us: int
    """0: by the latency promise."""
    memory_bytes: int
    stops: bool
    deterministic: bool

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> PythonPlan:
        """Check the table, and the shape of the code."""
        (link,) = inputs
        if link.weight:
            problem = f"its rows have weights ({link.weight}), which code cannot take back"
            raise JobError(f"{path}.input", problem, "put a window before it")
        return cls.of_code(path, id, document, link, user_code.find(path, document))

    @classmethod
    def of_code(
        cls, path: str, id: str, document: Mapping[str, Any], link: Link, code: UserCode
    ) -> PythonPlan:
        """The operator of this code.  Raises JobError."""
        wrong = FaultCollector()
        shape = wrong.attempt(lambda: shape_of_code(path, code), (False, False))
        behind = wrong.attempt(lambda: doc.duration(path, document, "behind", 0), 0)
        named = wrong.attempt(lambda: _outputs(path, document, link, behind), {"": link})
        by = wrong.attempt(lambda: _by(path, document, link.schema), ())
        partitions = wrong.attempt(lambda: _partitions(path, document, by), 1)
        most = min(PROCESSES_MAX, partitions)
        bounds = {"least": 1, "most": most}
        processes = wrong.attempt(lambda: doc.integer(path, document, "processes", 1, **bounds), 1)
        timeout = wrong.attempt(lambda: doc.duration(path, document, "timeout", 0), 0)
        memory = wrong.attempt(
            lambda: doc.size(path, document, "memory", "256MiB", least=1 << 20), 0
        )
        on_error = wrong.attempt(
            lambda: doc.choice(path, document, "on_error", ON_ERROR, ON_ERROR[0]), ""
        )
        repeats = wrong.attempt(lambda: doc.boolean(path, document, "deterministic", True), True)
        settings = wrong.attempt(lambda: doc.table(path, document, "settings", {}), {})
        files = wrong.attempt(lambda: _files(path, document), {})
        wrong.settle()
        unnamed = "" in named
        return cls(
            id, link, next(iter(named.values())), {} if unnamed else named, code, shape[0],
            shape[1], by, partitions, processes, dict(settings), files, behind, timeout, memory,
            on_error == "stop", repeats,
        )  # fmt: skip

    def outputs(self) -> Mapping[str, Link]:
        """The named outputs."""
        return self.named

    def pins(self) -> Mapping[str, Any]:
        """What a stored document has beside: the digests of the code and of its files."""
        files = {name: digest for name, (_, digest) in self.files.items()}
        return {"sha256": self.code.sha256, **({"files_sha256": files} if files else {})}

    def build(self, workers: Workers) -> PythonOperator:
        """The running operator; its processes start with the first beat."""
        return PythonOperator(
            PythonTerms(
                self.id, self.input.schema, self.named or {"": self.output}, self.by,
                self.partitions, self.processes, self.behind_us, self.timeout_us, self.stateful,
                self.stops, self.deterministic, self._child_code(),
            )
        )  # fmt: skip

    def _child_code(self) -> dict[str, Any]:
        links = self.named or {"": self.output}
        return {
            "source": self.code.text,
            "filename": self.code.origin,
            "settings": self.settings,
            "files": {name: path for name, (path, _) in self.files.items()},
            "partitions": self.partitions,
            "outputs": {
                name: link.schema.to_arrow().serialize().to_pybytes().hex()
                for name, link in links.items()
            },
            "memory_bytes": self.memory_bytes,
        }

    def describe(self) -> list[str]:
        """The code, its processes and its limits."""
        what = "class Operator" if self.has_class else "on_batch"
        by = f" by {', '.join(self.by)} in {self.partitions} partitions" if self.by else ""
        state = "state by save and load" if self.stateful else "no state"
        timeout = show_duration(self.timeout_us) if self.timeout_us else "half the latency promise"
        fails = "the job stops" if self.stops else "they are set aside"
        lines = [
            f"{what} of {self.code.name} ({self.code.sha256[:12]}){by}; {state}",
            f"{self.processes} process(es), {show_size(self.memory_bytes)} each, no network",
            f"a batch within {timeout}; where the code fails on rows, {fails}",
        ]
        if not self.deterministic:
            lines.append("not deterministic: outputs and states are in the log")
        return lines

    def redistribute(
        self,
        by: Sequence[Sequence[str]],
        states: Sequence[State],
        instances: int,
        instance_of: InstanceOf,
    ) -> list[State]:
        """Instances without state begin with none.  Raises JobError for others."""
        if self.stateful:
            return super().redistribute(by, states, instances, instance_of)
        return [{} for _ in range(instances)]

    def signature(self) -> str:
        """As of any operator, with the digest of code without state, too."""
        facts = repr([self.kind, self.version, self._facts()])
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    def signature_facts(self) -> list[Any]:
        """The code and the partitions of its states; other code may replace code without state."""
        return self._facts() if self.stateful else []

    def _facts(self) -> list[Any]:
        return [
            self.code.sha256, self.input.schema.to_json(), list(self.by), self.partitions,
            sorted((name, digest) for name, (_, digest) in self.files.items()),
        ]  # fmt: skip


def takes_batches(code: UserCode) -> bool:
    """Whether the code is of this type, rather than of `kernel`, which declares its outputs."""
    with suppress(SyntaxError, ValueError):
        names = {getattr(node, "name", "") for node in ast.parse(code.text).body}
        return "Operator" in names or ("on_batch" in names and "Outputs" not in names)
    return False


def shape_of_code(path: str, code: UserCode) -> tuple[bool, bool]:
    """Whether the code defines a class, and whether that has a state.  Raises JobError."""
    try:
        tree = ast.parse(code.text, code.name)
    except SyntaxError as problem:
        line, column = problem.lineno or 1, problem.offset or 1
        raise code.fault(path, line, column, problem.msg) from None
    except ValueError as problem:
        raise code.fault(path, 1, 1, str(problem)) from None
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Operator":
            return True, _stateful(path, code, node)
    functions = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for function in functions:
        if function.name == "on_batch":
            if isinstance(function, ast.AsyncFunctionDef) or len(function.args.args) != 2:
                at = function.lineno, function.col_offset + 1
                raise code.fault(path, *at, "on_batch has other parameters", _SHAPE)
            return False, False
    raise code.fault(path, 1, 1, "defines no operator", _SHAPE)


def _stateful(path: str, code: UserCode, node: ast.ClassDef) -> bool:
    methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    if node.bases:  # what it inherits is not known here
        return True
    if "on_batch" not in methods:
        raise code.fault(path, node.lineno, node.col_offset + 1, "has no on_batch", _SHAPE)
    if ("save" in methods) != ("load" in methods):
        has = methods["save" if "save" in methods else "load"]
        lacks = "load(self, data)" if has.name == "save" else "save(self)"
        raise code.fault(path, has.lineno, has.col_offset + 1, f"{has.name} without {lacks}")
    return "save" in methods


def _outputs(path: str, document: Mapping[str, Any], link: Link, behind_us: int) -> dict[str, Link]:
    """The outputs by name; one without a name has the name ""."""
    if "outputs" not in document:
        return {"": _output(path, document, link, behind_us)}
    for key in ("columns", "time"):
        if key in document:
            raise JobError(f"{path}.{key}", "stands beside outputs", "each output has its own")
    given, at = doc.table(path, document, "outputs"), f"{path}.outputs"
    if not given:
        raise JobError(at, "is empty", "hot = { columns = { … } }")
    found, wrong = {}, FaultCollector()
    for name in given:
        if not (name.isidentifier() and name.islower()):
            wrong.note(doc.below(at, name), "is no name of an output", "lower-case letters")
            continue
        try:
            table = doc.table(at, given, name)
            doc.refuse_unknown(f"{at}.{name}", table, ("columns", "time"))
            found[name] = _output(f"{at}.{name}", table, link, behind_us)
        except JobError as fault:
            wrong.faults += each(fault)
    wrong.settle()
    return found


def _output(path: str, document: Mapping[str, Any], link: Link, behind_us: int) -> Link:
    schema = columns(path, document)
    time = time_column(path, {"time": link.time, **document}, schema)
    return Link(schema, time, link.disorder_us + behind_us)


def _by(path: str, document: Mapping[str, Any], schema: Schema) -> tuple[str, ...]:
    by = doc.names(path, document, "keys", ())
    for i, name in enumerate(by):
        if name not in schema:
            advice = doc.did_you_mean(name, schema.names)
            raise JobError(f"{path}.keys[{i}]", f"no column {name!r} in the input", advice)
    return by


def _partitions(path: str, document: Mapping[str, Any], by: Sequence[str]) -> int:
    if not by and "partitions" in document:
        raise JobError(f"{path}.partitions", "there are no keys", "name keys, or leave it out")
    count = doc.integer(
        path, document, "partitions", PARTITIONS_MAX if by else 1, least=1, most=PARTITIONS_MAX
    )
    if count & (count - 1):
        raise JobError(f"{path}.partitions", f"{count} is no power of two", "such as 8 or 64")
    return count


def _files(path: str, document: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Path and digest of each file that the code reads."""
    given, found = doc.table(path, document, "files", {}), {}
    pinned = doc.table(path, document, "files_sha256", {})
    for name in given:
        where, file = f"{path}.files.{name}", doc.text(f"{path}.files", given, name)
        data, origin = user_code.read_file(where, file, FILE_BYTES_MAX)
        digest = hashlib.sha256(data).hexdigest()
        if pinned.get(name, digest) != digest:
            problem = f"{file} has changed since the job was put"
            raise JobError(where, problem, "restore it, or put the job again")
        found[name] = (origin, digest)
    return found
