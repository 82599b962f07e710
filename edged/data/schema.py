"""Types, fields and schemas of columns, and their Arrow and JSON forms.

Fourteen types, each nullable: `bool`, `int8`..`int64`, `uint8`..`uint64`, `float32`, `float64`,
`timestamp` (microseconds since 1970-01-01 UTC, int64), `string` (UTF-8) and `binary`; and lists of
a fixed length, as `float32[64]` (`edged.data.lists`).

A schema is written as JSON: `[{"name": …, "type": …, "nullable": …}, …]`.  Job documents,
registered `stream@version` schemas of pages and the collector use this form.  There the weight
column of a stream of changes also has `"role": "weight"`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class DType:
    """A column type.  `width` is bytes a value (0: variable size); bool is one byte in memory.

    A list has the layout of a variable type, though its values have one size.
    """

    name: str
    width: int
    numpy: np.dtype[Any]
    arrow: pa.DataType
    spark: str
    item: DType | None = None
    """Of a list, the type of its elements."""
    length: int = 0
    """Of a list, their number."""

    @property
    def stored(self) -> pa.DataType:
        """The Arrow type of the bytes in memory and in pages."""
        return self.arrow if self.item is None else pa.binary()

    @property
    def variable(self) -> bool:
        """Whether values have the layout of a variable size (string, binary, lists)."""
        return self.width == 0

    @property
    def integer(self) -> bool:
        """Whether this is an integer type (timestamp and bool are not)."""
        return self.item is None and self.name.startswith(("int", "uint"))

    @property
    def floating(self) -> bool:
        """Whether this is float32 or float64."""
        return self.item is None and self.name.startswith("float")

    def __repr__(self) -> str:
        return self.name


def _fixed(name: str, numpy: str, arrow: pa.DataType, spark: str) -> DType:
    dtype = np.dtype(numpy)
    return DType(name, dtype.itemsize, dtype, arrow, spark)


BOOL = _fixed("bool", "u1", pa.bool_(), "boolean")
INT8 = _fixed("int8", "i1", pa.int8(), "tinyint")
INT16 = _fixed("int16", "i2", pa.int16(), "smallint")
INT32 = _fixed("int32", "i4", pa.int32(), "int")
INT64 = _fixed("int64", "i8", pa.int64(), "bigint")
UINT8 = _fixed("uint8", "u1", pa.uint8(), "smallint")
UINT16 = _fixed("uint16", "u2", pa.uint16(), "int")
UINT32 = _fixed("uint32", "u4", pa.uint32(), "bigint")
UINT64 = _fixed("uint64", "u8", pa.uint64(), "decimal(20,0)")
FLOAT32 = _fixed("float32", "f4", pa.float32(), "float")
FLOAT64 = _fixed("float64", "f8", pa.float64(), "double")
TIMESTAMP = _fixed("timestamp", "i8", pa.timestamp("us", tz="UTC"), "timestamp")
STRING = DType("string", 0, np.dtype("u1"), pa.string(), "string")
BINARY = DType("binary", 0, np.dtype("u1"), pa.binary(), "binary")

TYPES: dict[str, DType] = {
    t.name: t
    for t in (
        BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64,
        FLOAT32, FLOAT64, TIMESTAMP, STRING, BINARY,
    )
}  # fmt: skip


LIST_ITEMS = (
    "int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "float64",
)  # fmt: skip
"""Types of the elements of lists."""
LIST_LENGTH_MAX = 65_536
_LIST = re.compile(rf"({'|'.join(LIST_ITEMS)})\[([1-9][0-9]{{0,4}})\]")


@cache
def type_named(name: str) -> DType | None:
    """The type of a name, the same object for each name; None for no type's name."""
    found = _LIST.fullmatch(name)
    if found is None or int(found[2]) > LIST_LENGTH_MAX:
        return TYPES.get(name)
    item, length = TYPES[found[1]], int(found[2])
    spark = f"array<{item.spark}>"
    return DType(name, 0, np.dtype("u1"), pa.list_(item.arrow, length), spark, item, length)


WEIGHT = "weight"
"""The role of the column that says how many rows a row stands for (`edged.data.flow.Link`)."""
WEIGHT_COLUMN = "_weight"
"""The name of a weight column that no document names."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column: its name, type and whether it may hold nulls."""

    name: str
    dtype: DType
    nullable: bool = False
    role: str = ""
    """WEIGHT or empty; set in schemas for the centre alone."""

    def to_json(self) -> dict[str, Any]:
        """The field's part of the schema's JSON form."""
        found = {"name": self.name, "type": self.dtype.name, "nullable": self.nullable}
        return {**found, "role": self.role} if self.role else found

    def metadata(self) -> dict[str, str]:
        """The metadata of the column in Arrow and Spark: its role, if it has one."""
        return {"edged.role": self.role} if self.role else {}


@dataclass(frozen=True, slots=True)
class Schema:
    """An ordered set of fields with unique names."""

    fields: tuple[Field, ...]

    @classmethod
    def of(cls, fields: Iterable[Field]) -> Schema:
        """A schema of `fields`, in order."""
        return cls(tuple(fields))

    @classmethod
    def from_json(cls, document: str | list[dict[str, Any]]) -> Schema:
        """The inverse of `to_json` (`edged.pages.format`).  Raises ValueError for another text."""
        rows = json.loads(document) if isinstance(document, str) else document
        if not isinstance(rows, list) or not rows:
            raise ValueError("a schema is a list of at least one column")
        fields = [_field_of(row) for row in rows]
        names = [f.name for f in fields]
        if len(set(names)) < len(names):
            raise ValueError("a schema's columns have distinct names")
        if sum(f.role == WEIGHT for f in fields) > 1:
            raise ValueError("a schema has one weight column at most")
        return cls(tuple(fields))

    def to_json(self) -> str:
        """The canonical JSON text (no spaces, fields in order): equal schemas give equal text."""
        return json.dumps([f.to_json() for f in self.fields], separators=(",", ":"))

    def to_arrow(self) -> pa.Schema:
        """The Arrow schema with the same names, types and nullability."""
        return pa.schema([pa.field(f.name, f.dtype.arrow, f.nullable) for f in self.fields])

    def with_weight(self, name: str) -> Schema:
        """This schema, its column `name` with the role of the weight; empty: none has it."""
        if not name:
            return self
        weight = replace(self.field(name), role=WEIGHT)
        return Schema.of(weight if f.name == name else f for f in self.fields)

    @property
    def weight(self) -> str:
        """Name of the column with the role of the weight; empty: none."""
        return next((f.name for f in self.fields if f.role == WEIGHT), "")

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(f.name for f in self.fields)

    @property
    def fixed_width(self) -> bool:
        """Whether every column has a fixed width, so that pages can be dense."""
        return not any(f.dtype.variable for f in self.fields)

    def index(self, name: str) -> int:
        """Position of the column `name`.  Raises KeyError."""
        for i, f in enumerate(self.fields):
            if f.name == name:
                return i
        raise KeyError(name)

    def field(self, name: str) -> Field:
        """The field `name`.  Raises KeyError."""
        return self.fields[self.index(name)]

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        return any(f.name == name for f in self.fields)


def _field_of(row: Any) -> Field:
    """A column of a schema's JSON form."""
    keys = {"name", "type", "nullable", "role"}
    if not isinstance(row, dict) or not {"name", "type"} <= set(row) <= keys:
        raise ValueError(f"{row!r} is not a column: it has name, type, nullable and role")
    name, kind, nullable = row["name"], row["type"], row.get("nullable", False)
    role = row.get("role", "")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{name!r} is not a column's name")
    dtype = type_named(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise ValueError(f"{kind!r} is not a column's type; there are {', '.join(TYPES)} and lists")
    if not isinstance(nullable, bool):
        raise ValueError(f"nullable of column {name} is {nullable!r}, not true or false")
    if role not in ("", WEIGHT):
        raise ValueError(f"role of column {name} is {role!r}; there is {WEIGHT!r}")
    if role and (kind != INT32.name or nullable):
        raise ValueError(f"column {name} has the role {role}, so it is int32, not null")
    return Field(name, dtype, nullable, role)
