"""Records in raw memory: one declaration each, from which offsets and documentation follow.

    class Cursor(NamedTuple):
        \"\"\"Where a reader stands.\"\"\"

        page: I64 = field("number of the page")
        row: I64 = field("next row of the page")

    CURSOR = words(Cursor)

    get(cursor, CURSOR.row)

`CURSOR.row` is the field's place, counted in 8-byte words: kernels read it with `get` and write it
with `put` at the record's address, and Python code uses it as an index of the int64 array that
holds the record.  `offsets` gives places in bytes, for records with fields of other widths, which
kernels read with the typed loads of `kernels.cpu.mem`.  Numba compiles a global named tuple as a
constant, so that a field's place is an immediate operand of the load.

The docstring of a declared class ends in a table of its fields: place, type, meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, cast, get_type_hints

from kernels.cpu import mem
from kernels.registry import device

I64 = Annotated[int, "int64", 8]
U32 = Annotated[int, "uint32", 4]
ADDRESS = Annotated[int, "address", 8]
_Record = TypeVar("_Record", bound="tuple[int, ...]")


def field(meaning: str) -> Any:
    """Declare a field; `meaning` goes to the record's documentation."""
    return meaning


def words(declared: type[_Record]) -> _Record:
    """The place of each field in 8-byte words; raises TypeError where a field is not 8 bytes."""
    if any(width != 8 for _, _, width in _fields(declared)):
        raise TypeError(f"{declared.__name__} has fields that are not 8 bytes wide: use offsets")
    return _laid_out(declared, 8)


def offsets(declared: type[_Record]) -> _Record:
    """The place of each field in bytes, without padding."""
    return _laid_out(declared, 1)


def size_of(declared: type[_Record]) -> int:
    """The record's size in bytes, without padding behind it."""
    return sum(width for _, _, width in _fields(declared))


def _fields(declared: type[Any]) -> list[tuple[str, str, int]]:
    hints = get_type_hints(declared, include_extras=True)
    return [(name, *hints[name].__metadata__) for name in declared._fields]


def _laid_out(declared: type[_Record], unit: int) -> _Record:
    places, at = [], 0
    lines = [declared.__doc__ or "", ""]
    for name, kind, width in _fields(declared):
        places.append(at // unit)
        lines.append(f"    {at:4}  {kind:8} {name:16} {declared._field_defaults[name]}")  # type: ignore[attr-defined]
        at += width
    declared.__doc__ = "\n".join(lines)
    return cast("type[Any]", declared)(*places)  # type: ignore[no-any-return]


@device
def get(record: int, place: int) -> Any:
    """A field of a record of 8-byte words, by the record's address."""
    return mem.load_i64(record + 8 * place)


@device
def put(record: int, place: int, value: int) -> None:
    """Set a field of a record of 8-byte words."""
    mem.store_i64(record + 8 * place, value)


@device
def keep(record: int, place: int, value: int) -> None:
    """`put`, without a store where the value is there already: the cache line stays shared."""
    if get(record, place) != value:
        put(record, place, value)
