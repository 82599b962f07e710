"""What a file of user code declares: state, outputs, parameters, constants and functions.

    class State:                     # a record for each key
        known: bool = False
        last: float64 = 0.0
        recent: float64[8] = 0.0     # a small array

    class Outputs:
        class edges:                 # an output; its first timestamp is its event time
            time: timestamp
            sensor: string
            delay: float64 | None    # may be null

    class Parameters:                # the document may give others
        threshold: float64 = 1.0

    LIMIT = 3                        # a constant

The file is parsed and never executed.  State is int64, float64, bool or timestamp (int64
microseconds, UTC), and fixed arrays of int64 and float64.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from edged.data.schema import TIMESTAMP, TYPES, Field, Schema
from edged.documents import reader as doc
from edged.errors import JobError
from edged.operators.user.code import UserCode

STATE_TYPES: tuple[str, ...] = ("int64", "float64", "bool", "timestamp")
ARRAY_TYPES: tuple[str, ...] = ("int64", "float64")
PARAMETER_TYPES = ("int64", "float64", "bool", "string")
ARRAY_MAX = 4096
"""Most elements of an array of a record."""
_SECTIONS = ("State", "Outputs", "Parameters")

Value = int | float | bool | str


@dataclass(frozen=True)
class StateField:
    """A field of the state; its first word in a record is counted from the record's state."""

    name: str
    type: str
    size: int
    """Elements of an array; 0: one value."""
    default: Value
    word: int

    @property
    def words(self) -> int:
        """Words of a record that it takes."""
        return max(1, self.size)


@dataclass(frozen=True)
class OutputColumns:
    """An output."""

    name: str
    schema: Schema
    time: str


@dataclass(frozen=True)
class Parameter:
    """A parameter, with the default of the file."""

    name: str
    type: str
    value: Value | None
    """None: the document must give one."""


@dataclass
class Declarations:
    """What a file declares."""

    code: UserCode
    state: dict[str, StateField] = field(default_factory=dict)
    outputs: dict[str, OutputColumns] = field(default_factory=dict)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    constants: dict[str, Value] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    """By name in the file, `math`, `numpy` or a function of math as `math.floor`."""

    @property
    def words(self) -> int:
        """Words of the state of a record."""
        return sum(f.words for f in self.state.values())


class _CodeReader:
    def __init__(self, path: str, code: UserCode) -> None:
        self.path, self.code = path, code
        self.found = Declarations(code)

    def fault(self, node: ast.AST, what: str, do: str = "") -> JobError:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        return self.code.fault(self.path, line, column, what, do)

    def module(self, module: ast.Module) -> None:
        for node in module.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imports(node)
            elif isinstance(node, ast.ClassDef):
                self.section(node)
            elif isinstance(node, ast.FunctionDef):
                self.fresh(node, node.name)
                self.found.functions[node.name] = node
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                self.constant(node)
            elif not _is_text(node):
                raise self.fault(
                    node, "a statement of this kind does not belong at the top of the file",
                    "declare State, Outputs, Parameters, constants and functions",
                )  # fmt: skip

    def fresh(self, node: ast.AST, name: str) -> None:
        known = self.found
        if name in known.functions or name in known.constants or name in known.imports:
            raise self.fault(node, f"{name} is there already", "give it another name")
        if name.startswith("_e_"):
            raise self.fault(node, f"{name}: names with _e_ are the compiler's", "rename it")

    def imports(self, node: ast.Import | ast.ImportFrom) -> None:
        known = "import math, import numpy as np, or from math import floor"
        if isinstance(node, ast.ImportFrom):
            if node.module == "__future__":
                return
            if node.module != "math":
                raise self.fault(node, f"{node.module} cannot be imported", known)
            for one in node.names:
                self.found.imports[one.asname or one.name] = f"math.{one.name}"
            return
        for one in node.names:
            if one.name not in ("math", "numpy"):
                raise self.fault(node, f"{one.name} cannot be imported", known)
            self.found.imports[one.asname or one.name] = one.name

    def constant(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(targets) != 1 or not isinstance(targets[0], ast.Name):
            raise self.fault(node, "is no constant", "write NAME = value")
        name = targets[0].id
        self.fresh(node, name)
        if node.value is None:
            raise self.fault(node, f"{name} has no value", f"write {name} = value")
        self.found.constants[name] = self.literal(node.value, name)

    def literal(self, node: ast.expr, name: str) -> Value:
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            value = None
        if isinstance(value, (bool, int, float, str)):
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise self.fault(node, f"{name} has more than 64 bits")
            return value
        raise self.fault(node, f"the value of {name} is no number, True, False or text")

    def section(self, node: ast.ClassDef) -> None:
        if node.name not in _SECTIONS:
            advice = doc.did_you_mean(node.name, _SECTIONS, otherwise=", ".join(_SECTIONS))
            raise self.fault(node, f"class {node.name} has no meaning here", advice)
        for item in node.body:
            if _is_text(item) or isinstance(item, ast.Pass):
                continue
            if node.name == "Outputs":
                self.output(item)
            elif node.name == "State":
                self.state(item)
            else:
                self.parameter(item)

    def annotated(self, item: ast.stmt) -> tuple[str, ast.expr, ast.expr | None]:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            raise self.fault(item, "is no field", "write name: type = default")
        if item.target.id.startswith("_"):
            raise self.fault(item, f"{item.target.id} begins with _", "give it another name")
        return item.target.id, item.annotation, item.value

    def state(self, item: ast.stmt) -> None:
        name, kind, value = self.annotated(item)
        size, choices = 0, STATE_TYPES
        if isinstance(kind, ast.Subscript):
            size, choices = self.array_size(kind, name), ARRAY_TYPES
            kind = kind.value
        word = _type_name(kind)
        if word in ("string", "binary"):
            raise self.fault(
                kind, f"{name}: texts cannot be state", "make it a key, or keep a number for it"
            )
        if word not in choices:
            raise self.fault(
                kind, f"{name}: {word} cannot be state", f"one of {', '.join(choices)}"
            )
        if name in self.found.state:
            raise self.fault(item, f"{name} is there already")
        default = self.default(item, name, word, value)
        at = self.found.words
        self.found.state[name] = StateField(name, word, size, default, at)

    def array_size(self, kind: ast.Subscript, name: str) -> int:
        size = kind.slice.value if isinstance(kind.slice, ast.Constant) else None
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= ARRAY_MAX:
            problem = f"{name}: an array has a number of elements"
            raise self.fault(kind, problem, f"e.g. float64[8], at most {ARRAY_MAX}")
        return size

    def default(self, node: ast.AST, name: str, kind: str, value: ast.expr | None) -> Value:
        if value is None:
            zeros: dict[str, Value] = {"bool": False, "float64": 0.0, "string": ""}
            return zeros.get(kind, 0)
        found = self.literal(value, name)
        if not fits(kind, found):
            raise self.fault(value, f"{name}: {found!r} is no {kind}", f"give a {kind}")
        return float(found) if kind == "float64" else found

    def parameter(self, item: ast.stmt) -> None:
        name, kind, value = self.annotated(item)
        word = _type_name(kind)
        if word not in PARAMETER_TYPES:
            known = ", ".join(PARAMETER_TYPES)
            raise self.fault(kind, f"{name}: {word} cannot be a parameter", f"one of {known}")
        given = None if value is None else self.default(item, name, word, value)
        self.found.parameters[name] = Parameter(name, word, given)

    def output(self, item: ast.stmt) -> None:
        if not isinstance(item, ast.ClassDef):
            raise self.fault(item, "is no output", "write class name: with its columns below")
        if item.name in self.found.outputs or item.name.startswith("_"):
            raise self.fault(item, f"{item.name} cannot name an output", "use another name")
        fields = list(self.columns(item))
        time = next((f.name for f in fields if f.dtype is TIMESTAMP and not f.nullable), "")
        if not time:
            advice = "add time: timestamp; rows carry their event time"
            raise self.fault(item, f"{item.name} has no event time", advice)
        self.found.outputs[item.name] = OutputColumns(item.name, Schema.of(fields), time)

    def columns(self, output: ast.ClassDef) -> Iterator[Field]:
        seen = set[str]()
        for item in output.body:
            if _is_text(item):
                continue
            name, kind, value = self.annotated(item)
            if value is not None:
                raise self.fault(value, f"{name}: a column has no default")
            nullable = isinstance(kind, ast.BinOp) and _is_none(kind.right)
            if isinstance(kind, ast.BinOp):
                kind = kind.left
            word = _type_name(kind)
            if word not in TYPES:
                advice = doc.did_you_mean(word, TYPES, otherwise=", ".join(TYPES))
                raise self.fault(kind, f"{name}: {word} is no type", advice)
            if name in seen:
                raise self.fault(item, f"{name} is there already")
            seen.add(name)
            yield Field(name, TYPES[word], nullable)


def declarations(path: str, code: UserCode) -> Declarations:
    """What the text declares.  Raises JobError with line and column."""
    try:
        module = ast.parse(code.text)
    except SyntaxError as problem:
        line, column = problem.lineno or 1, problem.offset or 1
        raise code.fault(path, line, column, f"syntax error: {problem.msg}") from None
    except (ValueError, RecursionError, MemoryError) as problem:
        raise code.fault(path, 1, 1, f"is no Python: {problem}") from None
    reader = _CodeReader(path, code)
    reader.module(module)
    return reader.found


def parameter_values(
    path: str, declared: Mapping[str, Parameter], document: Mapping[str, Any]
) -> dict[str, Value]:
    """The parameters of a document over the defaults.  Raises JobError below `path.parameters`."""
    given = doc.table(path, document, "parameters", {})
    for name, one_value in given.items():
        where = f"{path}.parameters.{name}"
        if name not in declared:
            raise JobError(where, "is not declared", doc.did_you_mean(name, declared))
        if not fits(declared[name].type, one_value):
            raise JobError(where, f"{one_value!r} is no {declared[name].type}")
    found = dict[str, Value]()
    for name, one in declared.items():
        if name not in given and one.value is None:
            raise JobError(f"{path}.parameters.{name}", "is missing", f"give a {one.type}")
        value: Any = given.get(name, one.value)
        found[name] = float(value) if one.type == "float64" else value
    return found


def fits(kind: str, value: object) -> bool:
    """Whether a literal is a value of a type."""
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "string":
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind == "float64" else int)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _type_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node)
