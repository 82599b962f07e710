"""Sorting records by (hash, image), and laying them out as a run.

A run is a sequence of records in that order, no two with the same image, none of weight 0, and a
directory: uint32[2^bits + 1], the place of the first record whose hash's top bits are at least i,
in 8-byte words.  A run is therefore smaller than 32 GiB.

The order comes from counting sorts of the hash's top bits, about as many as make buckets of two
records, 11 bits a pass; what is left in a bucket is sorted by comparison.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.tables.images import order, size_of
from kernels.registry import device, kernel

PASS_BITS = 11
SHORT = 24
"""Records of a bucket that are sorted by insertion."""
SPAN_BYTES = 4096
"""Bytes that are copied at once, while they are in the first cache."""
OVERFLOW = -1
SUM_MAX = 2**31 - 1


@device
def after(hash_a: Any, a: int, hash_b: Any, b: int) -> Any:
    """Whether record `a` comes after record `b`."""
    if hash_a != hash_b:
        return hash_a > hash_b
    return order(a, b) > 0


@device
def _insertion(hashes: Any, records: Any, start: int, stop: int) -> None:
    for i in range(start + 1, stop):
        h, record, j = hashes[i], records[i], i - 1
        while j >= start and after(hashes[j], records[j], h, record):
            hashes[j + 1], records[j + 1] = hashes[j], records[j]
            j -= 1
        hashes[j + 1], records[j + 1] = h, record


@device
def _merge_sort(hashes: Any, records: Any, other_h: Any, other: Any, start: int, stop: int) -> None:
    """Sort `start..stop`, with the same places of `other_h` and `other` as scratch."""
    for i in range(start, stop, SHORT):
        _insertion(hashes, records, i, min(i + SHORT, stop))
    width = SHORT
    while width < stop - start:
        for left in range(start, stop, 2 * width):
            middle, end = min(left + width, stop), min(left + 2 * width, stop)
            i, j = left, middle
            for k in range(left, end):
                if j >= end or (
                    i < middle and not after(hashes[i], records[i], hashes[j], records[j])
                ):
                    other_h[k], other[k] = hashes[i], records[i]
                    i += 1
                else:
                    other_h[k], other[k] = hashes[j], records[j]
                    j += 1
        for k in range(start, stop):
            hashes[k], records[k] = other_h[k], other[k]
        width *= 2


@device
def _counting(
    hashes: Any, records: Any, to_h: Any, to: Any, low: Any, shift: Any, bits: int, counts: Any
) -> None:
    """One pass: by the `bits` bits of (hash - low) above `shift`."""
    mask = np.uint64((1 << bits) - 1)
    counts[: (1 << bits) + 1] = 0
    for i in range(hashes.size):
        counts[np.int64((hashes[i] - low) >> shift & mask) + 1] += 1
    for i in range(1 << bits):
        counts[i + 1] += counts[i]
    for i in range(hashes.size):
        digit = np.int64((hashes[i] - low) >> shift & mask)
        k = counts[digit]
        counts[digit] = k + 1
        to_h[k], to[k] = hashes[i], records[i]


@kernel(
    "void(uint64[::1], int64[::1], uint64[::1], int64[::1], int64[::1], uint64, uint64)",
    reference="tests.naive.tables.sorted_records",
)
def sort(
    hashes: Any, records: Any, other_h: Any, other: Any, counts: Any, low: Any, high: Any
) -> None:
    """Sort records (addresses) and their hashes, all in `low..high`, both included.

    `other_h` and `other` are scratch of the same size, `counts` of 2^PASS_BITS + 1.
    """
    span = 0
    while span < 64 and (high - low) >> np.uint64(span) != np.uint64(0):
        span += 1
    bits = 1
    while (2 << bits) < hashes.size:
        bits += 1
    bits = min(bits, span)
    passes = (bits + PASS_BITS - 1) // PASS_BITS
    done = 0
    for left in range(passes, 0, -1):
        part = (bits - done + left - 1) // left
        shift = np.uint64(span - bits + done)
        if (passes - left) % 2 == 0:
            _counting(hashes, records, other_h, other, low, shift, part, counts)
        else:
            _counting(other_h, other, hashes, records, low, shift, part, counts)
        done += part
    if passes % 2 == 1:
        hashes[:], records[:] = other_h, other
    _finish(hashes, records, other_h, other, low, np.uint64(span - bits))


@device
def _finish(hashes: Any, records: Any, other_h: Any, other: Any, low: Any, shift: Any) -> None:
    start = 0
    while start < hashes.size:
        stop, bucket = start + 1, (hashes[start] - low) >> shift
        while stop < hashes.size and (hashes[stop] - low) >> shift == bucket:
            stop += 1
        if stop - start > SHORT:
            _merge_sort(hashes, records, other_h, other, start, stop)
        elif stop - start > 1:
            _insertion(hashes, records, start, stop)
        start = stop


@kernel(
    "int64(uint64[::1], int64[::1], int64, uint32[::1], int64[::1])",
    reference="tests.naive.tables.consolidated",
)
def lay_out(hashes: Any, records: Any, target: int, directory: Any, state: Any) -> int:
    """Copy sorted records to address `target`: equal ones once with the sum of their weights, none
    where that is 0; returns the bytes written, OVERFLOW where a sum leaves int32.

    `state` is int64[4], kept from one part of a run to its next: words before this part, directory
    entries filled, rows, largest weight without its sign.
    """
    bits = 0
    while (1 << bits) < directory.size - 1:
        bits += 1
    shift = np.uint64(64 - bits)
    to, i, count = target, 0, hashes.size
    words, entry = state[0], state[1]
    while i < count:
        record, h = records[i], hashes[i]
        if i + 8 < count:
            mem.prefetch(records[i + 8])
        weight = np.int64(np.int32(mem.load_u32(record + 12)))
        i += 1
        while i < count and hashes[i] == h and order(record, records[i]) == 0:
            weight += np.int64(np.int32(mem.load_u32(records[i] + 12)))
            i += 1
        if weight == 0:
            continue
        if abs(weight) > SUM_MAX:
            return OVERFLOW
        bucket = np.int64(h >> shift)
        while entry <= bucket:
            directory[entry] = np.uint32(words)
            entry += 1
        size = size_of(record)
        for at in range(0, size, 8):
            mem.store_u64(to + at, mem.load_u64(record + at))
        mem.store_u32(to + 12, np.uint32(weight))
        to += size
        words += size >> 3
        state[2] += 1
        state[3] = max(state[3], abs(weight))
    state[0], state[1] = words, entry
    return to - target


@device
def _enter(directory: Any, entry: int, bucket: int, words: int) -> Any:
    """Fill the directory up to `bucket`; returns the entries filled."""
    while entry <= bucket:
        directory[entry] = np.uint32(words)
        entry += 1
    return entry


@kernel(
    "int64(uint64[::1], int64[::1], int64, int64, int64, uint32[::1], int64[::1])",
    reference="tests.naive.tables.consolidated",
)
def lay_out_beside(
    hashes: Any, records: Any, run: int, end: int, target: int, directory: Any, state: Any
) -> int:
    """`lay_out` of sorted records and of a run's records at `run..end` (addresses) together.

    It takes the time of a copy of the run's records where the others are few.
    """
    bits = 0
    while (1 << bits) < directory.size - 1:
        bits += 1
    shift = np.uint64(64 - bits)
    to, i, count = target, 0, hashes.size
    words, entry, rows, heaviest = state[0], state[1], state[2], state[3]
    while run < end or i < count:
        start = run
        while run < end and run - start < SPAN_BYTES:
            h = mem.load_u64(run)
            if i < count and (h > hashes[i] or (h == hashes[i] and order(run, records[i]) >= 0)):
                break
            entry = _enter(directory, entry, np.int64(h >> shift), words)
            size = size_of(run)
            words += size >> 3
            rows += 1
            heaviest = max(heaviest, abs(np.int64(np.int32(mem.load_u32(run + 12)))))
            run += size
        if run > start:
            mem.copy_bytes(to, start, run - start)
            to += run - start
            continue
        record, h, weight = records[i], hashes[i], np.int64(0)
        while i < count and hashes[i] == h and order(record, records[i]) == 0:
            weight += np.int64(np.int32(mem.load_u32(records[i] + 12)))
            i += 1
        if run < end and mem.load_u64(run) == h and order(run, record) == 0:
            weight += np.int64(np.int32(mem.load_u32(run + 12)))
            run += size_of(run)
        if weight == 0:
            continue
        if abs(weight) > SUM_MAX:
            return OVERFLOW
        entry = _enter(directory, entry, np.int64(h >> shift), words)
        size = size_of(record)
        for at in range(0, size, 8):
            mem.store_u64(to + at, mem.load_u64(record + at))
        mem.store_u32(to + 12, np.uint32(weight))
        to += size
        words += size >> 3
        rows += 1
        heaviest = max(heaviest, abs(weight))
    state[0], state[1], state[2], state[3] = words, entry, rows, heaviest
    return to - target


@kernel("int64(int64, uint32[::1])", reference="tests.naive.tables.directory")
def make_directory(records: int, directory: Any) -> int:
    """Fill the directory of a run at address `records`, whose words its last entry holds already;
    returns the number of records."""
    bits = 0
    while (1 << bits) < directory.size - 1:
        bits += 1
    shift = np.uint64(64 - bits)
    end, at, entry, rows = np.int64(directory[directory.size - 1]) << 3, 0, 0, 0
    while at < end:
        bucket = np.int64(mem.load_u64(records + at) >> shift)
        while entry <= bucket:
            directory[entry] = np.uint32(at >> 3)
            entry += 1
        at += size_of(records + at)
        rows += 1
    directory[entry:] = np.uint32(end >> 3)
    return rows


@kernel("int64(int64, int64, int64, uint64, int64[::1])", reference="tests.naive.tables.until")
def until(records: int, at: int, end: int, high: Any, place: Any) -> int:
    """The number of records from `at` to `end` (bytes) whose hash is at most `high`; `place[0]`
    becomes the end of them."""
    count = 0
    while at < end and mem.load_u64(records + at) <= high:
        at += size_of(records + at)
        count += 1
    place[0] = at
    return count


@kernel("void(int64, int64, uint64[::1], int64[::1])", reference="tests.naive.tables.until")
def collect(records: int, at: int, hashes: Any, found: Any) -> None:
    """Fill `hashes` and `found` (addresses) with the records from `at` on."""
    for i in range(found.size):
        hashes[i], found[i] = mem.load_u64(records + at), records + at
        at += size_of(records + at)
