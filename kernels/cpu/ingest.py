"""Rows on their way into a join: kept in the window's columns, hashed, and dealt to partitions.

What a beat brings on both sides is cut into parts, a range of each side's rows, which go through
two rounds of a team (`kernels.cpu.team`).  In the first a part's columns are copied into the
window's store, and it is counted how many of its rows fall into each of the 64 partitions; then it
is known where each part's records go, partition by partition and within one range by range; in the
second they are written.  So the records are the same whatever the number of threads.

A range goes by blocks of 512 rows, so that what one step leaves in the first cache is there for the
next.  Where the key is one number the second round hashes it again: that takes 0.4 ns a row, less
than to write 8 bytes for each and to read them again from a cache further away.

Records and partitions are those of `kernels.cpu.partition`, hashes those of `kernels.cpu.hash`.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu import hash as hashes
from kernels.cpu import mem, team
from kernels.cpu.partition import PARTITIONS, RECORD_BYTES, tag_of
from kernels.cpu.rings import get, put
from kernels.cpu.team import CALL_ARGUMENT, CALL_FIELDS, CALL_FUNCTION
from kernels.registry import device, kernel, task

BLOCK = 512
ROW_NS = 8
"""What a thread takes for a row, about; it says how many threads some rows are worth."""
(ROWS, KEYS, KEY_COLUMNS, VALID, TIMES, FIRST_ROW, COPIES, COPIED, RECORDS, KEPT) = range(10)
SIDE_FIELDS = 16
"""What is said of a side (int64[16]): its rows; the address of the table of key columns, and how
many there are; the address of a byte a row, 0 where a key is null (0: none is); the address of the
times; the first row's number; the address of the table of copies, and how many there are; where the
records go; where hashes are kept from one round to the next (0: they are made again)."""
KEY_CODE, KEY_VALUES, KEY_OFFSETS = range(3)
KEY_FIELDS = 3
"""A key column: its code (see `hash.column_at`), and the addresses of values and offsets."""
COPY_TO, COPY_FROM, COPY_WIDTH = range(3)
COPY_FIELDS = 3
"""A copy: to which address, from which, bytes a row."""
PART_SIDES, START, STOP, COUNTS = 0, 1, 3, 8
HASHED = COUNTS + 2 * PARTITIONS
FOLLOWING = HASHED + BLOCK
PART_FIELDS = FOLLOWING + BLOCK
"""A part: the address of both sides; for each side the range's start, for each its stop;
for each how many of the range's rows are in each partition, then the addresses of their next
records; a block's hashes, and its next key column's."""


@device
def hash_block(side: int, at: int, count: int, to: int, following: int) -> None:
    """Hash the keys of `count` rows from row `at` on."""
    keys = get(side, KEYS)
    for k in range(get(side, KEY_COLUMNS)):
        key, into = keys + 8 * KEY_FIELDS * k, to if k == 0 else following
        hashes.column_at(
            get(key, KEY_CODE), get(key, KEY_VALUES), get(key, KEY_OFFSETS), at, at + count, into
        )
        if k:
            hashes.combine_at(following, 0, count, to)


@device
def count_side(side: int, start: int, stop: int, counts: int, hashed: int) -> None:
    """Copy a range's rows into the store, and count them by partition."""
    copies, valid, kept = get(side, COPIES), get(side, VALID), get(side, KEPT)
    for p in range(PARTITIONS):
        put(counts, p, 0)
    for at in range(start, stop, BLOCK):
        rows = min(BLOCK, stop - at)
        for copy in range(copies, copies + 8 * COPY_FIELDS * get(side, COPIED), 8 * COPY_FIELDS):
            width = get(copy, COPY_WIDTH)
            mem.copy_bytes(
                get(copy, COPY_TO) + width * at, get(copy, COPY_FROM) + width * at, width * rows
            )
        to = kept + 8 * at if kept else hashed
        hash_block(side, at, rows, to, hashed + 8 * BLOCK)
        for i in range(rows):
            one = 1 if valid == 0 else np.int64(mem.load_u8(valid + at + i))
            place = counts + 8 * np.int64(mem.load_u64(to + 8 * i) >> np.uint64(58))
            mem.store_i64(place, mem.load_i64(place) + one)


@device
def place_side(side: int, start: int, stop: int, cursors: int, hashed: int) -> None:
    """Write a range's records."""
    times, valid, kept = get(side, TIMES), get(side, VALID), get(side, KEPT)
    number = get(side, FIRST_ROW)
    for at in range(start, stop, BLOCK):
        rows = min(BLOCK, stop - at)
        to = kept + 8 * at if kept else hashed
        if kept == 0:
            hash_block(side, at, rows, to, hashed + 8 * BLOCK)
        for i in range(rows):
            if valid != 0 and mem.load_u8(valid + at + i) == 0:
                continue
            key_hash = mem.load_u64(to + 8 * i)
            place = cursors + 8 * np.int64(key_hash >> np.uint64(58))
            record = mem.load_i64(place)
            mem.store_i64(record, mem.load_i64(times + 8 * (at + i)))
            row = np.uint64(number + at + i) << np.uint64(32)
            mem.store_u64(record + 8, tag_of(key_hash) | row)
            mem.store_i64(place, record + RECORD_BYTES)


@task(reference="tests.naive.partition.count")
def count_part(part: int) -> int:
    """The first round of a part."""
    for k in range(2):
        side, counts = get(part, PART_SIDES) + 8 * SIDE_FIELDS * k, COUNTS + PARTITIONS * k
        start, stop = get(part, START + k), get(part, STOP + k)
        count_side(side, start, stop, part + 8 * counts, part + 8 * HASHED)
    return 0


@task(reference="tests.naive.partition.scatter")
def place_part(part: int) -> int:
    """The second."""
    for k in range(2):
        side, cursors = get(part, PART_SIDES) + 8 * SIDE_FIELDS * k, COUNTS + PARTITIONS * k
        start, stop = get(part, START + k), get(part, STOP + k)
        place_side(side, start, stop, part + 8 * cursors, part + 8 * HASHED)
    return 0


@device
def point_records(sides: int, parts: int, count: int, counts: int) -> None:
    """From each part's counts, where its records go; the sums to `counts` (int64[2, 64])."""
    for k in range(2):
        record = get(sides + 8 * SIDE_FIELDS * k, RECORDS)
        for p in range(PARTITIONS):
            total = 0
            for t in range(count):
                place = parts + 8 * (PART_FIELDS * t + COUNTS + PARTITIONS * k + p)
                rows = mem.load_i64(place)
                mem.store_i64(place, record)
                record += RECORD_BYTES * rows
                total += rows
            put(counts, PARTITIONS * k + p, total)


@kernel(
    "void(int64, int64, int64, int64, int64, int64, int64)",
    reference="tests.naive.partition.scatter",
)
def arrive(
    seats: int, sides: int, parts: int, calls: int, counts: int, counting: int, placing: int
) -> None:
    """Take in both `sides` (int64[2, SIDE_FIELDS]) with as many of the team's threads as are worth
    it; fills `counts` (int64[2, 64]).  `parts` (int64[n, PART_FIELDS]) and `calls` have
    `team.SHARES` rows for each thread.

    All are addresses, `counting` and `placing` those of `count_part` and `place_part`.
    """
    rows = get(sides, ROWS) + get(sides, SIDE_FIELDS + ROWS)
    threads = team.threads_for(seats, ROW_NS * rows, team.awake(seats), 1)
    count = team.SHARES * threads if threads > 1 else 1
    for t in range(count):
        part, call = parts + 8 * PART_FIELDS * t, calls + 8 * CALL_FIELDS * t
        put(part, PART_SIDES, sides)
        for k in range(2):
            rows = get(sides, SIDE_FIELDS * k + ROWS)
            put(part, START + k, team.share(rows, threads, t))
            put(part, STOP + k, team.share(rows, threads, t + 1))
        put(call, CALL_FUNCTION, counting)
        put(call, CALL_ARGUMENT, part)
    team.run_all(seats, calls, count, threads)
    point_records(sides, parts, count, counts)
    for t in range(count):
        put(calls + 8 * CALL_FIELDS * t, CALL_FUNCTION, placing)
    team.run_all(seats, calls, count, threads)
    team.leave_off(seats)
