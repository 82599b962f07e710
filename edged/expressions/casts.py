"""Conversions between types, and their effect on constants.

Constants are converted here, once; everything else becomes a `cast` in the kernel.  Faults are
ValueErrors, to which the binder adds the path.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

from sqlglot import exp

from edged.expressions import literals
from edged.expressions import types as t
from edged.expressions.tree import Call, Const, Node, null_of
from edged.expressions.types import SqlType

_D = exp.DataType.Type
_NAMED: dict[Any, SqlType] = {
    _D.BOOLEAN: t.BOOLEAN,
    _D.TINYINT: t.TINYINT,
    _D.SMALLINT: t.SMALLINT,
    _D.INT: t.INTEGER,
    _D.BIGINT: t.BIGINT,
    _D.UTINYINT: t.UTINYINT,
    _D.USMALLINT: t.USMALLINT,
    _D.UINT: t.UINTEGER,
    _D.UBIGINT: t.UBIGINT,
    _D.FLOAT: t.FLOAT,
    _D.DOUBLE: t.DOUBLE,
    _D.DATE: t.DATE,
    _D.TIMESTAMP: t.TIMESTAMP,
    _D.TIMESTAMPNTZ: t.TIMESTAMP,
    _D.TEXT: t.VARCHAR,
    _D.VARCHAR: t.VARCHAR,
    _D.VARBINARY: t.BLOB,
}
_USER_NAMED = {"uint8": t.UTINYINT, "uint16": t.USMALLINT, "uint32": t.UINTEGER}
_USER_NAMED["uint64"] = t.UBIGINT


def named_type(node: Any) -> SqlType | None:
    """The type that a CAST names; None where edged has no such type."""
    if not isinstance(node, exp.DataType) or node.expressions or node.args.get("values"):
        return None
    if node.this == _D.USERDEFINED:
        return _USER_NAMED.get(str(node.args.get("kind")).lower())
    return _NAMED.get(node.this)


def narrow(node: Node) -> Node:
    """A HUGEINT literal that fits into 64 unsigned bits, as UBIGINT."""
    return replace(node, type=t.UBIGINT) if node.type == t.HUGEINT else node


def negate(value: Const) -> Const:
    """Minus a constant."""
    if isinstance(value.value, str):
        return replace(value, value=repr(-float(value.value)))
    assert isinstance(value.value, int)
    if value.type == t.INTERVAL:
        return replace(value, value=-value.value, months=-value.months)
    return replace(value, type=t.of_integer(-value.value), value=-value.value)


def attempted(node: Node) -> Node:
    """The cast `node` as TRY_CAST: NULL instead of an error."""
    if isinstance(node, Call) and node.op == "cast" and node.fault is not None:
        return replace(node, op="try_cast", fault=None, nullable=True)
    return node


def cast(node: Node, to: SqlType, what: str, explicit: bool = False) -> Node:
    """`node` as `to`.  Raises ValueError where there is no such conversion."""
    if node.type == to:
        return replace(node, literal=False) if explicit and isinstance(node, Const) else node
    if node.type == t.NULL:
        return null_of(to)
    if isinstance(node, Const):
        if node.value is None:
            return replace(node, type=to, literal=False)
        if isinstance(node.value, bytes) and node.literal:
            return cast_text(node, to)
        done = _convert(node, to)
        if done is not None:
            return done
    if (node.type, to) == (t.DATE, t.TIMESTAMP):
        if isinstance(node, Const):
            return replace(node, type=to, literal=False)
        return Call(to, node.nullable, "same", (node,))
    if (node.type, to) == (t.TIMESTAMP, t.DATE):
        return Call(to, node.nullable, "date_trunc", (node,), ("day",))
    _check(node.type, to)
    fault = f"a value is out of range of {to} in {what}" if _fails(node.type, to) else None
    return Call(to, node.nullable, "cast", (node,), (), fault)


def cast_text(value: Const, to: SqlType) -> Const:
    """A string literal as `to`."""
    return replace(value, literal=False) if to == t.VARCHAR else literals.convert(value, to)


def _check(a: SqlType, b: SqlType) -> None:
    simple = ("bool", "int", "uint", "float", "decimal")
    if a.kind in simple and b.kind in simple:
        return
    if b.kind == "decimal" or a.kind == "huge":
        raise ValueError(f"{a} has no conversion to {b}")
    advice = {
        ("timestamp", "int"): "; epoch_us(x) or epoch_ms(x) gives a number",
        ("timestamp", "float"): "; epoch(x) gives seconds",
        ("int", "timestamp"): "; make_timestamp(microseconds) makes a time",
        ("instant", "timestamp"): "; x AT TIME ZONE 'UTC' makes a TIMESTAMP",
        ("instant", "date"): "; x AT TIME ZONE 'UTC' makes a TIMESTAMP",
        ("instant", "int"): "; epoch_us(x) gives a number",
        ("date", "int"): "; epoch_us(x) gives a number",
        ("interval", "int"): "; epoch_us(x) gives a number",
    }.get((a.kind, b.kind), "")
    raise ValueError(f"CAST from {a} to {b} is not supported{advice}")


def _fails(a: SqlType, b: SqlType) -> bool:
    """Whether some value of `a` is out of range of `b`."""
    if b.integer:
        if a.integer:
            return not (b.holds(a.low) and b.holds(a.high))
        return a.real
    return b == t.FLOAT and a.real


def _convert(value: Const, to: SqlType) -> Const | None:
    """A numeric constant as `to`; None where the kernel must convert it (and report its error)."""
    x = value.value
    if to.kind == "bool" and value.type.numeric:
        return Const(to, False, float(x) != 0 if isinstance(x, str) else bool(x))
    if isinstance(x, int) and to.integer and value.type.kind != "timestamp":
        return Const(to, False, int(x)) if to.holds(int(x)) else None
    if isinstance(x, int) and to.real:
        return Const(to, False, repr(float(x)) if to != t.FLOAT else _float32(int(x)))
    if isinstance(x, str) and to.real:
        text = _float32(float(x)) if to == t.FLOAT else x
        return (
            None if math.isinf(float(text)) and not math.isinf(float(x)) else Const(to, False, text)
        )
    return None


def _float32(value: float) -> str:
    try:
        return repr(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return "inf"
