"""`handshake`, the handshake join: for comparison, not for the daemon.

In a line of lanes, each with a segment of both windows, the left's rows flow one way and the
right's the other (`kernels.cpu.handshake`).  The line is as long as the largest number of workers
so far. Threads take lanes in turn, so that any numbers of lanes, threads and cores work.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from edged.data.columns import address, apart
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.joins._lanes import PAIRS_MIN, doubled
from edged.joins._tables import aligned
from edged.joins._windows import Window, live_rows, oldest_row
from edged.joins.base import Beat, Hashes, Int64s, Records, WindowJoin, window_join
from kernels.cpu import handshake, nested_loop


class _Lane:
    """A lane's segments (left, right) and its pairs."""

    def __init__(self) -> None:
        self.segments = Window(), Window()
        self.out = [np.empty(PAIRS_MIN, np.int64) for _ in range(2)]


class _Line:
    """The lanes of one beat."""

    def __init__(self, lanes: list[_Lane], batch: Int64s, edges: list[Int64s], job: Int64s) -> None:
        self._lanes, self._batch, self._edges, self._job = lanes, batch, edges, job
        self._states: Int64s = apart(len(lanes), handshake.LANE_FIELDS)

    def drive(self, keys: Int64s, numbers: range) -> None:
        """Run some of the lanes, in turn, until the beat is over for all of them."""
        pending = list(numbers)
        while pending:
            answers = [self._run(lane, keys) for lane in pending]
            pending = [
                lane
                for lane, answer in zip(pending, answers, strict=True)
                if answer != handshake.DONE
            ]
            if all(answer == handshake.WAITING for answer in answers):
                time.sleep(0)

    def _run(self, number: int, keys: Int64s) -> int:
        lane = self._lanes[number]
        left, right = (segment.row for segment in lane.segments)
        answer: int = handshake.work(
            number, len(self._lanes), self._states, self._batch, *self._edges, self._job, keys,
            left, right, *lane.out,
        )  # fmt: skip
        if answer == handshake.FULL:
            kept = int(self._states[number, handshake.LANE.pairs])
            lane.out = [doubled(array, kept) for array in lane.out]
        return answer

    def pairs(self) -> tuple[Int64s, Int64s]:
        """The lanes' pairs."""
        ends = self._states[:, handshake.LANE.pairs].tolist()
        left, right = (
            np.concatenate([ln.out[k][:n] for ln, n in zip(self._lanes, ends, strict=True)])
            for k in (0, 1)
        )
        return left, right


@window_join("handshake", device="cpu", ordered=False)
class HandshakeJoin(WindowJoin):
    """A line of lanes that forward rows to each other."""

    about = "17 to 68 bytes a row"

    def __init__(self, before_us: int, after_us: int, start: int = 0) -> None:
        super().__init__(before_us, after_us, start)
        self._start, self._turns = start, [0, 0]
        self._lanes: list[_Lane] = []
        self._lengthen(1)

    def join(
        self, left: Records, right: Records, beat: Beat, workers: Workers | None
    ) -> tuple[Int64s, Int64s]:
        """One beat's pairs, in any order."""
        threads = workers.count if workers else 1
        self._lengthen(threads)
        batch, edges = self._batch((left, right))
        job = np.array([self.before_us, self.after_us, *beat.bases], np.int64)
        line = _Line(self._lanes, batch, edges, job)
        calls = [
            partial(line.drive, beat.keys, range(k, len(self._lanes), threads))
            for k in range(threads)
        ]
        if workers:
            workers.run(calls)
        else:
            calls[0]()
        for lane in self._lanes:
            for i, segment in enumerate(lane.segments):
                nested_loop.evict(segment.row, beat.bounds_us[i], int(beat.everything[i]))
        return line.pairs()

    def _lengthen(self, lanes: int) -> None:
        """Append lanes at the right end up to `count`; all queues are empty."""
        if lanes <= len(self._lanes):
            return
        self._lanes += [_Lane() for _ in range(lanes - len(self._lanes))]
        self._queues = aligned(2 * lanes * handshake.QUEUE_BYTES)
        counters = self._queues.view(np.uint32).reshape(2 * lanes, -1)
        counters[:] = 0
        counters[:, [handshake.QUEUE.taken // 4, handshake.QUEUE.put // 4]] = self._start % 2**32

    def _batch(self, batches: tuple[Records, Records]) -> tuple[Int64s, list[Int64s]]:
        """The lanes' description of a beat; makes room for its rows in the segments."""
        batch: Int64s = np.zeros(len(handshake.BATCH), np.int64)
        batch[handshake.BATCH.queues] = address(self._queues)
        edges = []
        for i, records in enumerate(batches):
            blocks = -(-records.rows // handshake.BLOCK)
            batch[handshake.BATCH.left_records + i] = address(records.data)
            batch[handshake.BATCH.left_rows + i] = records.rows
            batch[handshake.BATCH.left_turn + i] = self._turns[i]
            edges.append(np.append(0, records.counts.cumsum()))
            for lane in self._lanes:
                lane.segments[i].reserve(-(-blocks // len(self._lanes)) * handshake.BLOCK)
            self._turns[i] = (self._turns[i] + blocks) % len(self._lanes)
        return batch, edges

    def restore(self, side: int, records: Records) -> None:
        """Append to the first lane's segment."""
        segment = self._lanes[0].segments[side]
        segment.reserve(records.rows)
        edges = np.append(0, records.counts.cumsum())
        nested_loop.append(segment.row, address(records.data), edges)

    def live(self, side: int, base: int, rows: int, scratch: Scratch) -> tuple[Int64s, Hashes]:
        """All rows in the segments."""
        return live_rows(self._segments(side), base)

    def oldest(self, side: int, base: int, rows: int) -> int:
        """The first row of all segments."""
        return oldest_row(self._segments(side), base, rows)

    def held(self, side: int) -> int:
        """Entries of all segments."""
        return sum(segment.entries for segment in self._segments(side))

    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.nbytes() for side in (0, 1) for segment in self._segments(side))

    def _segments(self, side: int) -> list[Window]:
        return [lane.segments[side] for lane in self._lanes]
