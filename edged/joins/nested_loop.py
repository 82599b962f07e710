"""`nested_loop`, the ecoJoin paper's naive baseline: for comparison, not for the daemon.

The new rows are distributed evenly over the workers.  Each compares its share with the whole
opposite window (`kernels.cpu.nested_loop`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from edged.data.columns import address
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.joins._lanes import PAIRS_MIN, doubled
from edged.joins._windows import Window, live_rows, oldest_row
from edged.joins.base import Beat, Hashes, Int64s, Records, WindowJoin, window_join
from kernels.cpu import nested_loop

Pairs = tuple[Int64s, Int64s]


class _Lane:
    """One worker's pairs of one pass."""

    def __init__(self) -> None:
        self._out = [np.empty(PAIRS_MIN, np.int64) for _ in range(2)]
        self._progress: Int64s = np.zeros(3, np.int64)

    def probe(
        self,
        data: Int64s,
        rows: tuple[int, int],
        window: Int64s,
        swapped: int,
        job: Int64s,
        keys: Int64s,
    ) -> Pairs:
        """The pairs of the records rows[0]..rows[1] with a window."""
        progress, first = self._progress, rows[0]
        progress[:] = window[nested_loop.WINDOW.start], first, 0
        records = address(data)
        while not nested_loop.probe(
            records, *rows, window, swapped, job, keys, progress, *self._out
        ):
            self._out = [doubled(a, int(progress[nested_loop.PROGRESS.pairs])) for a in self._out]
        pairs = int(progress[nested_loop.PROGRESS.pairs])
        return self._out[0][:pairs], self._out[1][:pairs]


@window_join("nested_loop", device="cpu", ordered=False)
class NestedLoopJoin(WindowJoin):
    """Two windows that are scanned."""

    about = "17 to 68 bytes a row"

    def __init__(self, before_us: int, after_us: int, start: int = 0) -> None:
        super().__init__(before_us, after_us, start)
        self._windows = Window(), Window()
        self._lanes: tuple[list[_Lane], list[_Lane]] = [], []

    def join(
        self, left: Records, right: Records, beat: Beat, workers: Workers | None
    ) -> tuple[Int64s, Int64s]:
        """One beat's pairs, in any order."""
        job = np.array([self.before_us, self.after_us, *beat.bases], np.int64)
        parts: list[Pairs] = []
        for side, records in enumerate((left, right)):
            calls = self._probes(side, records, job, beat.keys, workers)
            parts += workers.run(calls) if workers else [call() for call in calls]
            self.restore(side, records)
        for window, bound, everything in zip(
            self._windows, beat.bounds_us, beat.everything, strict=True
        ):
            nested_loop.evict(window.row, bound, int(everything))
        return (
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
        )

    def _probes(
        self, side: int, records: Records, job: Int64s, keys: Int64s, workers: Workers | None
    ) -> list[Callable[[], Pairs]]:
        count, lanes = workers.count if workers else 1, self._lanes[side]
        while len(lanes) < count:
            lanes.append(_Lane())
        rows, window = records.rows, self._windows[1 - side].row
        shares = [(rows * k // count, rows * (k + 1) // count) for k in range(count)]
        return [
            partial(lane.probe, records.data, share, window, side, job, keys)
            for lane, share in zip(lanes, shares, strict=False)
        ]

    def restore(self, side: int, records: Records) -> None:
        """Append to the window."""
        window = self._windows[side]
        window.reserve(records.rows)
        edges = np.append(0, records.counts.cumsum())
        nested_loop.append(window.row, address(records.data), edges)

    def live(self, side: int, base: int, rows: int, scratch: Scratch) -> tuple[Int64s, Hashes]:
        """All rows in the window."""
        return live_rows([self._windows[side]], base)

    def oldest(self, side: int, base: int, rows: int) -> int:
        """The first row of the window."""
        return oldest_row([self._windows[side]], base, rows)

    def held(self, side: int) -> int:
        """Entries of the window."""
        return self._windows[side].entries

    def nbytes(self) -> int:
        """Bytes of both windows."""
        return sum(window.nbytes() for window in self._windows)
