"""From sqlglot's tree to the typed tree: names, types, implicit casts, refusals.

A class of sqlglot's that no handler here or in `functions` knows is refused, so that nothing is
ever half understood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from sqlglot import exp

from edged.errors import ExpressionError
from edged.job.expr import casts, literals, parse
from edged.job.expr import types as t
from edged.job.expr.tree import Call, Case, Column, Const, Node, Try, null_of
from edged.job.expr.types import SqlType
from edged.schema import Schema

NODES_MAX = 4_000
"""Most parts that one expression may have."""


class Binder:
    """Binds expressions of one operator against its input's schema."""

    def __init__(self, schema: Schema, path: str) -> None:
        self.schema, self.path = schema, path
        self.derived: list[Call] = []
        """Text that is computed before the kernel runs; column `len(schema) + i` is the i-th."""
        self._count = 0

    def fail(self, problem: str, advice: str = "") -> NoReturn:
        """Refuse the expression."""
        raise ExpressionError(self.path, problem, advice)

    def bind(self, node: Any) -> Node:
        """The typed form of sqlglot's `node`."""
        self._count += 1
        if self._count > NODES_MAX:
            self.fail(f"the expression has more than {NODES_MAX} parts", "split it")
        handler = HANDLERS.get(type(node))
        if handler is not None:
            return handler(self, node)
        from edged.job.expr import functions

        return functions.bind_call(self, node)

    def cast(self, node: Node, to: SqlType, what: str) -> Node:
        """`node` converted implicitly to `to`, which `meet` said is possible."""
        try:
            return casts.cast(node, to, what)
        except ValueError as problem:
            self.fail(f"{problem} in {what}")

    def unify(self, nodes: Sequence[Node], what: str) -> tuple[SqlType, list[Node]]:
        """The nodes cast to the type that they all meet in; HUGEINT leaves them as they are."""
        to = self._meet_all(nodes, what)
        if to == t.HUGEINT:
            return to, [casts.narrow(n) for n in nodes]
        return to, [self.cast(n, to, what) for n in nodes]

    def _meet_all(self, nodes: Sequence[Node], what: str) -> SqlType:
        to, literal = t.NULL, None
        texts = [n for n in nodes if is_text_literal(n)]
        for node in [n for n in nodes if not is_text_literal(n)]:
            previous, mine = to, node.type
            lit = node if is_integer_literal(node) else None
            if lit is not None and previous.integer and literal is None:
                mine = previous if fits(lit, previous) else mine
            elif literal is not None and lit is None and mine.integer:
                previous = mine if fits(literal, mine) else previous
            met = t.meet(previous, mine)
            if met is None:
                self.mixed(previous, mine, what)
            literal = lit if previous == t.NULL else (literal if node.type == t.NULL else None)
            to = met
        if texts and to == t.NULL:
            return t.VARCHAR
        return to

    def mixed(self, a: SqlType, b: SqlType, what: str) -> NoReturn:
        """Refuse two types that do not meet."""
        self.fail(f"{a} and {b} do not go together in {what}", "CAST one of them")

    def condition(self, node: Any) -> Node:
        """A node bound as a condition: BOOLEAN, or a number, which is true where it is not 0."""
        bound = self.bind(node)
        if bound.type == t.NULL:
            return null_of(t.BOOLEAN)
        if bound.type.kind != "bool" and not bound.type.numeric:
            self.fail(f"{parse.say(node)} is a {bound.type} where a condition is expected")
        return self.cast(bound, t.BOOLEAN, parse.say(node))


def is_integer_literal(node: Node) -> bool:
    """Whether the node is an integer written as such, which takes its neighbour's type."""
    return isinstance(node, Const) and node.literal and isinstance(node.value, int)


def is_text_literal(node: Node) -> bool:
    """Whether the node is a string written as such."""
    return isinstance(node, Const) and node.literal and isinstance(node.value, bytes)


def fits(literal: Node, type: SqlType) -> bool:
    """Whether an integer literal's value fits into an integer type."""
    value = literal.value if isinstance(literal, Const) else None
    return isinstance(value, int) and type.holds(value)


def call(
    type: SqlType, op: str, *args: Node, extra: tuple[int | str | bytes, ...] = (), fault: str = ""
) -> Call:
    """An operation that is NULL where one of its operands is."""
    return Call(type, any(a.nullable for a in args), op, args, extra, fault or None)


def compare(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    """A comparison with its operands cast to their common type."""
    kind, args = b.unify([left, right], what)
    if kind == t.NULL:
        return null_of(t.BOOLEAN)
    return call(t.BOOLEAN, op, *args)


def _column(b: Binder, node: Any) -> Node:
    name = node.name
    if node.args.get("table") is not None or not isinstance(node.this, exp.Identifier):
        b.fail(f"{parse.say(node)} is not a column of the input", 'write its name, or "its.name"')
    names = b.schema.names
    matches = [n for n in names if n == name] or [n for n in names if n.lower() == name.lower()]
    if len(matches) != 1:
        problem = "is ambiguous" if matches else "is not there"
        b.fail(f"column '{name}' {problem}", f"the input has {', '.join(names)}")
    field = b.schema.field(matches[0])
    return Column(t.of_dtype(field.dtype), field.nullable, b.schema.index(field.name), field.name)


def _literal(b: Binder, node: Any) -> Node:
    if node.is_string:
        return Const(t.VARCHAR, False, node.this.encode(), literal=True)
    value = literals.number(node.this)
    if value.type == t.HUGEINT and not fits(value, t.UBIGINT):
        b.fail(f"{node.this} does not fit into 64 bits", "write it with a decimal point")
    return value


def _neg(b: Binder, node: Any) -> Node:
    arg = b.bind(node.this)
    if isinstance(arg, Const) and arg.value is not None and (arg.literal or arg.type == t.INTERVAL):
        if isinstance(arg.value, bytes):
            b.fail(f"{parse.say(node)}: a string cannot be negated")
        return casts.negate(arg)
    if arg.type == t.NULL:
        return null_of(t.BIGINT)
    if not arg.type.numeric and arg.type != t.INTERVAL:
        b.fail(f"{parse.say(node)}: {arg.type} cannot be negated")
    fault = "" if arg.type.real else f"overflow of {arg.type} in {parse.say(node)}"
    return call(arg.type, "neg", arg, fault=fault)


def _arithmetic(op: str) -> Callable[[Binder, Any], Node]:
    def handler(b: Binder, node: Any) -> Node:
        return arithmetic(b, op, b.bind(node.this), b.bind(node.expression), parse.say(node))

    return handler


def arithmetic(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    """+ - * / // % over numbers; + and - also over times."""
    if any(n.type.kind in ("timestamp", "interval") for n in (left, right)):
        from edged.job.expr import times

        return times.arithmetic(b, op, left, right, what)
    left, right = _nulls_typed(left, right)
    for n in (left, right):
        if not n.type.numeric and n.type != t.HUGEINT:
            b.fail(f"{n.type} where a number is expected in {what}", "CAST it")
    if not left.type.real and not right.type.real and op != "div":
        return _integer_arithmetic(b, op, left, right, what)
    kind = t.DOUBLE if op in ("div", "idiv") and t.FLOAT not in (left.type, right.type) else None
    kind = kind or t.meet(left.type, right.type)
    if kind is None or (op in ("div", "idiv") and t.DOUBLE in (left.type, right.type)):
        kind = t.DOUBLE
    args = [b.cast(n, kind, what) for n in (left, right)]
    zero = op == "idiv" or (op == "mod" and kind == t.DECIMAL)
    return call(kind, op, *args, fault=f"division by zero in {what}" if zero else "")


def _nulls_typed(left: Node, right: Node) -> tuple[Node, Node]:
    """A bare NULL takes the other operand's type; two are INTEGER."""
    kind = right.type if left.type == t.NULL else left.type
    kind = t.INTEGER if kind == t.NULL else kind
    typed = [null_of(kind) if n.type == t.NULL else n for n in (left, right)]
    return typed[0], typed[1]


def integer_type(b: Binder, left: Node, right: Node, what: str) -> SqlType:
    """The type that integer arithmetic on the two is done in."""
    kinds = [left.type, right.type]
    if is_integer_literal(left) and not is_integer_literal(right) and fits(left, right.type):
        kinds[0] = right.type
    elif is_integer_literal(right) and not is_integer_literal(left) and fits(right, left.type):
        kinds[1] = left.type
    kind = t.HUGEINT if t.HUGEINT in kinds else t.arithmetic_integers(*kinds)
    if kind == t.HUGEINT:
        b.fail(
            f"{kinds[0]} with {kinds[1]} is a 128-bit integer in {what}",
            "CAST one side to BIGINT, UBIGINT or DOUBLE",
        )
    return kind


def _integer_arithmetic(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    kind = integer_type(b, left, right, what)
    args = [b.cast(n, kind, what) for n in (left, right)]
    fault = f"overflow of {kind} in {what}"
    if op in ("idiv", "mod"):
        fault = f"division by zero, or overflow of {kind}, in {what}"
        divisor = args[1].value if isinstance(args[1], Const) else 0
        fault = fault if divisor in (0, -1, None) else ""
    return call(kind, op, *args, fault=fault)


def _bits(op: str) -> Callable[[Binder, Any], Node]:
    def handler(b: Binder, node: Any) -> Node:
        return bits(b, op, b.bind(node.this), b.bind(node.expression), parse.say(node))

    return handler


def bits(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    """& | xor << >> over integers."""
    left, right = _nulls_typed(left, right)
    for n in (left, right):
        if not n.type.integer and n.type != t.HUGEINT:
            b.fail(f"{n.type} where an integer is expected in {what}", "CAST it")
    kind = integer_type(b, left, right, what)
    args = [b.cast(n, kind, what) for n in (left, right)]
    fault = f"overflow of {kind}, or a shift out of range, in {what}" if op == "shl" else ""
    return call(kind, op, *args, fault=fault)


def _invert(b: Binder, node: Any) -> Node:
    arg = b.bind(node.this)
    if not arg.type.integer:
        b.fail(f"{arg.type} where an integer is expected in {parse.say(node)}")
    return call(arg.type, "invert", arg)


def _comparison(op: str) -> Callable[[Binder, Any], Node]:
    def handler(b: Binder, node: Any) -> Node:
        return compare(b, op, b.bind(node.this), b.bind(node.expression), parse.say(node))

    return handler


def _distinct(negate: bool) -> Callable[[Binder, Any], Node]:
    def handler(b: Binder, node: Any) -> Node:
        what = parse.say(node)
        kind, args = b.unify([b.bind(node.this), b.bind(node.expression)], what)
        if kind == t.NULL:
            return Const(t.BOOLEAN, False, negate)
        node_ = Call(t.BOOLEAN, False, "distinct", tuple(args))
        return call(t.BOOLEAN, "not", node_) if negate else node_

    return handler


def _logic(op: str) -> Callable[[Binder, Any], Node]:
    def handler(b: Binder, node: Any) -> Node:
        return call(t.BOOLEAN, op, *(b.condition(n) for n in node.flatten()))

    return handler


def _not(b: Binder, node: Any) -> Node:
    return call(t.BOOLEAN, "not", b.condition(node.this))


def _is(b: Binder, node: Any) -> Node:
    if isinstance(node.expression, exp.Null):
        return Call(t.BOOLEAN, False, "is_null", (b.bind(node.this),))
    if not isinstance(node.expression, exp.Boolean):
        b.fail(f"{parse.say(node)}: IS takes NULL, TRUE or FALSE")
    truth = "is_true" if node.expression.this else "is_false"
    return Call(t.BOOLEAN, False, truth, (b.condition(node.this),))


def _between(b: Binder, node: Any) -> Node:
    if node.args.get("symmetric"):
        b.fail("BETWEEN SYMMETRIC is not supported", "order the bounds")
    parts = [b.bind(n) for n in (node.this, node.args["low"], node.args["high"])]
    kind, (x, low, high) = b.unify(parts, parse.say(node))
    if kind == t.NULL:
        return null_of(t.BOOLEAN)
    return call(t.BOOLEAN, "and", call(t.BOOLEAN, "ge", x, low), call(t.BOOLEAN, "le", x, high))


def _in(b: Binder, node: Any) -> Node:
    items = node.args.get("expressions") or []
    if not items:
        b.fail(f"{parse.say(node)}: IN takes a list of at least one value in parentheses")
    kind, parts = b.unify([b.bind(n) for n in (node.this, *items)], parse.say(node))
    if kind == t.NULL:
        return null_of(t.BOOLEAN)
    tests = [call(t.BOOLEAN, "eq", parts[0], item) for item in parts[1:]]
    return call(t.BOOLEAN, "or", *tests) if len(tests) > 1 else tests[0]


def _case(b: Binder, node: Any) -> Node:
    subject = None if node.this is None else b.bind(node.this)
    conditions = [_when(b, subject, arm.this) for arm in node.args["ifs"]]
    default = node.args.get("default")
    values = [b.bind(arm.args["true"]) for arm in node.args["ifs"]]
    values.append(null_of(t.NULL) if default is None else b.bind(default))
    return case(b, conditions, values, parse.say(node))


def _when(b: Binder, subject: Node | None, value: Any) -> Node:
    if subject is None:
        return b.condition(value)
    return compare(b, "eq", subject, b.bind(value), parse.say(value))


def case(b: Binder, conditions: Sequence[Node], values: Sequence[Node], what: str) -> Node:
    """CASE with one more value (the default) than conditions."""
    kind, values = b.unify(values, what)
    if kind == t.HUGEINT:
        b.fail(f"the values of {what} meet in a 128-bit integer", "CAST one of them")
    if kind == t.NULL:
        b.fail(f"{what} has no type", "CAST(NULL AS its type)")
    if kind == t.INTERVAL and any(isinstance(v, Const) and v.months for v in values):
        b.fail(f"{what}: an interval of months cannot be chosen among others", "use days")
    nullable = any(v.nullable for v in values)
    return Case(kind, nullable, tuple(zip(conditions, values[:-1], strict=True)), values[-1])


def _if(b: Binder, node: Any) -> Node:
    if node.args.get("false") is None:
        b.fail(f"{parse.say(node)}: IF takes a condition and two values")
    values = [b.bind(node.args["true"]), b.bind(node.args["false"])]
    return case(b, [b.condition(node.this)], values, parse.say(node))


def _coalesce(b: Binder, node: Any) -> Node:
    what = parse.say(node)
    args = [b.bind(n) for n in (node.this, *node.expressions)]
    kind, values = b.unify(args, what)
    if kind in (t.NULL, t.HUGEINT):
        b.fail(f"{what} has no type that a column can have", "CAST its values")
    values = [v for v in values[:-1] if not _always_null(v)] + values[-1:]
    some = [call(t.BOOLEAN, "not", Call(t.BOOLEAN, False, "is_null", (v,))) for v in values[:-1]]
    if not some:
        return values[-1]
    built = case(b, some, values, what)
    assert isinstance(built, Case)
    nullable = all(v.nullable for v in values)
    return Case(built.type, nullable, built.arms, built.default)


def _always_null(node: Node) -> bool:
    return isinstance(node, Const) and node.value is None


def _nullif(b: Binder, node: Any) -> Node:
    left, right = b.bind(node.this), b.bind(node.expression)
    if left.type == t.NULL:
        b.fail(f"{parse.say(node)} has no type", "CAST(NULL AS its type)")
    same = compare(b, "eq", left, right, parse.say(node))
    return Case(left.type, True, ((same, null_of(left.type)),), left)


def _cast(b: Binder, node: Any, attempt: bool = False) -> Node:
    what = parse.say(node)
    to = casts.named_type(node.args["to"])
    if to is None:
        b.fail(
            f"{parse.say(node.args['to'])} is not a type of edged's in {what}",
            f"use one of {', '.join(k.name for k in t.COLUMN_TYPES)}",
        )
    if node.args.get("format") is not None or node.args.get("action") is not None:
        b.fail(f"{what}: CAST takes no FORMAT")
    try:
        arg = b.bind(node.this)
        if attempt and isinstance(arg, Const) and is_text_literal(arg):
            return casts.try_convert(arg, to)
        done = casts.cast(arg, to, what, explicit=True)
    except ValueError as problem:
        b.fail(f"{problem} in {what}")
    return casts.attempted(done) if attempt and done != arg else done


def _try_cast(b: Binder, node: Any) -> Node:
    return _cast(b, node, attempt=True)


def _try(b: Binder, node: Any) -> Node:
    arg = b.bind(node.this)
    return Try(arg.type, True, arg)


def _interval(b: Binder, node: Any) -> Node:
    from edged.job.expr import times

    return times.interval(b, node)


HANDLERS: dict[Any, Callable[[Binder, Any], Node]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Null: lambda b, node: null_of(t.NULL),
    exp.Boolean: lambda b, node: Const(t.BOOLEAN, False, bool(node.this)),
    exp.Paren: lambda b, node: b.bind(node.this),
    exp.Neg: _neg,
    exp.Add: _arithmetic("add"),
    exp.Sub: _arithmetic("sub"),
    exp.Mul: _arithmetic("mul"),
    exp.Div: _arithmetic("div"),
    exp.IntDiv: _arithmetic("idiv"),
    exp.Mod: _arithmetic("mod"),
    exp.BitwiseAnd: _bits("and_bits"),
    exp.BitwiseOr: _bits("or_bits"),
    exp.BitwiseXor: _bits("xor"),
    exp.BitwiseLeftShift: _bits("shl"),
    exp.BitwiseRightShift: _bits("shr"),
    exp.BitwiseNot: _invert,
    exp.EQ: _comparison("eq"),
    exp.NEQ: _comparison("ne"),
    exp.LT: _comparison("lt"),
    exp.LTE: _comparison("le"),
    exp.GT: _comparison("gt"),
    exp.GTE: _comparison("ge"),
    exp.NullSafeEQ: _distinct(negate=True),
    exp.NullSafeNEQ: _distinct(negate=False),
    exp.And: _logic("and"),
    exp.Or: _logic("or"),
    exp.Not: _not,
    exp.Is: _is,
    exp.Between: _between,
    exp.In: _in,
    exp.Case: _case,
    exp.If: _if,
    exp.Coalesce: _coalesce,
    exp.Nullif: _nullif,
    exp.Cast: _cast,
    exp.TryCast: _try_cast,
    exp.Try: _try,
    exp.Interval: _interval,
}
