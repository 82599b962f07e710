"""What the kernels of a link's messages compute, said plainly."""

from __future__ import annotations

import struct
from itertools import pairwise

K, M = 0x9E3779B97F4A7C15, 2**64 - 1


def fmix64(x):
    """MurmurHash3's 64-bit finaliser."""
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & M
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & M
    return x ^ x >> 33


def step(h, word):
    """A sum with one more word."""
    h = (h ^ word) * K & M
    return h ^ h >> 29


def digest(body, seed):
    """The digest of bytes, a multiple of 8."""
    words = struct.unpack(f"<{len(body) // 8}Q", body)
    sums = [seed, seed ^ K, (seed + K) & M, (seed - K) & M]
    whole = len(words) // 4 * 4
    for i in range(whole):
        sums[i % 4] = step(sums[i % 4], words[i])
    for word in words[whole:]:
        sums[0] = step(sums[0], word)
    a, b, c, d = sums
    return fmix64(fmix64(fmix64(fmix64(a) ^ b) ^ c) ^ d ^ len(body))


def patch(body, seed):
    """The 16 digits of a body's digest."""
    return b"%016x" % digest(body, seed)


def encode(batch, rows, start, ends):
    """The rows of each message, as an Arrow batch."""
    edges = [start, *ends]
    return [batch.take(rows[a:b]) for a, b in pairwise(edges)]


def cut(sizes, buffer):
    """Where messages end that have reached `buffer` bytes."""
    ends, filled = [], 0
    for i, size in enumerate(sizes, 1):
        filled += size
        if filled >= buffer:
            ends.append(i)
            filled = 0
    return ends


def room(sizes, head, messages):
    """What the messages of rows of these sizes take at least."""
    return sum(sizes) + head * messages
