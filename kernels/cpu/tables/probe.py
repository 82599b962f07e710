"""Probes of sorted runs: the records of each key from all runs, merged in the order of images."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.keys import same_bytes
from kernels.cpu.records import ADDRESS, I64, field, get, size_of, words
from kernels.cpu.tables.images import HEADER, order, order_from
from kernels.cpu.tables.images import size_of as record_size
from kernels.registry import device, kernel

AHEAD = 8
"""Keys ahead whose records are fetched; twice as far, their directory entries."""
FETCH_BYTES = 640
"""Most bytes of a run's records that are fetched for a key."""
SHORT_LIST = 64
"""Records of a key that are merged by insertion."""


class RunPlace(NamedTuple):
    """A run that is probed."""

    records: ADDRESS = field("its first record")
    directory: ADDRESS = field("uint32 directory (`kernels.cpu.tables.sort`)")
    shift: I64 = field("64 - the directory's bits")


RUN, RUN_BYTES = words(RunPlace), size_of(RunPlace)


@device
def _entry(run: int, h: Any) -> Any:
    """The address of the directory entry for hash `h`."""
    return get(run, RUN.directory) + 4 * np.int64(h >> np.uint64(get(run, RUN.shift)))


@device
def _fetch(runs: int, end: int, hashes: Any, i: int, stop: int) -> None:
    """Prefetch the entries of key i + 2 * AHEAD and the records of i + AHEAD, before `stop`."""
    if i + 2 * AHEAD < stop:
        for run in range(runs, end, RUN_BYTES):
            mem.prefetch(_entry(run, hashes[i + 2 * AHEAD]))
    if i + AHEAD < stop:
        for run in range(runs, end, RUN_BYTES):
            entry = _entry(run, hashes[i + AHEAD])
            first, last = np.int64(mem.load_u32(entry)), np.int64(mem.load_u32(entry + 4))
            if first == last:
                continue
            at = get(run, RUN.records) + (first << 3)
            behind = min(get(run, RUN.records) + (last << 3), at + FETCH_BYTES)
            while at < behind:
                mem.prefetch(at)
                at += 64


@device
def _same_key(record: int, keys: int, at: Any, i: int) -> Any:
    """Whether a record's image begins with key i; `at` empty: the hash decides."""
    return at.size == 0 or same_bytes(record + HEADER, keys + at[2 * i], at[2 * i + 1])


@device
def _insert(found: Any, weights: Any, start: int, middle: int, stop: int, same: int) -> Any:
    """Put the records `middle..stop` of one run where they belong in `start..middle`, which is
    sorted; equal ones add their weights.  Returns the new end."""
    end = middle
    for k in range(middle, stop):
        record, weight, low, high = found[k], weights[k], start, end
        equal = False
        while low < high:
            at = (low + high) >> 1
            compared = order_from(found[at], record, same)
            if compared == 0:
                weights[at] += weight
                equal = True
                break
            if compared < 0:
                low = at + 1
            else:
                high = at
        if equal:
            start = at + 1
            continue
        for at in range(end, low, -1):
            found[at], weights[at] = found[at - 1], weights[at - 1]
        found[low], weights[low] = record, weight
        start = low + 1
        end += 1
    return end


@device
def _merge(
    found: Any, weights: Any, start: int, middle: int, stop: int, same: int, scratch: Any,
    spare: Any,
) -> Any:  # fmt: skip
    """`_insert` for many records: one pass over both, by way of `scratch` and `spare`."""
    i, j, to = start, middle, start
    while i < middle or j < stop:
        compared = 1
        if j >= stop:
            compared = -1
        elif i < middle:
            compared = order_from(found[i], found[j], same)
        if compared <= 0:
            scratch[to], spare[to] = found[i], weights[i]
            i += 1
            if compared == 0:
                spare[to] += weights[j]
                j += 1
        else:
            scratch[to], spare[to] = found[j], weights[j]
            j += 1
        to += 1
    for k in range(start, to):
        found[k], weights[k] = scratch[k], spare[k]
    return to


@device
def _without_zeros(found: Any, weights: Any, start: int, stop: int) -> Any:
    """Keep the records of `start..stop` whose weight is not 0; returns their end."""
    to = start
    for k in range(start, stop):
        found[to], weights[to] = found[k], weights[k]
        to += weights[k] != 0
    return to


@kernel(
    "int64(int64[:, ::1], uint64[::1], uint8[::1], int64, int64[::1], int64[::1],"
    " int64[::1], int64[::1], int32[::1], int64[::1], int32[::1])",
    reference="tests.naive.tables.probe",
)
def find(
    runs: Any, hashes: Any, valid: Any, keys: int, at: Any, state: Any,
    probes: Any, found: Any, weights: Any, scratch: Any, spare: Any,
) -> Any:  # fmt: skip
    """The matches of keys: `probes` (key), `found` (address of its record) and `weights`.

    `state` is int64[5]: the next key, the end of the keys, the matches so far, the bytes at the
    front of records in which those of one key agree, the header included (a multiple of 8), and
    the length of every record, 0 where they differ.
    Returns the number of matches; less than 0 where arrays are too short: call again with larger
    ones that hold the matches so far.  `valid` is empty, or 0 for each key that has a null.
    `at` is empty where equal hashes are equal keys, else the place and the bytes of each key's
    image behind `keys`.
    """
    table = np.int64(runs.ctypes.data)
    last_run = table + RUN_BYTES * runs.shape[0]
    start, stop, number, same, stride = state[0], state[1], state[2], state[3], state[4]
    room = found.size
    for i in range(start - AHEAD, start):
        _fetch(table, last_run, hashes, i, stop)
    for i in range(start, stop):
        _fetch(table, last_run, hashes, i, stop)
        if valid.size > 0 and valid[i] == 0:
            continue
        h, first, merged = hashes[i], number, False
        for run in range(table, last_run, RUN_BYTES):
            entry = _entry(run, h)
            place, end = np.int64(mem.load_u32(entry)), np.int64(mem.load_u32(entry + 4))
            if place == end:
                continue
            base, before = get(run, RUN.records), number
            record, end = base + (place << 3), base + (end << 3)
            while record < end and mem.load_u64(record) < h:
                record += stride if stride > 0 else record_size(record)
            while record < end and mem.load_u64(record) == h:
                if _same_key(record, keys, at, i):
                    if number == room:
                        state[0], state[2] = i, first
                        return -1
                    found[number] = record
                    weights[number] = np.int32(mem.load_u32(record + 12))
                    number += 1
                record += stride if stride > 0 else record_size(record)
            if before > first and number > before:
                merged = True
                if number - first <= SHORT_LIST:
                    number = _insert(found, weights, first, before, number, same)
                else:
                    number = _merge(found, weights, first, before, number, same, scratch, spare)
        if merged:
            number = _without_zeros(found, weights, first, number)
        for k in range(first, number):
            probes[k] = i
    state[2] = number
    return number


@kernel("void(int64[:, ::1], int64, int64, int64[::1])", reference="tests.naive.tables.heaviest")
def heaviest(runs: Any, records: int, end: int, largest: Any) -> None:
    """Over the rows of the records at `records..end`, each with its records in `runs`: the largest
    sum of weights without its sign, and the largest sum of weights without their signs."""
    table, count = np.int64(runs.ctypes.data), runs.shape[0]
    largest[:] = 0
    while records < end:
        h = mem.load_u64(records)
        weight = np.int64(np.int32(mem.load_u32(records + 12)))
        total, gross = weight, abs(weight)
        for run in range(table, table + RUN_BYTES * count, RUN_BYTES):
            entry = _entry(run, h)
            record = get(run, RUN.records) + (np.int64(mem.load_u32(entry)) << 3)
            last = get(run, RUN.records) + (np.int64(mem.load_u32(entry + 4)) << 3)
            while record < last and mem.load_u64(record) <= h:
                if mem.load_u64(record) == h and order(record, records) == 0:
                    weight = np.int64(np.int32(mem.load_u32(record + 12)))
                    total += weight
                    gross += abs(weight)
                record += record_size(record)
        largest[0] = max(largest[0], abs(total))
        largest[1] = max(largest[1], gross)
        records += record_size(records)
