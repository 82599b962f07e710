"""Partitioning in plain Python: the input of `kernels.cpu.shuffle.source`, and its partitions."""

from __future__ import annotations

import struct
from collections import Counter

from tests.naive import hash as naive_hash

M32 = 0xFFFFFFFF
K, L = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03


def fmix32(x):
    """MurmurHash3's finaliser, once."""
    return naive_hash.fmix32(x) & M32


def key_of(number, seed, table=()):
    """The key of a generated tuple."""
    key = fmix32((number * 0x9E3779B1 + seed) % 2**32)
    return int(table[key % len(table)]) if len(table) else key


def data_of(number, size):
    """The data of a generated tuple."""
    word, out = (number + 1) * K, b""
    for _ in range(-(-size // 8)):
        word += L
        out += struct.pack("<Q", word % 2**64)
    return out[:size]


def generated(source, table=()):
    """(key, row as it lies in a page) of each tuple of a generator, in order."""
    low, high = source.data_bytes
    for number in range(source.tuples):
        size = source.tuple_bytes - 4
        if source.tuple_bytes == 0:
            size = low + (fmix32(number) * (high - low + 1) >> 32)
        key, data = key_of(number, source.seed, table), data_of(number, size)
        length = struct.pack("<I", size) if source.layout == "slotted" else b""
        yield key, struct.pack("<I", key) + length + data


def partitioned(source, partitions, function, table=()):
    """A multiset of (slot key, row) for each partition."""
    found = [Counter() for _ in range(partitions)]
    for key, row in generated(source, table):
        mixed = fmix32(key)
        slot = mixed if source.layout == "slotted" else None
        found[(mixed if function == "hash" else key) % partitions][slot, row] += 1
    return found
