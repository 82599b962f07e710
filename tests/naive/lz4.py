"""The naive twin of kernels.cpu.lz4: plain Python over bytes."""

from __future__ import annotations

import ctypes
import struct


class Damaged(Exception):
    """Bytes that are no LZ4 frame, or one that is not supported."""


def take(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise Damaged
    return data[at : at + size]


def length_of(data: bytes, at: int, length: int) -> tuple[int, int]:
    """The length that begins in a token, and the place behind its bytes."""
    if length == 15:
        while True:
            more = take(data, at, 1)[0]
            at, length = at + 1, length + more
            if more != 255:
                break
    return length, at


def block(data: bytes, out: bytearray, room: int) -> None:
    at = 0
    while True:
        token = take(data, at, 1)[0]
        length, at = length_of(data, at + 1, token >> 4)
        out += take(data, at, length)
        at += length
        if len(out) > room:
            raise Damaged
        if at == len(data):
            return
        (distance,) = struct.unpack("<H", take(data, at, 2))
        length, at = length_of(data, at + 2, token & 15)
        if not 0 < distance <= len(out) or len(out) + length + 4 > room:
            raise Damaged
        for _ in range(length + 4):
            out.append(out[-distance])


def frame(data: bytes, room: int) -> bytes:
    if len(data) < 11 or data[:4] != b"\x04\x22\x4d\x18":
        raise Damaged
    flags = data[4]
    if flags >> 6 != 1 or flags & 1:
        raise Damaged
    at, out = 7 + (8 if flags & 8 else 0), bytearray()
    while True:
        (size,) = struct.unpack("<I", take(data, at, 4))
        at += 4
        if size == 0:
            break
        part = take(data, at, size & 0x7FFFFFFF)
        if size >> 31:
            out += part
        else:
            block(part, out, room)
        if len(out) > room:
            raise Damaged
        at += len(part) + (4 if flags & 16 else 0)
    if at + (4 if flags & 4 else 0) != len(data):
        raise Damaged
    return bytes(out)


def unpack(source: int, size: int, target: int, room: int) -> int:
    try:
        out = frame(ctypes.string_at(source, size), room)
    except Damaged:
        return -1
    ctypes.memmove(target, out, len(out))
    return len(out)
