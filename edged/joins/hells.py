"""`hells`: HELLS Join, the baseline that shares the work between CPU and GPU.

The CPU keeps both windows in mapped memory, in arrival order.  For a part of a batch the GPU
evaluates the join predicate over the opposite window and answers a bitmap
(`kernels.cuda.hells`); the CPU decodes it into pairs (`kernels.cpu.bitmap`), while the GPU is
already at the next part.  A part has as many records as keep its bitmap within BITMAP_BYTES.
`batching` is the adaptive batching of the paper: it gives the size of the next batch to the caller.

Windows evict in arrival order; pairs come in any order; for comparison, not for the daemon.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.joins._cuda import Mapped, grown, ready
from edged.joins._cuda_batches import Batching
from edged.joins.base import Beat, Hashes, Int64s, Records, WindowJoin, window_join
from kernels import cuda as kernels
from kernels.cpu import bitmap
from kernels.cpu.partition import PARTITIONS
from kernels.cuda import gpu

BITMAP_BYTES = 16 << 20
ENTRIES_MIN = 1024
SCAN = 4096
"""Entries that are searched at a time for the first that stays."""
THREADS = 2 if gpu.SIMULATED else gpu.WORDS_MAX
GRID_MAX = (2, 1) if gpu.SIMULATED else (1024, 64)
TOLERANCE_US, LAUNCH_US = 100_000.0, 50.0
"""Initial terms of `batching`."""


class _Window:
    """One side's entries, at start..end of mapped arrays, a batch to come included."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self._allocate(ENTRIES_MIN)

    def stage(self, records: Records) -> None:
        """Write a batch behind the window; it is not yet part of it."""
        n = records.rows
        if self.end + n > self.times.host.size:
            self._move(max(self.times.host.size, 2 * (self.end - self.start + n)))
        part = slice(self.end, self.end + n)
        words = records.data[1 : 2 * n : 2]
        partitions = np.repeat(np.arange(PARTITIONS), records.counts)
        self.times.host[part] = records.data[: 2 * n : 2]
        self.keys.host[part] = (words & 0xFFFFFFFF) | partitions << 32
        self.rows[part] = (words >> 32) & 0xFFFFFFFF

    def let_go(self, bound_us: int, everything: bool) -> None:
        """Evict entries below the bound, from the oldest on."""
        if everything:
            self.start = self.end
        while self.start < self.end:
            part = self.times.host[self.start : min(self.end, self.start + SCAN)]
            stay = np.flatnonzero(part >= bound_us)
            self.start += int(stay[0]) if stay.size else part.size
            if stay.size:
                break

    def _allocate(self, entries: int) -> None:
        self.times, self.keys = Mapped(entries, np.int64), Mapped(entries, np.int64)
        self.rows = np.zeros(entries, np.uint32)

    def _move(self, entries: int) -> None:
        held = slice(self.start, self.end)
        times, keys, rows = self.times.host[held], self.keys.host[held], self.rows[held]
        self._allocate(entries)
        self.start, self.end = 0, rows.size
        self.times.host[: self.end], self.keys.host[: self.end] = times, keys
        self.rows[: self.end] = rows

    @property
    def nbytes(self) -> int:
        """Its memory."""
        return self.times.nbytes + self.keys.nbytes + self.rows.nbytes


@window_join("hells", device="cuda", ordered=False)
class HellsJoin(WindowJoin):
    """Predicates on the GPU, windows and results on the CPU."""

    about = "20 to 80 bytes a row, searched from end to end"

    def __init__(self, before_us: int, after_us: int, start: int = 0) -> None:
        super().__init__(before_us, after_us, start)
        ready(self.name)
        self.batching = Batching(TOLERANCE_US, LAUNCH_US)
        self._windows = _Window(), _Window()
        self._bitmaps = [Mapped(1024, np.uint32) for _ in range(2)]
        self._pairs: list[Int64s] = [np.empty(1024, np.int64) for _ in range(2)]

    def join(
        self, left: Records, right: Records, beat: Beat, workers: Workers | None
    ) -> tuple[Int64s, Int64s]:
        """One beat's pairs, in no order."""
        began = time.perf_counter()
        pairs = 0
        for side, records in enumerate((left, right)):
            window = self._windows[side]
            window.stage(records)
            pairs = self._probe(side, records.rows, beat.bases, pairs)
            window.end += records.rows
        for window, bound, all_go in zip(
            self._windows, beat.bounds_us, beat.everything, strict=True
        ):
            window.let_go(bound, all_go)
        out = [rows[:pairs] for rows in self._pairs]
        if beat.keys.shape[0]:
            kept = bitmap.keep_equal(beat.keys, *out)
            out = [rows[:kept] for rows in out]
        self.batching.observe(left.rows + right.rows, 1e6 * (time.perf_counter() - began))
        return out[0], out[1]

    def _probe(self, side: int, n: int, bases: tuple[int, int], pairs: int) -> int:
        """Compare a side's staged records with the other window; one part is decoded while the GPU
        works on the next."""
        size = self._windows[1 - side].end - self._windows[1 - side].start
        if n == 0 or size == 0:
            return pairs
        words = -(-size // 32)
        part = max(1, BITMAP_BYTES // (4 * words))
        under_way: list[tuple[int, int, Any]] = []
        for k, first in enumerate(range(0, n, part)):
            count = min(part, n - first)
            under_way.append((first, count, self._launch(side, first, count, words, k % 2)))
            if k > 0:
                pairs = self._decode(side, *under_way[k - 1], words, (k - 1) % 2, bases, pairs)
        last = len(under_way) - 1
        return self._decode(side, *under_way[last], words, last % 2, bases, pairs)

    def _launch(self, side: int, first: int, count: int, words: int, which: int) -> Any:
        mine, other = self._windows[side], self._windows[1 - side]
        back, ahead = (self.before_us, self.after_us)[:: -1 if side else 1]
        bits = self._bitmaps[which] = grown(self._bitmaps[which], count * words)
        grid = min(GRID_MAX[0], -(-words // THREADS)), min(GRID_MAX[1], count)
        kernels.hells.predicate[grid, THREADS](
            mine.times.device,
            mine.keys.device,
            mine.end + first,
            count,
            other.times.device,
            other.keys.device,
            other.start,
            other.end - other.start,
            back,
            ahead,
            bits.device,
        )
        done = gpu.cuda.event()
        done.record()
        return done

    def _decode(
        self,
        side: int,
        first: int,
        count: int,
        done: Any,
        words: int,
        which: int,
        bases: tuple[int, int],
        pairs: int,
    ) -> int:
        """Append a bitmap's pairs; returns the number of all pairs."""
        mine, other = self._windows[side], self._windows[1 - side]
        done.synchronize()
        bits = self._bitmaps[which].host[: count * words].reshape(count, words)
        room = pairs + int(bitmap.count(bits))
        if room > self._pairs[0].size:
            self._pairs = [
                np.concatenate([a[:pairs], np.empty(room, np.int64)]) for a in self._pairs
            ]
        return int(
            bitmap.decode(
                bits,
                mine.rows[mine.end + first : mine.end + first + count],
                other.rows[other.start : other.end],
                bases[side],
                bases[1 - side],
                self._pairs[side],
                self._pairs[1 - side],
                pairs,
            )
        )

    def restore(self, side: int, records: Records) -> None:
        """Append without probing."""
        self._windows[side].stage(records)
        self._windows[side].end += records.rows

    def live(self, side: int, base: int, rows: int, scratch: Scratch) -> tuple[Int64s, Hashes]:
        """All rows in the window."""
        window = self._windows[side]
        held = slice(window.start, window.end)
        numbers = (window.rows[held] - np.uint32(base)).astype(np.int64)
        keys = window.keys.host[held].astype(np.uint64)
        hashes = (keys >> np.uint64(32)) << np.uint64(58) | keys & np.uint64(0xFFFFFFFF)
        order = np.argsort(numbers)
        return numbers[order], hashes[order]

    def oldest(self, side: int, base: int, rows: int) -> int:
        """The least row of the window."""
        window = self._windows[side]
        held = window.rows[window.start : window.end] - np.uint32(base)
        return int(held.min()) if held.size else rows

    def held(self, side: int) -> int:
        """Entries of the window."""
        return self._windows[side].end - self._windows[side].start

    def nbytes(self) -> int:
        """Bytes of both windows and the bitmaps."""
        windows = sum(window.nbytes for window in self._windows)
        return windows + sum(bits.nbytes for bits in self._bitmaps)
