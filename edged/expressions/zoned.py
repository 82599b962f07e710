"""AT TIME ZONE, and arithmetic of dates."""

from __future__ import annotations

from typing import Any

from edged.expressions import parse, times, zones
from edged.expressions import types as t
from edged.expressions.bind import Binder, call, is_text_literal
from edged.expressions.tree import Const, Node, null_of


def at_time_zone(b: Binder, node: Any) -> Node:
    """time AT TIME ZONE 'zone': a local time as an instant, or an instant as a local time."""
    what = parse.excerpt(node)
    arg, zone = b.bind(node.this), b.bind(node.args["zone"])
    if not is_text_literal(zone) or not isinstance(zone, Const):
        b.fail(f"{what}: the time zone is a string literal", "'Europe/Berlin'")
    assert isinstance(zone.value, bytes)
    try:
        table = Const(t.BLOB, False, zones.table(zone.value.decode()))
    except ValueError as problem:
        b.fail(f"{what}: {problem}")
    fault = f"overflow of TIMESTAMP in {what}"
    if arg.type == t.TIMESTAMPTZ:
        return call(t.TIMESTAMP, "to_local", arg, table, fault=fault)
    arg = null_of(t.TIMESTAMP) if arg.type == t.NULL else arg
    if arg.type != t.TIMESTAMP:
        b.fail(f"{what} takes a TIMESTAMP, not {arg.type}", "CAST it to TIMESTAMP")
    return call(t.TIMESTAMPTZ, "to_utc", arg, table, fault=fault)


def date_arithmetic(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    """Arithmetic where one side is a DATE."""
    if is_text_literal(left) or is_text_literal(right):
        b.fail(f"{what}: a string beside a DATE", "write DATE '...' or INTERVAL '...'")
    if op == "sub" and left.type == right.type == t.DATE:
        days = [call(t.BIGINT, "ordinal", n, extra=("day",)) for n in (left, right)]
        return call(t.BIGINT, "sub", *days)
    date, other = (left, right) if left.type == t.DATE else (right, left)
    if other.type.integer and (op == "add" or (op == "sub" and date is left)):
        by = times.length("day")(b, b.cast(other, t.INTEGER, what), what)
        return call(t.DATE, op, date, by, fault=f"overflow of DATE in {what}")
    sides = [b.cast(n, t.TIMESTAMP, what) if n.type == t.DATE else n for n in (left, right)]
    return times.arithmetic(b, op, sides[0], sides[1], what)
