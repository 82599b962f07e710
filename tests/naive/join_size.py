"""What the kernels of `join_size` compute, said plainly.

Tables are {(side, cell): rows}, logs are lists of (tag, home).
"""

from __future__ import annotations


def home_of(time, offset, shift):
    """The home of a record: the slice of its time less the offset."""
    return max(time - offset, -(2**63)) // 2**shift


def tag_of(hash):
    """The tag of a hash."""
    return hash >> 58 << 26 | hash & (2**26 - 1)


def cell_of(tag, home, bits):
    """The cell of a tag and a home."""
    return ((tag >> (32 - bits)) + home) % 2**bits


def met_at(table, bits, side, tag, home, slices):
    """Rows of the side other than `side` that a record meets."""
    first = home - side * (slices - 1)
    return sum(table[1 - side, cell_of(tag, first + i, bits)] for i in range(slices))


def gaps_of(state, gaps):
    """Distances from one counted record to the next: 64-bit xorshift, its low bits and 1."""
    while True:
        state ^= state << 13 & 2**64 - 1
        state ^= state >> 7
        state ^= state << 17 & 2**64 - 1
        yield 1 + (state & gaps)


def observe(table, logs, bits, before, shift, slices, records, distances=None):
    """Counts the records (time, tag) of both sides, by partition: all of them, or at such
    distances.  Returns how many rows they meet."""
    met, skip = 0, [0, 0]
    for part in range(64):
        for side, offset in enumerate((before, 0)):
            mine = [r for r in records[side] if r[1] >> 26 == part]
            while skip[side] < len(mine):
                time, tag = mine[skip[side]]
                home = home_of(time, offset, shift)
                met += met_at(table, bits, side, tag, home, slices)
                table[side, cell_of(tag, home, bits)] += 1
                logs[side].append((tag, home % 2**32))
                skip[side] += next(distances) if distances else 1
            skip[side] -= len(mine)
    return met


def count(table, log, bits, side, offset, shift, rows, distances=None):
    """Counts rows (hash, time)."""
    at = 0
    while at < len(rows):
        hash, time = rows[at]
        log.append((tag_of(hash), home_of(time, offset, shift) % 2**32))
        table[side, cell_of(*log[-1], bits)] += 1
        at += next(distances) if distances else 1


def recount(table, bits, side, log, weight):
    """Puts the rows of a log in, or takes them out."""
    for tag, home in log:
        table[side, cell_of(tag, home, bits)] += weight


def fit(table, logs, bits, before, shift, slices, rows, limit):
    """Rows (hash, time) of both sides, taken in step, that make at most `limit` pairs; a hash of
    None: a null key."""
    (left, right), taken, pairs = rows, [0, 0], 0
    while taken != [len(left), len(right)]:
        i, j = taken
        side = 0 if j == len(right) or (i < len(left) and i * len(right) <= j * len(left)) else 1
        hash, time = rows[side][taken[side]]
        if hash is not None:
            home, tag = home_of(time, (before, 0)[side], shift), tag_of(hash)
            met = met_at(table, bits, side, tag, home, slices)
            if i + j and pairs + met > limit:
                break
            pairs += met
            table[side, cell_of(tag, home, bits)] += 1
            logs[side].append((tag, home % 2**32))
        taken[side] += 1
    return taken
