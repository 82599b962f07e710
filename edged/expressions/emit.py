"""The statements that evaluate a typed tree, one assignment a node.

The generated text contains numbers, fixed names and positions only; never names of columns, string
literals or messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edged.data.schema import TIMESTAMP
from edged.expressions import ops
from edged.expressions.literals import US_PER_MONTH
from edged.expressions.made import ZERO
from edged.expressions.tree import Call, Case, ColumnRef, Const, Node, Try
from edged.expressions.types import SqlType
from kernels.cpu.columns import COLUMN

FAULTS_MAX = 250
"""Distinct faults of one kernel; further faults share the last number."""
INDENT_MAX = 90
"""CPython allows 100 levels of indentation."""


class TooDeep(Exception):
    """The code would be indented deeper than Python allows."""


@dataclass(frozen=True, slots=True)
class NodeValue:
    """Location of a node's value: its variable, its null flag ("False": never), a text's size."""

    name: str
    null: str = "False"
    size: str = ""


class Emitter:
    """Writes the body of the loop over rows `i`."""

    def __init__(self, indent: int) -> None:
        self.lines: list[str] = []
        self.literals: list[bytes] = []
        self.faults: list[str] = []
        self._indent = indent
        self._count = 0
        self._scopes: list[dict[Node, NodeValue]] = [{}]
        self._columns: dict[str, str] = {}
        self._err = "err"

    def line(self, text: str) -> None:
        """Write one statement."""
        if self._indent > INDENT_MAX:
            raise TooDeep
        self.lines.append("    " * self._indent + text)

    def setup(self) -> list[str]:
        """The statements before the loop: addresses of columns and literals."""
        columns = [f"    {name} = {source}" for name, source in self._columns.items()]
        texts = [
            f"    text{k} = literals[{k}, 0]\n    chars{k} = literals[{k}, 1]"
            for k in range(len(self.literals))
        ]
        return columns + texts

    def let(self, expression: str, prefix: str = "v") -> str:
        """A new variable with the value of `expression`."""
        self._count += 1
        name = f"{prefix}{self._count}"
        self.line(f"{name} = {expression}")
        return name

    def emit(self, node: Node) -> NodeValue:
        """Evaluate `node`, unless an enclosing scope has already."""
        for scope in reversed(self._scopes):
            if node in scope:
                return scope[node]
        value = self._emit(node)
        self._scopes[-1][node] = value
        return value

    def _emit(self, node: Node) -> NodeValue:
        if isinstance(node, Const):
            return self._const(node)
        if isinstance(node, ColumnRef):
            return self._column(node)
        if isinstance(node, Case):
            return self._case(node)
        if isinstance(node, Try):
            return self._try(node)
        assert isinstance(node, Call)
        special = _SPECIAL.get(node.op)
        return special(self, node) if special is not None else self._strict(node)

    def _const(self, node: Const) -> NodeValue:
        if node.value is None:
            return self._null(node.type)
        if isinstance(node.value, bytes):
            if node.value not in self.literals:
                self.literals.append(node.value)
            k = self.literals.index(node.value)
            return NodeValue(f"text{k}", "False", f"chars{k}")
        return NodeValue(constant(node))

    def _null(self, type: SqlType) -> NodeValue:
        return NodeValue(ZERO[type.carry], "True", "0" if type.variable else "")

    def _address(self, index: int, part: int) -> str:
        name = f"column{index}_{part}"
        self._columns[name] = f"columns[{index}, {part}]"
        return name

    def _column(self, node: ColumnRef) -> NodeValue:
        values = self._address(node.index, COLUMN.values)
        null, size = "False", ""
        if node.nullable:
            valid = self._address(node.index, COLUMN.valid)
            null = self.let(f"load_uint8({valid}, i) == 0", "n")
        if node.type.variable:
            offsets = self._address(node.index, COLUMN.offsets)
            start = self.let(f"load_int64({offsets}, i)")
            size = self.let(f"load_int64({offsets}, i + 1) - {start}", "z")
            return NodeValue(self.let(f"{values} + {start}"), null, size)
        if node.type.kind == "bool":
            return NodeValue(self.let(f"load_uint8({values}, i) != 0"), null)
        assert node.type.dtype is not None
        kind = "int64" if node.type.dtype is TIMESTAMP else node.type.dtype.name
        return NodeValue(self.let(f"load_{kind}({values}, i)"), null)

    def either(self, nulls: list[str]) -> str:
        """The flag that is set where any of `nulls` is."""
        names = list(dict.fromkeys(n for n in nulls if n != "False"))
        if "True" in names:
            return "True"
        if len(names) <= 1:
            return names[0] if names else "False"
        return self.let(" | ".join(names), "n")

    def _strict(self, node: Call) -> NodeValue:
        """An operation that is NULL where an operand is."""
        args = [self.emit(a) for a in node.args]
        null = self.either([a.null for a in args])
        if null == "True":
            return self._null(node.type)
        made = ops.render(node, [(a.name, a.size) for a in args])
        size = ""
        if made.text:
            pair = self.let(made.value, "p")
            name, size, bad = self.let(f"{pair}[0]"), self.let(f"{pair}[1]", "z"), made.bad
        elif made.pair:
            pair = self.let(made.value, "p")
            name, bad = self.let(f"{pair}[0]"), f"{pair}[1]"
        else:
            name = self.let(made.value)
            bad = made.bad.replace("$", name)
        if bad and node.type.kind in ("timestamp", "instant"):
            bad = f"({bad}) | time.out_of_range({name})"
        if bad and node.op.startswith("try_"):
            return NodeValue(name, self.let(bad if null == "False" else f"{null} | ({bad})", "n"))
        if bad and node.fault is not None:
            self._fault(bad if null == "False" else f"({bad}) & (not {null})", node.fault)
        return NodeValue(name, null, size)

    def _fault(self, bad: str, message: str) -> None:
        if message not in self.faults and len(self.faults) < FAULTS_MAX:
            self.faults.append(message)
        number = self.faults.index(message) + 1 if message in self.faults else FAULTS_MAX
        self.line(f"{self._err} = {number} if {bad} else {self._err}")

    def _open(self, condition: str) -> None:
        self.line(f"if {condition}:")
        self._indent += 1
        self._scopes.append({})

    def _close(self) -> None:
        self._indent -= 1
        self._scopes.pop()

    def _case(self, node: Case) -> NodeValue:
        zero = self._null(node.type)
        name, null = self.let(zero.name), self.let("True", "n")
        size = self.let("0", "z") if node.type.variable else ""
        done = ""
        for condition, value in node.arms:
            if done:
                self._open(f"not {done}")
            truth = self.truth(condition)
            fresh = not done
            if fresh:
                done = self.let(truth, "d")
            else:
                self.line(f"{done} = {truth}")
            self._open(done)
            self._choose(value, name, null, size)
            self._close()
            if not fresh:
                self._close()
        self._open(f"not {done}")
        self._choose(node.default, name, null, size)
        self._close()
        return NodeValue(name, null if node.nullable else "False", size)

    def _choose(self, node: Node, name: str, null: str, size: str) -> None:
        value = self.emit(node)
        self.line(f"{name} = {value.name}")
        self.line(f"{null} = {value.null}")
        if size:
            self.line(f"{size} = {value.size}")

    def truth(self, condition: Node) -> str:
        """An expression that is true where the condition is TRUE, not NULL.

        A conjunction is TRUE where all its parts are, a disjunction where one is; NULL and FALSE
        need no distinction.
        """
        if isinstance(condition, Call) and condition.op in ("and", "or"):
            name = self.let(self.truth(condition.args[0]))
            for part in condition.args[1:]:
                self.line(
                    f"{name} = {name} {'&' if condition.op == 'and' else '|'} {self.truth(part)}"
                )
            return name
        return self._truth(self.emit(condition))

    def _try(self, node: Try) -> NodeValue:
        outer = self._err
        self._err = self.let("0", "err")
        self._scopes.append({})
        value = self.emit(node.arg)
        self._scopes.pop()
        null = self.let(f"({self._err} != 0) | {value.null}", "n")
        self._err = outer
        return NodeValue(value.name, null, value.size)

    def _kleene(self, node: Call) -> NodeValue:
        """AND and OR: certain as soon as one operand decides."""
        conjunction = node.op == "and"
        sign = "&" if conjunction else "|"
        values = [self.emit(a) for a in node.args]
        truth = self.let(self._truth(values[0]))
        for value in values[1:]:
            self.line(f"{truth} = {truth} {sign} {self._truth(value)}")
        if all(v.null == "False" for v in values):
            return NodeValue(truth)
        other = "|" if conjunction else "&"
        falsity = self.let(self._falsity(values[0]))
        for value in values[1:]:
            self.line(f"{falsity} = {falsity} {other} {self._falsity(value)}")
        return NodeValue(truth, self.let(f"not ({truth} | {falsity})", "n"))

    @staticmethod
    def _truth(value: NodeValue) -> str:
        return value.name if value.null == "False" else f"({value.name} & (not {value.null}))"

    @staticmethod
    def _falsity(value: NodeValue) -> str:
        if value.null == "False":
            return f"(not {value.name})"
        return f"(not ({value.name} | {value.null}))"

    def _staged(self, node: Call) -> NodeValue:
        """A derived column, with its errors and those of its operands (`stages.Slots.derive`)."""
        for operand in node.args[1 + int(node.extra[0]) :]:
            self.emit(operand)
        value = self.emit(node.args[0])
        if node.fault is not None:
            self._fault(self.emit(node.args[1]).name, node.fault)
        return value

    def _is_null(self, node: Call) -> NodeValue:
        return NodeValue(self.let(self.emit(node.args[0]).null))

    def _is_true(self, node: Call) -> NodeValue:
        return NodeValue(self.let(self._truth(self.emit(node.args[0]))))

    def _is_false(self, node: Call) -> NodeValue:
        return NodeValue(self.let(self._falsity(self.emit(node.args[0]))))

    def _distinct(self, node: Call) -> NodeValue:
        a, b = (self.emit(x) for x in node.args)
        kinds = (node.args[0].type, node.args[1].type)
        differ = ops.comparison("ne", kinds, [(a.name, a.size), (b.name, b.size)])
        if a.null == b.null == "False":
            return NodeValue(self.let(differ))
        return NodeValue(
            self.let(f"({a.null} != {b.null}) | ((not {a.null}) & (not {b.null}) & ({differ}))")
        )

    def _extreme(self, node: Call) -> NodeValue:
        """greatest and least; NULLs are ignored."""
        op = "gt" if node.op == "greatest" else "lt"
        values = [self.emit(a) for a in node.args]
        first = values[0]
        name, null = self.let(first.name), self.let(first.null, "n")
        size = self.let(first.size, "z") if first.size else ""
        for value in values[1:]:
            kinds = (node.type, node.type)
            better = ops.comparison(op, kinds, [(value.name, value.size), (name, size)])
            take = self.let(f"(not {value.null}) & ({null} | ({better}))", "d")
            self.line(f"{name} = {value.name} if {take} else {name}")
            self.line(f"{null} = {null} & {value.null}")
            if size:
                self.line(f"{size} = {value.size} if {take} else {size}")
        return NodeValue(name, null if node.nullable else "False", size)


def constant(node: Const) -> str:
    """A non-text constant as Python."""
    if isinstance(node.value, bool):
        return "True" if node.value else "False"
    if isinstance(node.value, int):
        value = node.value + node.months * US_PER_MONTH
        return f"uint64({value:d})" if node.type.carry == "uint64" else f"({value:d})"
    number = float(str(node.value))
    text = repr(number) if math.isfinite(number) else ("NAN" if number != number else "INF")
    return f"{node.type.carry}({'-' if number == -math.inf else ''}{text})"


_SPECIAL = {
    "staged": Emitter._staged,
    "and": Emitter._kleene,
    "or": Emitter._kleene,
    "is_null": Emitter._is_null,
    "is_true": Emitter._is_true,
    "is_false": Emitter._is_false,
    "distinct": Emitter._distinct,
    "greatest": Emitter._extreme,
    "least": Emitter._extreme,
}
