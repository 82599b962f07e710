"""Ingestion of a beat's rows: stored in the window's columns, hashed, and partitioned.

The rows of both sides are cut into parts, which go through two rounds of a team
(`kernels.cpu.team`).  Round one copies a part's columns into the store and counts its rows in each
of the 64 partitions.  A prefix sum then places each part's records, partition by partition and
within one part by part.  Round two writes them.  Records are the same for any number of threads.

A part goes by blocks of 512 rows, which stay in the first-level cache between steps.  A key that is
one number is hashed again in round two, which takes less time than to store and load the hashes.

Records and partitions are those of `kernels.cpu.partition`, hashes those of `kernels.cpu.hash`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.cpu import hash as hashes
from kernels.cpu import mem, team
from kernels.cpu.partition import PARTITIONS, RECORD_BYTES, tag_of
from kernels.cpu.records import ADDRESS, I64, field, get, put, words
from kernels.cpu.team import CALL, CALL_FIELDS
from kernels.registry import device, kernel, task

BLOCK = 512
ROW_NS = 8
"""Approximate time of a row; decides how many threads some rows are worth."""


class SideTable(NamedTuple):
    """A side's rows of a beat."""

    rows: I64 = field("their number")
    keys: ADDRESS = field("table of key columns: a Key each")
    key_columns: I64 = field("number of key columns")
    valid: ADDRESS = field("a byte a row, 0 where a key is null; 0: no key is null")
    times: ADDRESS = field("int64 event times")
    first_row: I64 = field("number of the first row")
    copies: ADDRESS = field("table of columns to copy: a Copy each")
    copied: I64 = field("number of columns to copy")
    records: ADDRESS = field("where the records are written")
    kept: ADDRESS = field("where hashes are kept between rounds; 0: they are computed again")


class Key(NamedTuple):
    """A key column."""

    code: I64 = field("its type, see `hash.column_at`")
    values: ADDRESS = field("its values")
    offsets: ADDRESS = field("its offsets, of variable-size values")


class Copy(NamedTuple):
    """A column to copy into the store."""

    target: ADDRESS = field("where to")
    source: ADDRESS = field("where from")
    width: I64 = field("bytes a row")


SIDE, KEY, COPY = words(SideTable), words(Key), words(Copy)
SIDE_FIELDS, KEY_FIELDS, COPY_FIELDS = 16, 3, 3
PART_SIDES, START, STOP, COUNTS = 0, 1, 3, 8
HASHED = COUNTS + 2 * PARTITIONS
FOLLOWING = HASHED + BLOCK
PART_FIELDS = FOLLOWING + BLOCK
"""A part, in int64s: the address of both sides; the range's start and then its stop, for each side;
for each side the rows of each partition, later the addresses of their next records; a block's
hashes, and those of its next key column."""


@device
def hash_block(side: int, at: int, count: int, to: int, following: int) -> None:
    """Hash the keys of `count` rows from row `at` on."""
    keys = get(side, SIDE.keys)
    for k in range(get(side, SIDE.key_columns)):
        key, into = keys + 8 * KEY_FIELDS * k, to if k == 0 else following
        hashes.column_at(
            get(key, KEY.code), get(key, KEY.values), get(key, KEY.offsets), at, at + count, into
        )
        if k:
            hashes.combine_at(following, 0, count, to)


@device
def count_side(side: int, start: int, stop: int, counts: int, hashed: int) -> None:
    """Copy a range's rows into the store, and count them by partition."""
    copies, valid, kept = get(side, SIDE.copies), get(side, SIDE.valid), get(side, SIDE.kept)
    for p in range(PARTITIONS):
        put(counts, p, 0)
    for at in range(start, stop, BLOCK):
        rows = min(BLOCK, stop - at)
        for k in range(get(side, SIDE.copied)):
            copy = copies + 8 * COPY_FIELDS * k
            width = get(copy, COPY.width)
            to, source = get(copy, COPY.target) + width * at, get(copy, COPY.source) + width * at
            mem.copy_bytes(to, source, width * rows)
        to = kept + 8 * at if kept else hashed
        hash_block(side, at, rows, to, hashed + 8 * BLOCK)
        for i in range(rows):
            one = 1 if valid == 0 else np.int64(mem.load_u8(valid + at + i))
            place = counts + 8 * np.int64(mem.load_u64(to + 8 * i) >> np.uint64(58))
            mem.store_i64(place, mem.load_i64(place) + one)


@device
def place_side(side: int, start: int, stop: int, cursors: int, hashed: int) -> None:
    """Write a range's records."""
    times, valid, kept = get(side, SIDE.times), get(side, SIDE.valid), get(side, SIDE.kept)
    number = get(side, SIDE.first_row)
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
        record = get(sides + 8 * SIDE_FIELDS * k, SIDE.records)
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
    rows = get(sides, SIDE.rows) + get(sides, SIDE_FIELDS + SIDE.rows)
    threads = team.threads_for(seats, ROW_NS * rows, team.awake(seats), 1)
    count = team.SHARES * threads if threads > 1 else 1
    for t in range(count):
        part, call = parts + 8 * PART_FIELDS * t, calls + 8 * CALL_FIELDS * t
        put(part, PART_SIDES, sides)
        for k in range(2):
            rows = get(sides, SIDE_FIELDS * k + SIDE.rows)
            put(part, START + k, team.share(rows, threads, t))
            put(part, STOP + k, team.share(rows, threads, t + 1))
        put(call, CALL.function, counting)
        put(call, CALL.argument, part)
    team.run_all(seats, calls, count, threads)
    point_records(sides, parts, count, counts)
    for t in range(count):
        put(calls + 8 * CALL_FIELDS * t, CALL.function, placing)
    team.run_all(seats, calls, count, threads)
    team.leave_off(seats)
