"""The naive twin of kernels.cpu.lz4_pack: plain Python over bytes."""

from __future__ import annotations

import ctypes
import struct

HEADS = {
    64 << 10: b"\x60\x40\x82", 256 << 10: b"\x60\x50\xfb", 1 << 20: b"\x60\x60\x51",
    4 << 20: b"\x60\x70\x73",
}  # fmt: skip


def place_of(data: bytes) -> int:
    return (int.from_bytes(data, "little") * 2654435761 & 0xFFFFFFFF) >> 20


def long(length: int) -> bytes:
    return b"\xff" * (length // 255) + bytes([length % 255])


def sequence(literals: bytes, distance: int = 0, match: int = 0) -> bytes:
    out = bytes([min(len(literals), 15) << 4 | min(match, 15)])
    out += (long(len(literals) - 15) if len(literals) >= 15 else b"") + literals
    if distance:
        out += struct.pack("<H", distance) + (long(match - 15) if match >= 15 else b"")
    return out


def block(data: bytes, at: int, end: int, room: int, table: dict[int, int]) -> bytes | None:
    """The block, None where it does not fit into `room`; `table`: last places by hash."""
    low, anchor, last, out, misses = at, at, end - 12, b"", 64
    if end - at > 12:
        table[place_of(data[at : at + 4])] = at
        at += 1
    while at <= last:
        four, place = data[at : at + 4], place_of(data[at : at + 4])
        found = table.get(place, -1)
        table[place] = at
        if found < low or at - found > 65_535 or data[found : found + 4] != four:
            at += misses >> 6
            misses += 1
            continue
        while at > anchor and found > low and data[at - 1] == data[found - 1]:
            at, found = at - 1, found - 1
        match = 0
        while at + 4 + match < end - 5 and data[at + 4 + match] == data[found + 4 + match]:
            match += 1
        literals = at - anchor
        if len(out) + 1 + literals + literals // 255 + 1 + 2 + match // 255 + 1 + 12 > room:
            return None
        out += sequence(data[anchor:at], at - found, match)
        at += 4 + match
        anchor, misses = at, 64
        if at <= last:
            table[place_of(data[at - 2 : at + 2])] = at - 2
    literals = end - anchor
    if len(out) + 1 + literals + literals // 255 + 1 > room:
        return None
    return out + sequence(data[anchor:end])


def frame(data: bytes, at: int, size: int, room: int, table: dict[int, int]) -> bytes | None:
    if room < 15:
        return None
    most = next((m for m in HEADS if size <= m), 4 << 20)
    out, end = b"\x04\x22\x4d\x18" + HEADS[most], at + size
    while at < end:
        part = min(most, end - at)
        left = room - 4 - len(out)
        if left < 4:
            return None
        packed = block(data, at, at + part, min(part - 1, left - 4), table)
        if packed is None:
            if part > left - 4:
                return None
            out += struct.pack("<I", part | 1 << 31) + data[at : at + part]
        else:
            out += struct.pack("<I", len(packed)) + packed
        at += part
    return out + bytes(4)


def buffers(body: bytes, entries: list[tuple[int, int]]) -> tuple[bytes, list[tuple[int, int]]]:
    out, made, table = b"", [], dict[int, int]()
    for at, size in entries:
        start = len(out)
        if size:
            packed = frame(body, at, size, size - 1, table)
            if packed is None:
                out += b"\xff" * 8 + body[at : at + size]
            else:
                out += struct.pack("<q", size) + packed
        made.append((start, len(out) - start))
        out += bytes(-len(out) % 8)
    return out, made


def pack_buffers(body: int, entries: int, count: int, target: int, made: int, table: object) -> int:
    places = list(struct.iter_unpack("<qq", ctypes.string_at(entries, 16 * count)))
    data = ctypes.string_at(body, max((at + size for at, size in places), default=0))
    out, own = buffers(data, places)
    ctypes.memmove(target, out, len(out))
    ctypes.memmove(made, b"".join(struct.pack("<qq", *one) for one in own), 16 * count)
    return len(out)
