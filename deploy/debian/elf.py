"""Dynamic symbols of ELF files: the versions and libraries that they need, on any machine.

Reads 64-bit little-endian shared objects, which x86-64 and AArch64 have.  The tables are those of
the System V ABI and of the GNU extensions (`.gnu.version`, `.gnu.version_r`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MACHINES = {"amd64": 62, "arm64": 183}
"""`e_machine` of an architecture by Debian's name."""
DYNAMIC, DYNSYM, VERSYM, VERNEED = 6, 11, 0x6FFFFFFF, 0x6FFFFFFE
NEEDED = 1
"""`d_tag` of a library that an object needs."""
INDEX = 0x7FFF
"""The bits of a symbol's version that number it; the last bit hides it."""

LIMITS = {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
"""The newest version of each family that Ubuntu 22.04 (JetPack 6) has; Debian 12 is newer."""
OF_THE_SYSTEM = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libutil|libgcc_s|libstdc\+\+|libz|ld-linux-[\w-]+)\.so\.\d+"
)
"""Libraries that every supported system has: those of libc6, libgcc-s1, libstdc++6 and zlib1g."""


class NotELF(ValueError):
    """Bytes that are no 64-bit little-endian ELF file, or one whose tables are cut off."""


@dataclass(frozen=True)
class Needs:
    """What a shared object needs of others."""

    machine: int
    libraries: frozenset[str]
    symbols: frozenset[tuple[str, str]]
    """(symbol, version), for instance ("memcpy", "GLIBC_2.14")."""


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    number: int


def needs(data: bytes) -> Needs:
    """What the object needs.  Raises NotELF."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotELF("no 64-bit little-endian ELF file")
    try:
        return _needs(data)
    except (struct.error, IndexError, ValueError, OverflowError) as problem:
        raise NotELF(f"damaged tables: {problem}") from problem


def _needs(data: bytes) -> Needs:
    (machine,) = struct.unpack_from("<H", data, 18)
    sections = list(_sections(data))

    def strings(of: _Section, offset: int) -> str:
        begin = sections[of.link].offset + offset
        return data[begin : data.index(b"\0", begin)].decode()

    libraries, names, symbols = set(), {}, set()
    for section in sections:
        if section.kind == DYNAMIC:
            for tag, value in struct.iter_unpack("<QQ", _bytes(data, section)):
                if tag == NEEDED:
                    libraries.add(strings(section, value))
        elif section.kind == VERNEED:
            names = {index: strings(section, name) for index, name in _versions(data, section)}
    for section in sections:
        if section.kind == VERSYM:
            table = sections[section.link]
            versions = struct.iter_unpack("<H", _bytes(data, section))
            entries = struct.iter_unpack("<IBBHQQ", _bytes(data, table))
            for (version,), (name, *_) in zip(versions, entries, strict=True):
                if version & INDEX in names:
                    symbols.add((strings(table, name), names[version & INDEX]))
    return Needs(machine, frozenset(libraries), frozenset(symbols))


def _bytes(data: bytes, section: _Section) -> bytes:
    return data[section.offset : section.offset + section.size]


def _sections(data: bytes) -> Iterator[_Section]:
    (at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    for number in range(count):
        fields = struct.unpack_from("<IIQQQQIIQQ", data, at + number * size)
        yield _Section(fields[1], fields[4], fields[5], fields[6], number)


def _versions(data: bytes, section: _Section) -> Iterator[tuple[int, int]]:
    """(index, offset of the name) of all needed versions."""
    at, more = section.offset, True
    while more:
        _, count, _, first, following = struct.unpack_from("<HHIII", data, at)
        entry = at + first
        for _ in range(count):
            _, _, index, name, step = struct.unpack_from("<IHHII", data, entry)
            yield index & INDEX, name
            entry += step
        at, more = at + following, following != 0


def version(text: str) -> tuple[str, tuple[int, ...]]:
    """("GLIBC", (2, 35)) of "GLIBC_2.35"; ("GLIBC", ()) of "GLIBC_PRIVATE"."""
    family, _, numbers = text.partition("_")
    return family, tuple(map(int, numbers.split("."))) if numbers[:1].isdigit() else ()


def faults(found: Needs, architecture: str, bundled: Iterable[str]) -> Iterator[str]:
    """Why an object would not load on a supported system; nothing where it would."""
    if found.machine != MACHINES[architecture]:
        yield f"machine {found.machine}, not {architecture}"
    for library in sorted(found.libraries - set(bundled)):
        if not OF_THE_SYSTEM.fullmatch(library):
            yield f"needs {library}, which is neither bundled nor of every system"
    for symbol, text in sorted(found.symbols):
        family, numbers = version(text)
        limit = LIMITS.get(family)
        if limit is not None and (not numbers or numbers > limit):
            yield f"{symbol} needs {text}"


def newest(every: Iterable[Needs], family: str) -> tuple[int, ...]:
    """The newest version of a family that any of the objects needs; () where none does."""
    found = (version(text) for needed in every for _, text in needed.symbols)
    return max((numbers for name, numbers in found if name == family), default=())
