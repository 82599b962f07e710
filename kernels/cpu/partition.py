"""Radix partitioning of a batch by key hash: 64 logical partitions, arrival order kept inside each.

A record is what the join's state needs of a row, 16 bytes:

    int64 time (µs) | uint32 tag | uint32 row number

The partition is the hash's top 6 bits, and so are the top 6 of the tag; its others are the hash's
low 26.  (For keys of up to 32 bits that is the low half of the hash.)  Rows whose key is null
(`valid` 0) take part in nothing and get no record.  Two passes: `count` makes a histogram of a
range of rows, `scatter` writes that range's records at the cursors that the caller made of all
histograms: partition by partition, and within one range by range, so that the result is the same
however many ranges there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.rings import PARTITION_SHIFT
from kernels.registry import device, kernel

PARTITIONS = 64
"""Logical partitions of keyed work, whatever the number of workers."""
SHIFT = np.uint64(58)
TAG_SHIFT, TAG_LOW = np.uint64(PARTITION_SHIFT), np.uint64(2**PARTITION_SHIFT - 1)
RECORD_BYTES = 16
"""Size of a record; `scatter` takes the address of record 0."""


@device
def tag_of(key_hash: Any) -> Any:
    """The tag of a hash, as a uint64."""
    return key_hash >> SHIFT << TAG_SHIFT | key_hash & TAG_LOW


@kernel(
    "void(uint64[::1], int64, int64, int64, int64[::1])", reference="tests.naive.partition.count"
)
def count(hashes: Any, valid: int, start: int, stop: int, counts: Any) -> None:
    """Set `counts` (int64[64]) to the rows of each partition among rows `start..stop`.

    `valid` is the address of a byte a row, 0 where the row is to be left out; 0 for none.
    """
    counts[:] = 0
    if valid == 0:
        for i in range(start, stop):
            counts[hashes[i] >> SHIFT] += 1
    else:
        for i in range(start, stop):
            counts[hashes[i] >> SHIFT] += np.int64(mem.load_u8(valid + i))


@kernel(
    "void(uint64[::1], int64, int64, int64, int64, int64, int64[::1], int64)",
    reference="tests.naive.partition.scatter",
)
def scatter(
    hashes: Any,
    valid: int,
    times: int,
    first_row: int,
    start: int,
    stop: int,
    cursors: Any,
    records: int,
) -> None:
    """Write the records of rows `start..stop` and move `cursors` (int64[64], in records) on.

    `times` is the address of int64 event times; row i has the number `first_row + i` mod 2^32.
    """
    for i in range(start, stop):
        if valid != 0 and mem.load_u8(valid + i) == 0:
            continue
        h = hashes[i]
        partition = h >> SHIFT
        at = records + RECORD_BYTES * cursors[partition]
        cursors[partition] += 1
        mem.store_i64(at, mem.load_i64(times + 8 * i))
        mem.store_u32(at + 8, np.uint32(tag_of(h)))
        mem.store_u32(at + 12, np.uint32(first_row + i))
