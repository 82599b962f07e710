"""The bucket join's kernels as functions of dictionaries.

A table is a dictionary: bucket number to a list of entries (expiry, time, tag, row).  Records are
(time, tag, row), in 64 lists by partition.
"""

from __future__ import annotations


def bucket_of(partition, tag, bits):
    """The bucket of a key."""
    return partition << bits | tag % 2**bits


def prepare(parts, newest):
    """Each record's expiry: the largest time of its partition up to it; `newest` moves on."""
    expiries = []
    for p, part in enumerate(parts):
        for time, _, _ in part:
            newest[p] = max(newest[p], time)
            expiries.append(newest[p])
    return expiries


def build(table, parts, expiries, bits):
    """All records go to their buckets."""
    expiry = iter(expiries)
    for p, part in enumerate(parts):
        for time, tag, row in part:
            entry = (next(expiry), time, tag, row)
            table.setdefault(bucket_of(p, tag, bits), []).append(entry)


def probe(table, parts, bits, back, ahead, dead, bound, new, invalid_max):
    """Per partition its pairs (row, partner), each record's partners by falling row: those that are
    not dead, and those from row `new` on; and the buckets with more than `invalid_max` entries
    below `bound` that were looked at."""
    pairs, marked = [], set()
    for p, part in enumerate(parts):
        pairs.append([])
        for time, tag, row in part:
            bucket = bucket_of(p, tag, bits)
            entries = table.get(bucket, [])
            near = [e for e in entries if e[2] == tag and -back <= e[1] - time <= ahead]
            met = sorted((e[3] for e in near if e[0] >= dead or e[3] >= new), reverse=True)
            pairs[p] += [(row, other) for other in met]
            if sum(e[0] < bound for e in entries) > invalid_max:
                marked.add(bucket)
    return pairs, marked


def write(lanes):
    """Lanes' segments, lanes[i][pass][partition], as one list by (partition, pass, lane)."""
    return [
        pair for p in range(64) for which in (0, 1) for lane in lanes for pair in lane[which][p]
    ]


def clean(table, marked, bound):
    """Invalid entries of marked buckets go; how many."""
    gone = 0
    for bucket in marked:
        kept = [e for e in table.get(bucket, []) if e[0] >= bound]
        gone += len(table.get(bucket, [])) - len(kept)
        table[bucket] = kept
    return gone


def rebuild(table, bits, new_bits, bound):
    """The valid entries in a table of other buckets."""
    new = {}
    for bucket, entries in table.items():
        for e in entries:
            if e[0] >= bound:
                new.setdefault(bucket_of(bucket >> bits, e[2], new_bits), []).append(e)
    return new


def count(table, bound):
    """How many entries are valid."""
    return sum(e[0] >= bound for entries in table.values() for e in entries)


def live(table, bits, bound):
    """Each valid entry's row with its partition and tag."""
    return {
        e[3]: (bucket >> bits, e[2])
        for bucket, entries in table.items()
        for e in entries
        if e[0] >= bound
    }
