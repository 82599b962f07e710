"""A linker for one object: makes a shared object that the C library loads.

A device has no linker, and LLVM's is not part of llvmlite.  The input is an object that LLVM emits
position-independent; the output has the exported functions and what the dynamic loader needs: two
segments (code and constants; data), a table of dynamic symbols with a hash table, and relocations.
Undefined symbols are resolved when the object is loaded: functions of the interpreter, the C
library and its mathematics.  Unwind tables are left out, since no exception passes through kernels.

    first segment    header, program headers, dynamic symbols, their hash table and names, dynamic
                     relocations, stubs of undefined functions, code and constants
    second segment   data, global offset table, dynamic section, zeros

Segments begin at multiples of 64 KiB, the largest page of Linux on aarch64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from kernels.ahead import elf
from kernels.ahead import relocations as r
from kernels.ahead.elf import LinkError, Relocatable, Symbol

PAGE = 1 << 16
NEEDED = ("libm.so.6", "libc.so.6")
_HASH, _STRTAB, _SYMTAB, _RELA = 4, 5, 6, 7
_RELASZ, _RELAENT, _STRSZ, _SYMENT, _NEEDED = 8, 9, 10, 11, 1
_GLOBAL = 0x10
_IGNORED = (".eh_frame", ".note", ".comment", ".llvm")


def link(content: bytes, exported: Iterable[str]) -> tuple[bytes, list[str]]:
    """The shared object of an object, with the exported symbols, and the names of the undefined
    symbols.  Raises LinkError."""
    link = _SharedObject(elf.read(content), list(exported))
    return link.made(), [link.given.symbols[k].name for k in link.imported]


class _SharedObject:
    """The state of one link."""

    def __init__(self, given: Relocatable, exported: list[str]) -> None:
        self.given, self.machine = given, given.machine
        self.kept = [
            k
            for k, s in enumerate(given.sections)
            if s.flags & elf.ALLOC and not s.name.startswith(_IGNORED) and s.size
        ]
        self.exported = [s for s in given.symbols if s.name in set(exported)]
        if len(self.exported) != len(exported):
            raise LinkError("an exported symbol is not defined")
        self.imported = self._imported()
        self.entries: dict[int, int] = {}
        self.stubs: dict[int, int] = {}
        self.at: dict[int, int] = {}
        self.dynamic: list[tuple[int, int, int, int]] = []
        self._count()

    def _used(self) -> Iterable[tuple[int, elf.Relocation]]:
        for k in self.kept:
            for one in self.given.sections[k].relocations:
                yield k, one

    def _imported(self) -> list[int]:
        used = {one.symbol for _, one in self._used()}
        return [
            k
            for k in sorted(used)
            if self.given.symbols[k].section == elf.UNDEFINED and self.given.symbols[k].name
        ]

    def _count(self) -> None:
        """Number the entries of the global offset table, the stubs, the dynamic relocations."""
        undefined, absolute = set(self.imported), 0
        for _, one in self._used():
            if r.needs_entry(self.machine, one.kind):
                self.entries.setdefault(one.symbol, len(self.entries))
            elif one.symbol in undefined and r.may_call_stub(self.machine, one.kind):
                self.stubs.setdefault(one.symbol, len(self.stubs))
                self.entries.setdefault(one.symbol, len(self.entries))
            elif one.kind == r.ABSOLUTE[self.machine]:
                absolute += 1
        self.relocation_count = absolute + len(self.entries)

    def made(self) -> bytes:
        """The shared object."""
        head = elf.HEADER.size + 4 * elf.PROGRAM.size
        names, symbols = self._names()
        table = self._hash_table()
        self.symbols_at = _up(head, 8)
        self.hash_at = self.symbols_at + elf.SYMBOL.size * (1 + len(symbols))
        self.names_at = self.hash_at + len(table)
        self.relocations_at = _up(self.names_at + len(names), 8)
        self.stubs_at = _up(self.relocations_at + elf.RELOCATION.size * self.relocation_count, 16)
        end = self.stubs_at + r.STUB_BYTES[self.machine] * len(self.stubs)
        end = self._place(end, writable=False)
        data_at = _up(end, PAGE) + end % PAGE
        last = self._place(data_at, writable=True)
        self.got_at = _up(last, 8)
        self.dynamic_at = self.got_at + 8 * len(self.entries)
        dynamic = self._dynamic_section(len(names))
        stop = self.dynamic_at + len(dynamic)
        zeros = self._place_zeros(stop)
        image = bytearray(stop)
        self._fill(image)
        image[self.hash_at : self.hash_at + len(table)] = table
        image[self.names_at : self.names_at + len(names)] = names
        image[self.dynamic_at : stop] = dynamic
        for k, row in enumerate([(0, 0, 0, 0, 0), *self._symbol_rows(symbols)]):
            name, info, section, value, size = row
            elf.SYMBOL.pack_into(
                image, self.symbols_at + k * elf.SYMBOL.size, name, info, 0, section, value, size
            )
        for k, (place, kind, symbol, addend) in enumerate(self.dynamic):
            at = self.relocations_at + k * elf.RELOCATION.size
            elf.RELOCATION.pack_into(image, at, place, symbol << 32 | kind, addend)
        self._head(image, end, data_at, stop, zeros)
        return bytes(image[:end] + image[data_at:stop])

    def _names(self) -> tuple[bytes, list[tuple[int, Symbol]]]:
        """The dynamic names, and the dynamic symbols with the place of their names."""
        text, symbols = bytearray(b"\0"), []
        self.needed = []
        for name in NEEDED:
            self.needed.append(len(text))
            text += name.encode() + b"\0"
        for symbol in [*(self.given.symbols[k] for k in self.imported), *self.exported]:
            symbols.append((len(text), symbol))
            text += symbol.name.encode() + b"\0"
        self.numbers = {k: 1 + n for n, k in enumerate(self.imported)}
        return bytes(text), symbols

    def _hash_table(self) -> bytes:
        count = 1 + len(self.imported) + len(self.exported)
        buckets, chain = [0] * max(1, len(self.exported)), [0] * count
        for n, symbol in enumerate(self.exported, 1 + len(self.imported)):
            bucket = elf.symbol_hash(symbol.name) % len(buckets)
            chain[n], buckets[bucket] = buckets[bucket], n
        words = [len(buckets), count, *buckets, *chain]
        return struct.pack(f"<{len(words)}I", *words)

    def _place(self, at: int, writable: bool) -> int:
        """Give the kept sections with content their addresses; returns the end."""
        for k in self.kept:
            section = self.given.sections[k]
            if bool(section.flags & elf.WRITE) == writable and section.kind != elf.NOBITS:
                self.at[k] = _up(at, section.align)
                at = self.at[k] + section.size
        return at

    def _place_zeros(self, at: int) -> int:
        """Give zeros and common symbols their addresses; returns the end."""
        for k in self.kept:
            section = self.given.sections[k]
            if section.kind == elf.NOBITS:
                self.at[k] = _up(at, section.align)
                at = self.at[k] + section.size
        self.common: dict[int, int] = {}
        for k, symbol in enumerate(self.given.symbols):
            if symbol.section == elf.COMMON:
                self.common[k] = _up(at, max(symbol.value, 1))
                at = self.common[k] + symbol.size
        return at

    def _address(self, k: int) -> int:
        symbol = self.given.symbols[k]
        if symbol.section == elf.ABSOLUTE:
            return symbol.value
        if symbol.section == elf.COMMON:
            return self.common[k]
        if symbol.section not in self.at:
            raise LinkError(f"{symbol.name or 'a section'} is not part of the object")
        return self.at[symbol.section] + symbol.value

    def _fill(self, image: bytearray) -> None:
        """Write sections, stubs and the global offset table; note dynamic relocations."""
        for k, at in self.at.items():
            content = self.given.sections[k].content
            image[at : at + len(content)] = content
        size = r.STUB_BYTES[self.machine]
        for symbol, n in self.stubs.items():
            at = self.stubs_at + n * size
            image[at : at + size] = r.stub(self.machine, self._entry(symbol), at)
        for symbol in self.entries:
            self._note(self._entry(symbol), symbol, 0, r.ENTRY[self.machine])
        for k, one in self._used():
            if not self.given.sections[k].flags & elf.WRITE:
                self._refuse_absolute(k, one)
            self._relocate(image, self.at[k] + one.offset, one)

    def _refuse_absolute(self, k: int, one: elf.Relocation) -> None:
        """The loader writes no address into code and constants."""
        if one.kind == r.ABSOLUTE[self.machine]:
            raise LinkError(f"{self.given.sections[k].name} holds an address")

    def _entry(self, symbol: int) -> int:
        return self.got_at + 8 * self.entries[symbol]

    def _note(self, place: int, symbol: int, addend: int, kind: int) -> None:
        """A place that the loader fills with a symbol's address."""
        if symbol in self.numbers:
            self.dynamic.append((place, kind, self.numbers[symbol], addend))
        else:
            address = self._address(symbol) + addend
            self.dynamic.append((place, r.RELATIVE[self.machine], 0, address))

    def _relocate(self, image: bytearray, place: int, one: elf.Relocation) -> None:
        kind, symbol = one.kind, one.symbol
        if kind == r.ABSOLUTE[self.machine]:
            self._note(place, symbol, one.addend, kind)
            return
        if r.needs_entry(self.machine, kind):
            value = self._entry(symbol)
        elif symbol in self.stubs:
            value = self.stubs_at + r.STUB_BYTES[self.machine] * self.stubs[symbol]
        else:
            value = self._address(symbol)
        r.patch(self.machine, image, place, kind, value + one.addend, place)

    def _dynamic_section(self, names_size: int) -> bytes:
        rows = [(_NEEDED, at) for at in self.needed]
        rows += [
            (_HASH, self.hash_at),
            (_STRTAB, self.names_at),
            (_SYMTAB, self.symbols_at),
            (_STRSZ, names_size),
            (_SYMENT, elf.SYMBOL.size),
            (_RELA, self.relocations_at),
            (_RELASZ, elf.RELOCATION.size * self.relocation_count),
            (_RELAENT, elf.RELOCATION.size),
            (0, 0),
        ]
        return b"".join(struct.pack("<QQ", *row) for row in rows)

    def _symbol_rows(
        self, symbols: list[tuple[int, Symbol]]
    ) -> Iterable[tuple[int, int, int, int, int]]:
        imported = len(self.imported)
        for n, (name, symbol) in enumerate(symbols):
            if n < imported:
                yield name, _GLOBAL, elf.UNDEFINED, 0, 0
            else:
                number = self.given.symbols.index(symbol)
                yield name, _GLOBAL | symbol.info & 15, 1, self._address(number), symbol.size

    def _head(self, image: bytearray, end: int, data_at: int, stop: int, zeros: int) -> None:
        ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
        elf.HEADER.pack_into(
            image, 0, ident, elf.SHARED_OBJECT, self.machine, 1, 0, elf.HEADER.size, 0, 0,
            elf.HEADER.size, elf.PROGRAM.size, 4, elf.SECTION.size, 0, 0,
        )  # fmt: skip
        read, write, execute = 4, 2, 1
        size, dynamic = stop - data_at, (stop - self.dynamic_at, 8)
        rows = [
            (elf.LOAD, read | execute, 0, 0, 0, end, end, PAGE),
            (elf.LOAD, read | write, end, data_at, data_at, size, zeros - data_at, PAGE),
            (elf.DYNAMIC, read | write, end + self.dynamic_at - data_at, self.dynamic_at,
             self.dynamic_at, dynamic[0], dynamic[0], 8),
            (elf.STACK, read | write, 0, 0, 0, 0, 0, 16),
        ]  # fmt: skip
        for k, row in enumerate(rows):
            elf.PROGRAM.pack_into(image, elf.HEADER.size + k * elf.PROGRAM.size, *row)


def _up(value: int, align: int) -> int:
    return -(-value // align) * align
