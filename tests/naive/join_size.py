"""What the kernels of `join_size` compute, said plainly: tables are {(column, cell): rows}."""

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


def counted(table, bits, side, tag, home, slices):
    """Rows of the side other than `side` that a record meets."""
    first = home - side * (slices - 1)
    return sum(
        table[column, cell_of(tag, first + i, bits)]
        for i in range(slices) for column in (2 - 2 * side, 3 - 2 * side)
    )  # fmt: skip


def observe(table, bits, columns, before, shift, slices, records, weight):
    """Counts the records (time, tag) of both sides, by partition; returns how many rows they
    meet."""
    met = 0
    for part in range(64):
        for side, offset in enumerate((before, 0)):
            for time, tag in records[side]:
                if tag >> 26 == part:
                    home = home_of(time, offset, shift)
                    met += counted(table, bits, side, tag, home, slices)
                    table[columns[side], cell_of(tag, home, bits)] += weight
    return met


def count(table, bits, column, offset, shift, rows):
    """Counts rows (hash, time)."""
    for hash, time in rows:
        table[column, cell_of(tag_of(hash), home_of(time, offset, shift), bits)] += 1


def forget(table, column):
    """Sets a column to 0."""
    for place in [place for place in table if place[0] == column]:
        del table[place]


def fit(table, bits, columns, before, shift, slices, rows, limit):
    """Rows (hash, time) of both sides, taken in step, that make at most `limit` pairs; a hash of
    None: a null key."""
    (left, right), taken, pairs = rows, [0, 0], 0
    while taken != [len(left), len(right)]:
        i, j = taken
        side = 0 if j == len(right) or (i < len(left) and i * len(right) <= j * len(left)) else 1
        hash, time = rows[side][taken[side]]
        if hash is not None:
            home, tag = home_of(time, (before, 0)[side], shift), tag_of(hash)
            met = counted(table, bits, side, tag, home, slices)
            if i + j and pairs + met > limit:
                break
            pairs += met
            table[columns[side], cell_of(tag, home, bits)] += 1
        taken[side] += 1
    return taken
