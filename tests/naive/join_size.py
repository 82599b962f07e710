"""What the kernels of `join_size` compute, said plainly: tables are {(side, bucket): rows}."""

from __future__ import annotations

from kernels.cpu.join_size import BITS, EVERY


def bucket_of(tag):
    """The bucket of a tag."""
    return (tag * 0x9E3779B1) % 2**32 >> (32 - BITS)


def tag_of(hash):
    """The tag of a hash."""
    return hash >> 58 << 26 | hash & (2**26 - 1)


def observe(table, left, right, first, weight):
    """Counts every EVERY-th tag; returns the rows of the other side met, times EVERY."""
    met = 0
    for side, tags in enumerate((left, right)):
        for tag in tags[first::EVERY]:
            met += table[1 - side, bucket_of(tag)]
            table[side, bucket_of(tag)] += weight
    return EVERY * met


def count(table, side, hashes):
    """Counts rows by their hashes."""
    for hash in hashes:
        table[side, bucket_of(tag_of(hash))] += 1


def fit(table, left, right, limit, chance, least):
    """Rows of both sides, taken in step, that make at most `limit` pairs; None: a null key."""
    taken, pairs = [0, 0], 0.0
    while taken != [len(left), len(right)]:
        i, j = taken
        side = 0 if j == len(right) or (i < len(left) and i * len(right) <= j * len(left)) else 1
        hash = (left, right)[side][taken[side]]
        if hash is not None:
            bucket = bucket_of(tag_of(hash))
            met = max(table[1 - side, bucket] - chance[side], least[side], 0.0)
            if i + j and pairs + met > limit:
                break
            pairs += met
            table[side, bucket] += 1
        taken[side] += 1
    return taken
