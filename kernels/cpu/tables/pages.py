"""Pages of mapped runs that a probe will read, asked for ahead of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.records import get
from kernels.cpu.tables.probe import RUN, RUN_BYTES, _entry
from kernels.registry import kernel


@kernel(
    "void(int64[:, ::1], int64, uint64[::1], int64, int64, int64, uint8[::1])",
    reference="tests.naive.tables.marked_pages",
)
def mark(
    runs: Any, run: int, hashes: Any, start: int, stop: int, bits: int, marks: Any
) -> None:  # fmt: skip
    """Mark the pages of a run that hold the records of the keys `start..stop`.

    `runs` as in `kernels.cpu.tables.probe.find`; the run begins at a page of 1 << `bits` bytes,
    and `marks` has a byte for each of its pages.
    """
    place = np.int64(runs.ctypes.data) + run * RUN_BYTES
    for i in range(start, stop):
        entry = _entry(place, hashes[i])
        first, end = np.int64(mem.load_u32(entry)), np.int64(mem.load_u32(entry + 4))
        if first == end:
            continue
        for page in range(first >> (bits - 3), (((end << 3) - 1) >> bits) + 1):
            marks[page] = 1


@kernel(
    "int64(int64[:, ::1], int64, int64, uint8[::1], int64, int64)",
    reference="tests.naive.tables.asked_pages",
)
def ask(runs: Any, run: int, bits: int, marks: Any, gap: int, most: int) -> Any:
    """Ask the system to read the marked pages of a run, without waiting for them.

    Pages at most `gap` apart are asked for together with those between, `most` bytes in a request.
    The marks are gone then.  Returns the number of pages asked for.
    """
    base = get(np.int64(runs.ctypes.data) + run * RUN_BYTES, RUN.records)
    asked, page, pages = 0, 0, marks.size
    while page < pages:
        if marks[page] == 0:
            page += 1
            continue
        first, last = page, page
        while page < pages and page - last <= gap:
            if marks[page]:
                last = page
                marks[page] = 0
            page += 1
        asked += last + 1 - first
        at, end = base + (first << bits), base + ((last + 1) << bits)
        while at < end:
            mem.will_need(at, min(end - at, most))
            at += most
    return asked
