"""The parts of the ELF format that the linker reads and writes: 64 bit, little endian.

References: the generic ABI, the supplements for AMD64 and for the Arm 64-bit architecture.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

X86_64, AARCH64 = 62, 183
"""`e_machine`."""
SHARED_OBJECT = 3
PROGBITS, SYMTAB, RELA, NOBITS = 1, 2, 4, 8
WRITE, ALLOC, EXECUTE = 1, 2, 4
UNDEFINED, ABSOLUTE, COMMON = 0, 0xFFF1, 0xFFF2
LOAD, DYNAMIC, STACK = 1, 2, 0x6474E551
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")
PROGRAM = struct.Struct("<IIQQQQQQ")


class LinkError(Exception):
    """An object that cannot be linked."""


class Symbol(NamedTuple):
    """A symbol of an object."""

    name: str
    info: int
    section: int
    value: int
    size: int


class Relocation(NamedTuple):
    """A place that depends on a symbol's address."""

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass
class ObjectSection:
    """A section of an object."""

    name: str
    kind: int
    flags: int
    size: int
    align: int
    content: bytes
    relocations: list[Relocation] = field(default_factory=list)


@dataclass
class Relocatable:
    """A relocatable object."""

    machine: int
    sections: list[ObjectSection]
    symbols: list[Symbol]


def read(data: bytes) -> Relocatable:
    """Parse an object.  Raises LinkError."""
    header = HEADER.unpack_from(data)
    ident, machine, at, count, names = (header[k] for k in (0, 2, 6, 12, 13))
    if ident[:6] != b"\x7fELF\x02\x01" or machine not in (X86_64, AARCH64):
        raise LinkError("not an object for x86-64 or aarch64")
    rows = [SECTION.unpack_from(data, at + k * SECTION.size) for k in range(count)]
    texts = _content(data, rows[names])
    sections = [
        ObjectSection(
            _name(texts, row[0]), row[1], row[2], row[5], max(row[8], 1), _content(data, row)
        )
        for row in rows
    ]
    symbols: list[Symbol] = []
    for row in rows:
        if row[1] == SYMTAB:
            table, strings = _content(data, row), _content(data, rows[row[6]])
            for name, info, _, section, value, size in SYMBOL.iter_unpack(table):
                symbols.append(Symbol(_name(strings, name), info, section, value, size))
    for row in rows:
        if row[1] == RELA:
            target = sections[row[7]].relocations
            for offset, info, addend in RELOCATION.iter_unpack(_content(data, row)):
                target.append(Relocation(offset, info & 0xFFFFFFFF, info >> 32, addend))
    return Relocatable(machine, sections, symbols)


def symbol_hash(name: str) -> int:
    """The hash of the generic ABI's symbol tables."""
    found = 0
    for byte in name.encode():
        found = (found << 4) + byte
        high = found & 0xF0000000
        found = (found ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return found


def _content(data: bytes, row: tuple[int, ...]) -> bytes:
    return b"" if row[1] == NOBITS else data[row[4] : row[4] + row[5]]


def _name(strings: bytes, at: int) -> str:
    return strings[at : strings.index(0, at)].decode()
