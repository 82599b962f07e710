"""The SQL types of expressions, and the common type of two of them.

DuckDB's names and rules, over the column types (`edged.data.schema`), plus six that exist only
inside an expression:

    DECIMAL   a literal such as 1.5, and arithmetic of those with integers.  DuckDB computes it in
              decimal; edged in double.  It is *weak*: beside FLOAT it is FLOAT, beside DOUBLE it is
              DOUBLE, and as a result it is DOUBLE.
    DATE      the microseconds of its midnight.
    TIMESTAMP WITH TIME ZONE
              what `AT TIME ZONE` and `to_timestamp` make; as a result it is a `timestamp`.
    INTERVAL  microseconds; a constant one may also hold months.
    HUGEINT   common type of 64-bit signed and unsigned integers; comparable, nothing else.
    NULL      the type of the literal.

`carry` names the numba type of a value in the kernel: all integers but uint64 are int64 there, so
that one addition followed by a range check is DuckDB's checked addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edged.data import schema
from edged.data.schema import DType

Kind = Literal[
    "bool",
    "int",
    "uint",
    "float",
    "decimal",
    "timestamp",
    "instant",
    "date",
    "text",
    "blob",
    "list",
    "interval",
    "huge",
    "null",
]


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type: DuckDB's name, its family, its bits, and the numba type that carries it."""

    name: str
    kind: Kind
    bits: int
    carry: str
    dtype: DType | None = None

    @property
    def integer(self) -> bool:
        """Whether this is a signed or unsigned integer."""
        return self.kind in ("int", "uint")

    @property
    def real(self) -> bool:
        """Whether this is FLOAT, DOUBLE or DECIMAL."""
        return self.kind in ("float", "decimal")

    @property
    def numeric(self) -> bool:
        """Whether arithmetic takes it."""
        return self.integer or self.real

    @property
    def variable(self) -> bool:
        """Whether values are bytes of any length."""
        return self.kind in ("text", "blob", "list")

    @property
    def low(self) -> int:
        """The least integer of this type."""
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def high(self) -> int:
        """The greatest integer of this type."""
        return (1 << (self.bits - 1)) - 1 if self.kind == "int" else (1 << self.bits) - 1

    def holds(self, value: int) -> bool:
        """Whether the integer `value` fits."""
        return self.low <= value <= self.high

    def __repr__(self) -> str:
        return self.name


BOOLEAN = SqlType("BOOLEAN", "bool", 1, "boolean", schema.BOOL)
TINYINT = SqlType("TINYINT", "int", 8, "int64", schema.INT8)
SMALLINT = SqlType("SMALLINT", "int", 16, "int64", schema.INT16)
INTEGER = SqlType("INTEGER", "int", 32, "int64", schema.INT32)
BIGINT = SqlType("BIGINT", "int", 64, "int64", schema.INT64)
UTINYINT = SqlType("UTINYINT", "uint", 8, "int64", schema.UINT8)
USMALLINT = SqlType("USMALLINT", "uint", 16, "int64", schema.UINT16)
UINTEGER = SqlType("UINTEGER", "uint", 32, "int64", schema.UINT32)
UBIGINT = SqlType("UBIGINT", "uint", 64, "uint64", schema.UINT64)
FLOAT = SqlType("FLOAT", "float", 32, "float32", schema.FLOAT32)
DOUBLE = SqlType("DOUBLE", "float", 64, "float64", schema.FLOAT64)
TIMESTAMP = SqlType("TIMESTAMP", "timestamp", 64, "int64", schema.TIMESTAMP)
VARCHAR = SqlType("VARCHAR", "text", 0, "text", schema.STRING)
BLOB = SqlType("BLOB", "blob", 0, "text", schema.BINARY)
TIMESTAMPTZ = SqlType("TIMESTAMP WITH TIME ZONE", "instant", 64, "int64", schema.TIMESTAMP)
DATE = SqlType("DATE", "date", 64, "int64")
DECIMAL = SqlType("DECIMAL", "decimal", 64, "float64", schema.FLOAT64)
INTERVAL = SqlType("INTERVAL", "interval", 64, "int64")
HUGEINT = SqlType("HUGEINT", "huge", 128, "none")
NULL = SqlType("NULL", "null", 0, "int64")

COLUMN_TYPES = (
    BOOLEAN, TINYINT, SMALLINT, INTEGER, BIGINT, UTINYINT, USMALLINT, UINTEGER, UBIGINT,
    FLOAT, DOUBLE, TIMESTAMP, VARCHAR, BLOB,
)  # fmt: skip
"""The column types, in the order of `edged.data.schema`."""

_BY_DTYPE = {t.dtype.name: t for t in COLUMN_TYPES if t.dtype is not None}
_SIGNED = {t.bits: t for t in (TINYINT, SMALLINT, INTEGER, BIGINT)}


def of_dtype(dtype: DType) -> SqlType:
    """The SQL type of a column type."""
    if dtype.item is not None:
        return SqlType(f"{of_dtype(dtype.item)}[{dtype.length}]", "list", 0, "text", dtype)
    return _BY_DTYPE[dtype.name]


def of_integer(value: int) -> SqlType:
    """The type of an integer literal on its own: INTEGER, BIGINT, else HUGEINT."""
    for kind in (INTEGER, BIGINT):
        if kind.holds(value):
            return kind
    return HUGEINT


def meet_integers(a: SqlType, b: SqlType) -> SqlType:
    """The type that holds both (comparison, CASE, COALESCE, IN, greatest)."""
    if a.kind == b.kind:
        return a if a.bits >= b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if unsigned.bits == 64:
        return HUGEINT
    return signed if signed.bits > unsigned.bits else _SIGNED[unsigned.bits * 2]


def arithmetic_integers(a: SqlType, b: SqlType) -> SqlType:
    """The type that + - * // % and the bit operators compute in: DuckDB's choice of overload.

    Mixed signs meet in the signed type where it is the wider one, else in BIGINT (not in the next
    wider type, as comparisons do), and in HUGEINT beside 64 unsigned bits.
    """
    if a.kind == b.kind:
        return a if a.bits >= b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if unsigned.bits == 64:
        return HUGEINT
    return signed if signed.bits > unsigned.bits else BIGINT


def meet(a: SqlType, b: SqlType) -> SqlType | None:
    """The common type of two operands; None where DuckDB or edged has none.

    Booleans and numbers have none (DuckDB has for some: edged requires a CAST), nor have strings
    and anything else: string *literals* are converted earlier.
    """
    if "list" in (a.kind, b.kind):
        return None
    if a == b or b == NULL:
        return a
    if a == NULL:
        return b
    if a.integer and b.integer:
        return meet_integers(a, b)
    if a.numeric and b.numeric:
        if DOUBLE in (a, b):
            return DOUBLE
        return FLOAT if FLOAT in (a, b) else DECIMAL
    if {a, b} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    if HUGEINT in (a, b):
        other = b if a == HUGEINT else a
        return HUGEINT if other.integer else other if other.real else None
    return None
