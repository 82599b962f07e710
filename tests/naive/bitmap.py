"""Bitmaps as lists of set bits."""

from __future__ import annotations

from tests.naive.chain import same


def count(bits):
    """How many bits are set in rows of words."""
    return sum(bin(int(word)).count("1") for row in bits for word in row)


def decode(bits, mine, met, base, met_base):
    """The pairs of rows that a bitmap says, record by record."""
    return [
        ((int(mine[r]) - base) % 2**32, (int(met[32 * w + b]) - met_base) % 2**32)
        for r, row in enumerate(bits)
        for w, word in enumerate(row)
        for b in range(32)
        if int(word) >> b & 1
    ]


def keep_equal(keys_left, keys_right, pairs):
    """The pairs whose keys (tuples of values) are equal."""
    return [(r, s) for r, s in pairs if same(keys_left[r], keys_right[s])]
