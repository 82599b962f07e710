"""Records in raw memory: one declaration each, from which offsets and documentation follow.

    class Cursor(NamedTuple):
        \"\"\"Where a reader stands.\"\"\"

        page: I64 = field("number of the page")
        row: I64 = field("next row of the page")

    CURSOR = words(Cursor)

    get(cursor, CURSOR.row)

`CURSOR.row` is the field's place, counted in 8-byte words: kernels read it with `get` and write it
with `put` at the record's address, and kernels and Python code use it as an index of the int64
array that holds the record; `len(CURSOR)` is the length of that array where the record has neither
gaps nor arrays.  `offsets` gives places in bytes, for records with fields of other widths, which
kernels read with the typed loads of `kernels.cpu.mem`.  Numba compiles a global named tuple as a
constant for CPU and GPU, so that a field's place is an immediate operand of the load.

The docstring of a declared class ends in a table of its fields: place in bytes, type, meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_type_hints

from kernels.cpu import mem
from kernels.registry import device

I64 = Annotated[int, "int64", 8]
U32 = Annotated[int, "uint32", 4]
F64 = Annotated[int, "float64", 8]
ADDRESS = Annotated[int, "address", 8]
_Record = TypeVar("_Record", bound="tuple[int, ...]")


class _Field(NamedTuple):
    meaning: str
    at: int
    length: int


class _FieldPlace(NamedTuple):
    name: str
    kind: str
    at: int
    width: int
    end: int
    meaning: str


def field(meaning: str, at: int = 0, length: int = 1) -> Any:
    """Declare a field.

    `meaning` goes to the record's documentation.  `at` is the field's place in bytes where there is
    a gap before it; by default it follows the field before it.  A field with a
    `length` is an array.
    """
    return _Field(meaning, at, length)


def words(declared: type[_Record]) -> _Record:
    """The place of each field in 8-byte words; raises TypeError where a field is not 8 bytes."""
    if any(place.width != 8 or place.at % 8 for place in _places(declared)):
        raise TypeError(f"{declared.__name__} has fields that are not 8 bytes wide: use offsets")
    return _laid_out(declared, 8)


def offsets(declared: type[_Record]) -> _Record:
    """The place of each field in bytes, without padding other than the declared gaps."""
    return _laid_out(declared, 1)


def size_of(declared: type[_Record]) -> int:
    """The record's size in bytes, without padding behind it."""
    return _places(declared)[-1].end


def _places(declared: type[Any]) -> list[_FieldPlace]:
    """The fields in order; raises TypeError where one lies on the field before it."""
    hints = get_type_hints(declared, include_extras=True)
    places, end = [], 0
    for name in declared._fields:
        kind, width = hints[name].__metadata__
        declaration: _Field = declared._field_defaults[name]
        at = declaration.at or end
        if at < end:
            raise TypeError(f"{declared.__name__}.{name} begins at {at}, before {end}")
        end = at + width * declaration.length
        kind += f"[{declaration.length}]" if declaration.length > 1 else ""
        places.append(_FieldPlace(name, kind, at, width, end, declaration.meaning))
    return places


def _laid_out(declared: type[_Record], unit: int) -> _Record:
    places = _places(declared)
    lines = [f"    {p.at:4}  {p.kind:10} {p.name:16} {p.meaning}" for p in places]
    declared.__doc__ = "\n".join([declared.__doc__ or "", "", *lines])
    return cast("type[Any]", declared)(*(p.at // unit for p in places))  # type: ignore[no-any-return]


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
