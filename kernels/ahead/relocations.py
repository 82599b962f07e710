"""Relocations of code that LLVM emits position-independent: how each patches its place.

S is the symbol's address, A the addend, P the place; a `GOT` relocation takes the address of the
symbol's entry in the global offset table instead of S.
"""

from __future__ import annotations

import struct

from kernels.ahead.elf import AARCH64, X86_64, LinkError

ABSOLUTE = {X86_64: 1, AARCH64: 257}
"""S + A, 64 bits: by machine."""
RELATIVE = {X86_64: 8, AARCH64: 1027}
ENTRY = {X86_64: 6, AARCH64: 1025}
"""Dynamic relocations: the base plus the addend; the address of a symbol."""
_GOT = {X86_64: {9, 41, 42}, AARCH64: {311, 312}}
_STUB = {X86_64: {2, 4}, AARCH64: {282, 283}}
STUB_BYTES = {X86_64: 8, AARCH64: 16}
_LOW_SHIFTS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}
"""aarch64: the low 12 bits of an address, in units of the access."""


def needs_entry(machine: int, kind: int) -> bool:
    """Whether it takes the address of an entry of the global offset table."""
    return kind in _GOT[machine]


def may_call_stub(machine: int, kind: int) -> bool:
    """Whether it may refer to a stub that jumps to the symbol."""
    return kind in _STUB[machine]


def patch(machine: int, image: bytearray, at: int, kind: int, value: int, place: int) -> None:
    """Write `value` (S + A) at an offset of the image, whose address is `place`.  Raises LinkError
    for an unknown kind or a value that does not fit."""
    if machine == X86_64:
        _patch_x86_64(image, at, kind, value, place)
    else:
        _patch_aarch64(image, at, kind, value, place)


def stub(machine: int, entry: int, place: int) -> bytes:
    """A jump to the address in an entry of the global offset table."""
    if machine == X86_64:
        return b"\xff\x25" + struct.pack("<i", entry - place - 6) + b"\x66\x90"
    code = bytearray(struct.pack("<4I", 0x90000010, 0xF9400211, 0xD61F0220, 0xD503201F))
    _patch_aarch64(code, 0, 275, entry, place)
    _patch_aarch64(code, 4, 286, entry, place + 4)
    return bytes(code)


def _patch_x86_64(image: bytearray, at: int, kind: int, value: int, place: int) -> None:
    if kind in (2, 4, 9, 41, 42):
        _put(image, at, value - place, 4)
    elif kind == 24:
        _put(image, at, value - place, 8)
    else:
        raise LinkError(f"relocation {kind} of x86-64")


def _patch_aarch64(image: bytearray, at: int, kind: int, value: int, place: int) -> None:
    if kind in (260, 261):
        _put(image, at, value - place, 8 if kind == 260 else 4)
        return
    if kind in (275, 311):
        pages = _signed((value >> 12) - (place >> 12), 21)
        field = (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind == 274:
        near = _signed(value - place, 21)
        field = (near & 3) << 29 | (near >> 2 & 0x7FFFF) << 5
    elif kind in (282, 283):
        field = _signed((value - place) >> 2, 26) & 0x3FFFFFF
    elif kind in _LOW_SHIFTS:
        field = ((value & 0xFFF) >> _LOW_SHIFTS[kind]) << 10
    else:
        raise LinkError(f"relocation {kind} of aarch64")
    (word,) = struct.unpack_from("<I", image, at)
    struct.pack_into("<I", image, at, word | field)


def _put(image: bytearray, at: int, value: int, size: int) -> None:
    _signed(value, 8 * size)
    image[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _signed(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise LinkError("an address is out of reach")
    return value
