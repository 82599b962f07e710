"""The hashes of `kernels.cpu.hash`, in Python integers, written from its docstring."""

from __future__ import annotations

import math
import struct

M32, M64 = 2**32 - 1, 2**64 - 1
K = 0x9E3779B97F4A7C15
NULL_HASH = 0x5BD1E995C2B2AE35


def fmix32(x):
    x ^= x >> 16
    x = x * 0x85EBCA6B & M32
    x ^= x >> 13
    x = x * 0xC2B2AE35 & M32
    x ^= x >> 16
    return x << 32 | x


def fmix64(x):
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & M64
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & M64
    return x ^ x >> 33


def hash_fixed(width, value):
    """Hash of an integer, bool or timestamp of `width` bytes."""
    word = int(value) & (2 ** (8 * width) - 1)
    return fmix64(word) if width == 8 else fmix32(word)


def hash_float(width, value):
    """Hash of a float of `width` bytes."""
    value = math.nan if math.isnan(value) else value + 0.0
    code, word = ("<d", "<Q") if width == 8 else ("<f", "<I")
    return hash_fixed(width, struct.unpack(word, struct.pack(code, value))[0])


def hash_variable(value):
    """Hash of bytes."""
    h = (len(value) + 1) * K & M64
    words = [value[i : i + 8] for i in range(0, max(0, len(value) - 8), 8)]
    if value:
        words.append(value[-8:])
    for word in words:
        h = (h ^ int.from_bytes(word, "little")) * K & M64
        h ^= h >> 29
    return fmix64(h)


def hash_nulls(hashes, valid):
    """The hashes with NULL_HASH where a value is null."""
    return [h if v else NULL_HASH for h, v in zip(hashes, valid, strict=True)]


def hash_combine(hashes, column):
    """The hashes after one more column."""
    return [fmix64((h * K + c) & M64) for h, c in zip(hashes, column, strict=True)]


def all_valid(masks):
    """1 where every mask is 1."""
    return [int(all(row)) for row in zip(*masks, strict=True)]


def hash_value(type_name, width, value):
    """Hash of one Python value of a type; None is null."""
    if value is None:
        return NULL_HASH
    if type_name.startswith("float"):
        return hash_float(width, value)
    if width == 0:
        return hash_variable(value.encode() if isinstance(value, str) else value)
    return hash_fixed(width, value)
