"""Timestamps and intervals: arithmetic, parts, truncation, buckets.

A timestamp is DuckDB's TIMESTAMP in UTC.  An interval in a kernel is microseconds; months exist
only in constants that are added to a timestamp, subtracted from one, or compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp

from edged.expressions import literals, parse
from edged.expressions import types as t
from edged.expressions.bind import Binder, call, is_text_literal
from edged.expressions.tree import Const, Node, null_of
from edged.expressions.types import SqlType

BUCKET_ORIGIN_US = 946_857_600_000_000
"""2000-01-03, a Monday: origin of time_bucket's buckets, as in DuckDB."""


def interval(b: Binder, node: Any) -> Node:
    """INTERVAL '5 minutes', INTERVAL 5 MINUTE, INTERVAL '1 hour 30 minutes'."""
    value, unit = node.this, node.args.get("unit")
    value = value.this if isinstance(value, exp.Paren) else value
    sign = ""
    if isinstance(value, exp.Neg):
        sign, value = "-", value.this
    if not isinstance(value, exp.Literal):
        b.fail(f"{parse.excerpt(node)}: an interval's length is a constant", "use epoch_us(x) + n")
    text = sign + str(value.this)
    whole = text.lstrip("-").isdigit() or node.args.get("fraction_in_string")
    if unit is not None and not whole:
        b.fail(f"{parse.excerpt(node)}: write a fraction inside the string", "INTERVAL '1.5 hours'")
    try:
        months, us = literals.interval(text if unit is None else f"{text} {unit.name}")
    except ValueError as problem:
        b.fail(str(problem))
    return Const(t.INTERVAL, False, us, months=months)


def _constant(node: Node) -> Const | None:
    return node if isinstance(node, Const) and isinstance(node.value, int) else None


def arithmetic(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    """Arithmetic where one side is a timestamp or an interval."""
    left, right = (_typed(b, n, o, what) for n, o in ((left, right), (right, left)))
    kinds = (left.type.kind, right.type.kind)
    if op == "mul" and "interval" in kinds:
        return _times(b, left, right, what)
    if op in ("add", "sub") and kinds == ("timestamp", "interval"):
        return _shift(b, op, left, right, what)
    if op == "add" and kinds == ("interval", "timestamp"):
        return _shift(b, op, right, left, what)
    fault = f"overflow in {what}"
    if op == "sub" and kinds == ("timestamp", "timestamp"):
        return call(t.INTERVAL, op, left, right, fault=fault)
    if op in ("add", "sub") and kinds == ("interval", "interval"):
        return _together(b, op, left, right, what)
    b.fail(f"{left.type} and {right.type} cannot be combined like this in {what}")


def _typed(b: Binder, node: Node, other: Node, what: str) -> Node:
    if node.type == t.NULL:
        return null_of(t.INTERVAL if other.type == t.TIMESTAMP else other.type)
    if is_text_literal(node):
        to = t.TIMESTAMP if other.type == t.TIMESTAMP else t.INTERVAL
        return b.cast(node, to, what)
    return node


def _shift(b: Binder, op: str, time: Node, by: Node, what: str) -> Node:
    fault = f"overflow of TIMESTAMP in {what}"
    constant = _constant(by)
    if constant is not None and constant.months:
        sign = -1 if op == "sub" else 1
        time = call(t.TIMESTAMP, "add_months", time, extra=(sign * constant.months,), fault=fault)
        by = Const(t.INTERVAL, False, constant.value)
    return call(t.TIMESTAMP, op, time, by, fault=fault)


def _together(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    sign = -1 if op == "sub" else 1
    x, y = _constant(left), _constant(right)
    if x is not None and y is not None:
        assert isinstance(x.value, int) and isinstance(y.value, int)
        months, us = x.months + sign * y.months, x.value + sign * y.value
        return Const(t.INTERVAL, False, us, months=months)
    if any(c is not None and c.months for c in (x, y)):
        b.fail(f"{what}: months cannot be added to a length of time", "use days")
    return call(t.INTERVAL, op, left, right, fault=f"overflow of INTERVAL in {what}")


def _times(b: Binder, left: Node, right: Node, what: str) -> Node:
    length, factor = (left, right) if left.type == t.INTERVAL else (right, left)
    x, n = _constant(length), _constant(factor)
    if x is None or n is None or not factor.type.integer:
        b.fail(f"{what}: an interval is multiplied by an integer constant only")
    assert isinstance(x.value, int) and isinstance(n.value, int)
    if abs(x.value * n.value) >= 2**62:
        b.fail(f"{what}: the interval is too long")
    return Const(t.INTERVAL, False, x.value * n.value, months=x.months * n.value)


def timestamp_argument(b: Binder, node: Node, what: str) -> Node:
    """A node that must be a timestamp, or a date as its midnight."""
    if node.type == t.DATE:
        return b.cast(node, t.TIMESTAMP, what)
    if node.type == t.TIMESTAMPTZ:
        b.fail(f"{what} takes a TIMESTAMP, not {node.type}", "add AT TIME ZONE 'UTC'")
    if node.type != t.TIMESTAMP:
        b.fail(f"{what} takes a TIMESTAMP, not {node.type}", "write TIMESTAMP '...' or CAST")
    return node


def unit_of(b: Binder, name: str, allowed: Sequence[str], what: str) -> str:
    """The canonical unit that `name` spells."""
    try:
        return literals.unit(name, tuple(allowed))
    except ValueError as problem:
        b.fail(f"{problem} in {what}")


def part(b: Binder, unit: str, arg: Node, what: str) -> Node:
    """extract(unit FROM arg)."""
    name = unit_of(b, unit, literals.PART_UNITS, what)
    if name == "epoch":
        return epoch(b, arg, what)
    return call(t.BIGINT, "part", timestamp_argument(b, arg, what), extra=(name,))


def trunc(b: Binder, unit: str, arg: Node, what: str) -> Node:
    """date_trunc(unit, arg)."""
    name = unit_of(b, unit, literals.TRUNC_UNITS, what)
    return call(t.TIMESTAMP, "date_trunc", timestamp_argument(b, arg, what), extra=(name,))


def epoch(b: Binder, arg: Node, what: str) -> Node:
    """Seconds as DOUBLE, of a timestamp or an interval."""
    return call(t.DOUBLE, "epoch", _lengthlike(b, arg, what))


def epoch_us(b: Binder, arg: Node, what: str) -> Node:
    """Microseconds as BIGINT."""
    return call(t.BIGINT, "epoch_us", _lengthlike(b, arg, what))


def epoch_ms(b: Binder, arg: Node, what: str) -> Node:
    """Milliseconds of a timestamp or an interval; of an integer, the timestamp that it encodes."""
    if arg.type.integer:
        return make_timestamp(b, arg, what, 1_000)
    floor = arg.type != t.INTERVAL
    return call(t.BIGINT, "epoch_ms" if floor else "interval_ms", _lengthlike(b, arg, what))


def make_timestamp(b: Binder, arg: Node, what: str, us: int = 1) -> Node:
    """The timestamp `arg` times `us` microseconds after 1970."""
    if not arg.type.integer:
        b.fail(f"{what} takes an integer, not {arg.type}")
    whole = b.cast(arg, t.BIGINT, what)
    fault = f"overflow of TIMESTAMP in {what}"
    return call(t.TIMESTAMP, "make_timestamp", whole, extra=(us,), fault=fault)


def _lengthlike(b: Binder, arg: Node, what: str) -> Node:
    if arg.type == t.DATE:
        return b.cast(arg, t.TIMESTAMP, what)
    if arg.type not in (t.TIMESTAMP, t.TIMESTAMPTZ, t.INTERVAL):
        b.fail(f"{what} takes a TIMESTAMP or an INTERVAL, not {arg.type}")
    constant = _constant(arg)
    if constant is not None and constant.months:
        b.fail(f"{what}: an interval of months has no fixed length", "use days")
    return arg


def bucket(b: Binder, width: Node, arg: Node, origin: Node | None, what: str) -> Node:
    """time_bucket(INTERVAL '...', arg[, origin or offset]): the start of the time's bucket."""
    constant = _constant(width)
    if width.type != t.INTERVAL or constant is None or constant.months:
        b.fail(f"{what}: the width is a constant INTERVAL without months", "or use date_trunc")
    if not isinstance(constant.value, int) or constant.value <= 0:
        b.fail(f"{what}: the width is more than zero")
    if arg.type == t.DATE:
        b.fail(f"{what} of a DATE is not supported", "CAST it to TIMESTAMP")
    time = timestamp_argument(b, arg, what)
    fault = f"overflow of TIMESTAMP in {what}"
    start = BUCKET_ORIGIN_US
    if origin is not None and origin.type == t.INTERVAL:
        offset = _constant(origin)
        if offset is None or offset.months or not isinstance(offset.value, int):
            b.fail(f"{what}: the offset is a constant INTERVAL without months", "or an origin")
        start += offset.value
    elif origin is not None:
        origin = b.cast(origin, t.TIMESTAMP, what) if is_text_literal(origin) else origin
        origin = timestamp_argument(b, origin, what)
        extra = (constant.value,)
        return call(t.TIMESTAMP, "bucket_at", time, origin, extra=extra, fault=fault)
    return call(t.TIMESTAMP, "bucket", time, extra=(constant.value, start), fault=fault)


def difference(b: Binder, unit: str, start: Node, end: Node, what: str) -> Node:
    """date_diff(unit, start, end): the boundaries of the unit between two times.

    A week is seven days between their dates, wherever it starts.
    """
    name = unit_of(b, unit, literals.TRUNC_UNITS, what)
    counted = "day" if name == "week" else name
    ends = []
    for node in (end, start):
        node = b.cast(node, t.TIMESTAMP, what) if is_text_literal(node) else node
        node = null_of(t.TIMESTAMP) if node.type == t.NULL else node
        ends.append(call(t.BIGINT, "ordinal", timestamp_argument(b, node, what), extra=(counted,)))
    fault = f"overflow of BIGINT in {what}" if name == "microsecond" else ""
    apart = call(t.BIGINT, "sub", *ends, fault=fault)
    return call(t.BIGINT, "idiv", apart, Const(t.BIGINT, False, 7)) if name == "week" else apart


def of_seconds(to: SqlType) -> Callable[[Binder, Node, str], Node]:
    """to_seconds and to_timestamp: seconds as DOUBLE, rounded to µs half to even."""

    def use(b: Binder, arg: Node, what: str) -> Node:
        if arg.type != t.NULL and not arg.type.numeric:
            b.fail(f"{what} takes a number of seconds, not {arg.type}")
        seconds = b.cast(arg, t.DOUBLE, what)
        return call(to, "seconds_us", seconds, fault=f"overflow of {to} in {what}")

    return use


def length(unit: str) -> Callable[[Binder, Node, str], Node]:
    """to_minutes, to_hours, …: an integer number of units as an interval."""
    us = literals.FIXED_US[unit]

    def use(b: Binder, arg: Node, what: str) -> Node:
        if arg.type != t.NULL and not (arg.type.integer and arg.type != t.UBIGINT):
            b.fail(f"{what} takes an integer, not {arg.type}", "CAST it to BIGINT")
        whole = b.cast(arg, t.BIGINT, what)
        fault = f"overflow of INTERVAL in {what}"
        return call(t.INTERVAL, "make_timestamp", whole, extra=(us,), fault=fault)

    return use
