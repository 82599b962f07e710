"""HELLS Join on the GPU: a batch's join predicate over the opposite window, as a bitmap.

Both windows lie in mapped memory, where the CPU maintains them: int64 times (µs) and int64 keys
(tag | partition << 32).  bits[r * words + w] (uint32, mapped) has bit b set where record r of the
batch matches entry 32 * w + b of the window, whose first entry is `start`.

A block stages up to 2048 entries of the window in shared memory, once, and compares all of its
records with them; a thread makes one word of a record's row at a time.  Neighbours read
neighbouring entries and write neighbouring words; the staged entries of a word are 33 places apart
from the next word's, so that there are no bank conflicts.  Shared memory: 33 KiB a block.
"""

from __future__ import annotations

from typing import Any

import numba

from kernels.cuda.gpu import WORDS_MAX, cuda
from kernels.cuda.ring import earlier, later
from kernels.registry import cuda_kernel

STAGED = WORDS_MAX * 33
"""Places for the entries of the words that a block makes at a time."""


@cuda_kernel(
    "void(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1], int64, int64, int64,"
    " int64, uint32[::1])",
    reference="tests.naive.cuda.predicate",
)
def predicate(
    times: Any,
    keys: Any,
    first: int,
    n: int,
    window_times: Any,
    window_keys: Any,
    start: int,
    size: int,
    back: int,
    ahead: int,
    bits: Any,
) -> None:
    """Which of `size` entries of the window, from `start` on, records first..first + n match."""
    staged_times = cuda.shared.array(STAGED, numba.int64)
    staged_keys = cuda.shared.array(STAGED, numba.int64)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    words = (size + 31) >> 5
    for tile in range(cuda.blockIdx.x * threads, words, cuda.gridDim.x * threads):
        for e in range(t, 32 * threads, threads):
            if 32 * tile + e < size:
                place = e + (e >> 5)
                staged_times[place] = window_times[start + 32 * tile + e]
                staged_keys[place] = window_keys[start + 32 * tile + e]
        cuda.syncthreads()
        w = tile + t
        entries = min(32, size - 32 * w)
        if w < words:
            for r in range(cuda.blockIdx.y, n, cuda.gridDim.y):
                time, key = times[first + r], keys[first + r]
                low, high = earlier(time, back), later(time, ahead)
                word = 0
                for b in range(entries):
                    when = staged_times[33 * t + b]
                    if staged_keys[33 * t + b] == key and low <= when and when <= high:
                        word |= 1 << b
                bits[r * words + w] = word
        cuda.syncthreads()
