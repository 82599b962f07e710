"""The runtime of one stream or table of a job: its staging, its event time and its counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from edged.beat.laggards import Laggards, Mask
from edged.beat.record import StreamFacts
from edged.beat.silence import Silence
from edged.beat.watermarks import WatermarkTracker
from edged.data.columns import Batch, empty_batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, State
from edged.data.gather import take as gather
from edged.data.scratch import Scratch
from edged.data.staging import CLOCK_SANE_US, Staging
from edged.job.plan import StreamPlan


class LaggardTurn(NamedTuple):
    """A producer has fallen behind, or counts again."""

    producer: str
    behind: bool
    distance_us: int
    """How far its latest row is behind the front."""


@dataclass(slots=True)
class StreamRuntime:
    """A stream's plan, staging, watermark and counters."""

    plan: StreamPlan
    staging: Staging
    time: WatermarkTracker
    laggards: Laggards
    silence: Silence
    none: Batch
    """No row."""
    rows: int = 0
    """Rows taken."""
    late: int = 0
    """Rows of them that were late."""
    aligned: bool = False
    """Whether staged rows wait for another stream of a join, or for a table."""
    populated: bool = False
    """Whether all first rows of a table have been taken: its source has said so, or ended once."""
    _first_rows: int | None = None
    """Rows of this run up to the end of a table's first ones; None: they have not ended."""
    turns: list[LaggardTurn] = field(default_factory=list)
    """What `judge` has changed, for the events; the reader clears it."""

    @classmethod
    def of(cls, plan: StreamPlan, memory_bytes: int) -> StreamRuntime:
        """An empty stream with `memory_bytes` of staging."""
        return cls(
            plan,
            Staging(plan.name, plan.schema, plan.time, memory_bytes, plan.max_ahead_us),
            WatermarkTracker(plan.lateness_us, plan.idle_after_us),
            Laggards(plan.max_behind_us, plan.idle_after_us),
            Silence(plan.silent_after_us),
            empty_batch(plan.schema),
        )

    @property
    def ended(self) -> bool:
        """Whether all its producers have said end of stream and all its rows are processed."""
        return self.time.watermark_us == WATERMARK_MAX_US

    def front_us(self, active: Mask, wall_us: int) -> int:
        """The latest time that an active producer has sent, at most the wall clock."""
        latest = self.staging.producers.latest_us[active]
        front = int(latest.max()) if latest.size else WATERMARK_MIN_US
        return min(front, wall_us) if wall_us >= CLOCK_SANE_US else front

    def judge(self, front_us: int, active: Mask, monotonic_us: int) -> None:
        """Find the producers that are too far behind to count; see `edged.beat.laggards`.  `active`
        are none while staging is full: the rows of a slow producer may be unread."""
        producers = self.staging.producers
        changed = self.laggards.judge(
            producers,
            self.staging.arrived(),
            self.time.watermark_us,
            front_us,
            active,
            monotonic_us,
        )
        if not changed:
            return
        front_us = front_us if self.ended else max(front_us, self.time.watermark_us)
        for n in changed:
            distance_us = max(0, front_us - int(producers.latest_us[n]))
            turn = LaggardTurn(producers.ids[n], bool(producers.behind[n]), distance_us)
            self.turns.append(turn)

    def populates(self, rows: int) -> bool:
        """Whether a beat that takes `rows` rows takes the last of a table's first ones, as a
        producer has said it (`Producers.lasts`)."""
        if self.plan.table is None or self.populated or not self.staging.producers.populated():
            return False
        if self._first_rows is None:
            self._first_rows = self.staging.received
        return self.staging.received - (self.staging.rows - rows) >= self._first_rows

    def forget(self) -> None:
        """Reset what is kept of producers that the source has forgotten."""
        if forgotten := self.staging.producers.forgotten:
            self.time.forget(forgotten)
            self.laggards.forget(forgotten)

    def close_round(self) -> None:
        """Await all producers again: the stream is opened again without a row of its own."""
        producers = self.staging.producers
        producers.ended[:] = 0
        producers.seen_us[:] = 0

    def logged(self) -> StreamFacts:
        """The facts of a beat that takes nothing from this stream."""
        return StreamFacts(
            self.staging.unlogged_rows,
            self.staging.unlogged_chunks,
            0,
            0,
            self.time.watermark_us,
            self.staging.producers.changes_if_any(),
            refused_ahead=self.staging.refused_ahead,
        )

    def open(self, f: StreamFacts, scratch: Scratch, live: bool) -> tuple[Batch, Batch]:
        """The rows that a beat takes and the late ones for a dead letter; advances the watermark.
        Rows that it loads are staged when the beat is `live`, not in a replay."""
        before, name = self.time.watermark_us, self.plan.name
        self.time.watermark_us = f.watermark_us
        rows = f.rows if live else f.take_rows
        batch, none = self.staging.pending(rows), self.none
        if self.plan.table is not None:
            self.populated |= self.ended or f.populated
            return batch, none
        if not f.take_chunks or self.staging.forwards:
            return batch, none
        chunks = self.staging.chunks()
        if int(chunks.time_min[: f.take_chunks].min()) >= before:
            return batch, none
        on_time = batch[self.plan.time].values >= before
        late = np.flatnonzero(~on_time)
        self.late += int(late.size)
        if self.plan.late == "process":
            return batch, none
        kept = gather(batch, np.flatnonzero(on_time), scratch, f"{name}/on_time")
        if self.plan.late == "dead_letter":
            return kept, gather(batch, late, scratch, f"{name}/late")
        origin = chunks.producer[np.searchsorted(chunks.stop, late, side="right")]
        np.add.at(self.staging.producers.late, origin, 1)
        return kept, none

    def save_counts(self) -> State:
        """The counters, for a snapshot."""
        counts: State = {"n": np.array([self.rows, self.late], np.int64)}
        if self.plan.table is not None:
            counts["populated"] = np.array([self.populated], np.uint8)
        return counts

    def load_counts(self, state: State) -> None:
        """The inverse of `save_counts`."""
        self.rows, self.late = (int(n) for n in state["n"])
        self.populated = bool(state.get("populated", np.zeros(1, np.uint8))[0])
