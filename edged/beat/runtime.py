"""The runtime of one job: its stagings, operators and sinks, and the steps of a beat.

The same `step` runs live and in a replay.  Live, `decide` makes the beat's facts; in a replay they
come from the log.  `step` reads nothing else, so that a replay gives the same pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from edged.beat.deferrals import Deferrals
from edged.beat.open_page_limit import seal_early
from edged.beat.operator_place import operator_place, table_scratch
from edged.beat.placed_operators import PlacedOperators
from edged.beat.record import JobFacts, StreamFacts, input_count, read_inputs
from edged.beat.saved_arrays import arrays_under, put_arrays
from edged.beat.schedules import Schedules
from edged.beat.sink_contexts import context_of, sink_context
from edged.beat.stream_alignment import (
    StagedChunks,
    couplings,
    decide_take,
    limit_us,
    up_to,
)
from edged.beat.stream_runtime import StreamRuntime
from edged.beat.table_loads import TableLoads, skip_log
from edged.beat.table_waits import TableWaits, empty
from edged.data.columns import Batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, State
from edged.data.origins import OriginLog
from edged.data.scratch import Scratch
from edged.data.staging import TIME_MAX_US, Chunks
from edged.job.changes import DRAINING, PAUSED, RUNNING, JobMetadata
from edged.job.footprint import footprint_of
from edged.job.open_pages import open_page_shares
from edged.job.plan import JobPlan
from edged.operators.base import Operator
from edged.pages.sealed import PageKey, SealedPage
from edged.sinks.base import Flush, Sink, SinkContext


class JobRuntime(PlacedOperators):
    """A built job; the heart's thread only."""

    def __init__(self, plan: JobPlan, context: SinkContext) -> None:
        self.plan = plan
        context = context_of(plan, context)
        self.footprint = footprint_of(plan)
        self.scratch = Scratch()
        share = plan.promises.memory_bytes // 2 // max(1, len(plan.streams))
        self.streams = {name: StreamRuntime.of(s, share) for name, s in plan.streams.items()}
        self.table_loads = TableLoads(plan)
        self.operators = self._new_operators(context)
        self.sinks: dict[str, Sink] = {
            name: s.build(sink_context(context, name)) for name, s in plan.sinks.items()
        }
        for s in self.streams.values():  # where earlier positions are lost, any batch may be next
            s.staging.producers.names_lost = not plan.promises.logs
            s.staging.origins = None if plan.promises.logs else OriginLog(plan.promises.forwards)
        self.open_page_shares = open_page_shares(plan.promises.memory_bytes, plan.sinks)
        self.couplings = couplings(plan)
        self.table_waits = TableWaits(plan)
        self.cut = False
        """Whether the last decision left rows staged only because of its row limit."""
        self.throttled = False
        """Whether the last decision took no rows because a sink is full."""
        self.pressed = False
        """Whether rows were staged at the last decision while a sink was full, so that sources with
        more were not read."""
        self.saturated = False
        """Whether senders had sent more than the last decision took: it left rows because of its
        row limit, or staging was full.  Rows that wait for another stream do not count."""
        self.placers = {}
        self.spent_ns = dict.fromkeys((*plan.order, *plan.sinks), 0)
        """Wall time of each operator and sink so far, by which energy is apportioned."""
        self._saved: dict[str, Scratch] = {}
        self.meta = JobMetadata()
        self.problem = ""
        """Why the job takes no part in beats though it is running: a source could not be
        started."""
        self.draining = False
        """Whether accepted rows are processed and nothing new is read."""
        self.drained = False
        """Whether all accepted rows are processed and the centre has all pages."""

    def staged(self) -> int:
        """Rows in staging."""
        return sum(s.staging.rows for s in self.streams.values())

    def waiting(self) -> int:
        """Rows that operators have left to later beats."""
        return self._deferrals.waiting()

    def open_rows(self) -> int:
        """Rows in unsealed pages that the latency promise covers."""
        return sum(s.open_rows() for s in self.sinks.values() if s.prompt)

    @property
    def full(self) -> bool:
        """Whether a sink takes no more rows for now.  Rows that are to be drained are taken all the
        same."""
        if self.draining:
            return False
        return any(s.full for s in self.sinks.values()) or self.schedules.full

    def released(self, now_us: int) -> bool:
        """Whether rows wait for a sink that was full and no longer is, or for an operator that can
        run now."""
        waited = self.throttled or self.pressed
        return (waited and not self.full) or self.schedules.wanted_at(now_us)

    def drains_now(self, now_us: int) -> bool:
        """Whether it drains, and not only rows are left that wait for an operator to be ready."""
        stuck = self.schedules.waiting() and not self.schedules.wanted_at(now_us, True)
        return self.draining and (not stuck or bool(self.staged() or self.waiting()))

    def apply_state(self, daemon_drains: bool) -> None:
        """Suspend or resume reading by the job's state and by whether the daemon drains."""
        state = self.meta.state
        self.draining = state == DRAINING or (daemon_drains and state == RUNNING)
        self.drained = self.drained and self.draining
        for s in self.streams.values():
            s.staging.held = self.draining or bool(self.problem) or state == PAUSED
            s.staging.pressed = lambda: self.full
        self.schedules.prepare(state != PAUSED)

    @property
    def suspended(self) -> bool:
        """Whether sources do not read for this job."""
        return any(s.staging.held for s in self.streams.values())

    @property
    def dormant(self) -> bool:
        """Whether the job takes no part in beats: it is paused, or has nothing left to drain.

        Its event time stands still then: no producer becomes idle, no watermark advances.
        """
        if not self.draining:
            return self.meta.state == PAUSED
        left = self.staged() or self.waiting() or self.schedules.waiting()
        left = left or any(s.open_rows() for s in self.sinks.values())
        return not left and (self.ended() or not self.meta.ends)

    def shipped(self) -> list[str]:
        """The streams of pages that the job ships."""
        return self.footprint.streams()

    def last_pages(self) -> dict[str, list[int]]:
        """Number of the last page of each stream and partition; 0: none."""
        return {s: n for sink in self.sinks.values() for s, n in sink.numbers().items()}

    def take_inputs(
        self, facts: JobFacts, arrays: Iterator[npt.NDArray[np.uint8]]
    ) -> list[npt.NDArray[np.uint8]]:
        """Its arrays of a record, which come next in `arrays`."""
        logged = [self.streams[name] for name, f in facts.streams.items() if f.logged_rows]
        return [next(arrays) for s in logged for _ in range(input_count(s.plan.schema))]

    def reset_idle_timers(self, monotonic_us: int) -> None:
        """Count all known producers as active now.  They have `idle_after` to reconnect, or to send
        a first row where they have connected in this run."""
        for s in self.streams.values():
            producers = s.staging.producers
            n = len(producers.ids)
            known = (producers.latest_us[:n] > WATERMARK_MIN_US) | (producers.seen_us[:n] > 0)
            producers.seen_us[:n] = np.where(known, monotonic_us, 0)

    def waits_for_time(self) -> bool:
        """Whether an advancing watermark alone can produce results."""
        return len(self.streams) > 1 or any(p.waits_for_time for p in self.plan.operators.values())

    def seals(self, flush: Flush, wall_us: int) -> bool:
        """Whether a beat without new rows would seal a page."""
        return any(
            (s.open_rows() and (flush >= (Flush.PROMPT if s.prompt else Flush.ALL)))
            or s.due_in_us(wall_us) == 0
            for s in self.sinks.values()
        )

    def due_in_us(self, wall_us: int) -> int | None:
        """Time until a sink seals by its own schedule; None: no sink does."""
        due = [s.due_in_us(wall_us) for s in self.sinks.values()]
        return min((d for d in due if d is not None), default=None)

    def decide(
        self, monotonic_us: int, wall_us: int, rows_max: int, race: bool, rows_over: int = 0
    ) -> JobFacts:
        """The facts of this beat, from the staged rows; the caller sets `flush`.

        It takes `rows_max` rows, or all where those are at most `rows_over` more.
        """
        self.schedules.begin(monotonic_us)
        for s in self.streams.values():
            s.forget()
        reopened = self._reopen() if race else {}
        unread = {name: s.staging.full for name, s in self.streams.items()}
        self._judge(monotonic_us, wall_us, unread)
        facts = {name: s.logged() for name, s in self.streams.items()}
        for name, watermark_us in reopened.items():
            facts[name].reopen_us = watermark_us
        for name, f in facts.items():
            if f.logged_rows:
                self.streams[name].silence.arrived(monotonic_us)
        job = JobFacts(race, Flush.NO, facts)
        if not race:
            return job
        if self.draining:
            self.reset_idle_timers(monotonic_us)  # nothing is read, so no producer is idle
        chunks = {name: s.staging.chunks() for name, s in self.streams.items()}
        held = set() if self.draining else self.table_waits.held(self.streams)
        staged_chunks = {
            name: StagedChunks(
                chunks[name].stop,
                chunks[name].time_min,
                None if self.draining else s.time.horizon(s.staging.producers, monotonic_us),
                unread[name],
            )
            for name, s in self.streams.items()
        }
        waits, full = self.waiting(), self.full
        busy, self.pressed = waits or full, full and self.staged() > 0
        loads = set() if busy else self.table_loads.chosen(self.streams, rows_max)
        staged_chunks |= {name: empty(staged_chunks[name]) for name in held | loads}
        free = self._admissible(staged_chunks)
        self.throttled = job.throttled = full and any(free.values())
        if self.throttled or waits:
            take, self.cut = dict.fromkeys(staged_chunks, 0), waits > 0
        else:
            take, self.cut = decide_take(staged_chunks, self.couplings, rows_max, rows_over, free)
        self.saturated = not self.throttled and self._is_saturated(take, free, unread)
        take |= {name: len(chunks[name]) for name in loads}
        for name, count in take.items():
            f, s = facts[name], self.streams[name]
            f.take_chunks = count
            f.take_rows = int(chunks[name].stop[count - 1]) if count else 0
            s.time.take(chunks[name], count)
            left = chunks[name].after(count)
            f.watermark_us = s.time.propose(s.staging.producers, left, monotonic_us)
            f.populated = s.populates(f.take_rows)
        if self.draining:
            self._end(facts)
        else:
            self._follow(facts, staged_chunks)
        for name in held:
            self.streams[name].aligned = True
        self.cut |= self.table_waits.release(held, self.streams, facts)
        skip_log(facts, loads)
        return job

    def replay(self, facts: JobFacts, arrays: Iterator[npt.NDArray[np.uint8]]) -> None:
        """Restore staging and watermarks as `decide` left them, from a log record."""
        for name, f in facts.streams.items():
            s = self.streams[name]
            if f.producers:
                s.staging.producers.apply(f.producers)
                s.time.forget(f.producers["forgotten"])
            if f.logged_rows:
                batch, chunks = read_inputs(s.plan.schema, f, arrays)
                s.staging.append_logged(batch, chunks)
            s.staging.refused_ahead = f.refused_ahead
            if f.reopen_us is not None:
                s.time.reopen(f.reopen_us)
            if f.set_aside:
                s.time.take(s.staging.chunks(), f.set_aside[0])
                s.staging.consume(*f.set_aside)
            if facts.race:
                s.time.take(s.staging.chunks(), f.take_chunks)

    def skip(
        self, beat: int, facts: JobFacts, pages: Sequence[PageKey], context: SinkContext
    ) -> None:
        """Recover a record without its inputs (durabilities `results` and `none`).

        Positions, watermarks and page numbers advance.  Staged rows, the operators' windows and
        open pages are dropped, because the beat may have consumed them.
        """
        for name, f in facts.streams.items():
            s = self.streams[name]
            if f.producers:
                s.staging.producers.apply(f.producers)
                s.time.forget(f.producers["forgotten"])
            s.staging.refused_ahead = f.refused_ahead
            if f.reopen_us is not None:
                s.time.reopen(f.reopen_us)
            s.staging.consume(len(s.staging.chunks()), s.staging.rows)
            s.time.skip(s.staging.producers)
            if facts.race:
                s.time.watermark_us = f.watermark_us
        self.schedules.close()
        self.operators = self._new_operators(context)
        for sink in self.sinks.values():
            sink.skip(beat, pages)

    def step(self, beat: BeatContext, facts: JobFacts) -> list[SealedPage]:
        """Run the job over the rows that the facts take; returns the sealed pages."""
        if not facts.race:
            return []
        flows = self.operate(beat, facts)
        since = perf_counter_ns()
        pages: list[SealedPage] = []
        for name, sink in self.sinks.items():
            sink.write(beat, flows[self.plan.inputs[name][0]])
            pages += sink.seal(beat, facts.flush)
            since = self._spent(name, since)
        pages += seal_early(beat, facts, self.sinks, self.open_page_shares)
        self.consume(facts)
        return pages

    def operate(self, beat: BeatContext, facts: JobFacts) -> dict[str, Flow]:
        """Run the operators over the rows that the facts take; returns all flows."""
        flows: dict[str, Flow] = {}
        for name, f in facts.streams.items():
            self._open(flows, name, f, facts.loads is None)
        since = perf_counter_ns()
        self._deferrals.begin(facts.processed)
        self.schedules.recall(facts.ran)
        self.table_loads.begin(facts)
        for name in self.plan.order:
            inputs = [flows[link] for link in self.plan.inputs[name]]
            flows[name] = self.schedules.run(name, self.operators[name], beat, inputs)
            for output, flow in self.operators[name].outputs.items():
                flows[f"{name}.{output}"] = flow
            since = self._spent(name, since)
        facts.processed, facts.ran = self._deferrals.processed(), self.schedules.ran()
        self.table_loads.end(facts, self.streams)
        return flows

    def consume(self, facts: JobFacts) -> None:
        """Drop the rows that the facts take from the stagings."""
        for name, f in facts.streams.items():
            s = self.streams[name]
            s.staging.consume(f.take_chunks, f.take_rows)
            s.rows += f.rows

    def ended(self) -> bool:
        """Whether every stream has ended and all its rows are processed."""
        ends = all(s.time.watermark_us == WATERMARK_MAX_US for s in self.streams.values())
        return ends and not self.waiting() and not self.schedules.waiting()

    def save(self, reuse: bool = False) -> State:
        """Everything as named arrays (`streams/<id>/…`, `operators/<id>/…`, `sinks/<id>/…`).

        With `reuse` the arrays are valid until the next call with `reuse`.
        """
        arrays: State = {}
        for name, s in self.streams.items():
            part = f"{s.plan.section}/{name}"
            put_arrays(arrays, f"{part}/staging", s.staging.save())
            s.forget()
            put_arrays(arrays, f"{part}/time", s.time.save())
            put_arrays(arrays, f"{part}/counts", s.save_counts())
        for name, operator in self.operators.items():
            scratch = self._saved.setdefault(name, Scratch()) if reuse else Scratch()
            put_arrays(arrays, f"operators/{name}", operator.save(scratch))
        arrays |= self.schedules.save()
        for name, sink in self.sinks.items():
            put_arrays(arrays, f"sinks/{name}", sink.save())
        return arrays

    def load(self, arrays: State) -> None:
        """Load a saved state; parts that are missing start empty."""
        for name, s in self.streams.items():
            part = f"{s.plan.section}/{name}"
            if staged := arrays_under(arrays, f"{part}/staging"):
                s.staging.load(staged)
                s.time.load(arrays_under(arrays, f"{part}/time"))
                s.load_counts(arrays_under(arrays, f"{part}/counts"))
        for name, operator in self.operators.items():
            if state := arrays_under(arrays, f"operators/{name}"):
                operator.load(state)
        self.schedules.load(arrays)
        for name, sink in self.sinks.items():
            if state := arrays_under(arrays, f"sinks/{name}"):
                sink.load(state)

    def _spent(self, name: str, since_ns: int) -> int:
        now = perf_counter_ns()
        self.spent_ns[name] += now - since_ns
        return now

    def _new_operators(self, context: SinkContext) -> dict[str, Operator]:
        built = {name: self.plan.operators[name].build(context.workers) for name in self.plan.order}
        scratch = table_scratch(self.plan)
        for name, operator in built.items():
            operator.place(operator_place(self.plan, context, name, scratch))
        self._deferrals = Deferrals(built, self.plan.promises.memory_bytes)
        self.schedules = Schedules(self.plan, built)
        self.table_loads.follow(built)
        return built

    def _reopen(self) -> dict[str, int]:
        """Open ended streams again that have new rows; returns their watermarks.

        Where all streams have ended, all that listen open with them: their rows are awaited.
        An opened stream goes on where it ended, and not behind the streams it is joined with.
        """
        again = {n for n, s in self.streams.items() if s.staging.rows and s.ended}
        if again and self.ended():
            again |= {n for n, s in self.streams.items() if s.plan.source.listens}
        watermarks = {}
        for name in again:
            others = (self.streams[c.other] for c in self.couplings if c.stream == name)
            live = (o.time.watermark_us for o in others if not o.ended)
            watermarks[name] = max(self.streams[name].time.reopened_us(), *live, WATERMARK_MIN_US)
        for name, watermark_us in watermarks.items():
            s = self.streams[name]
            s.time.reopen(watermark_us)
            if not s.staging.rows:
                s.close_round()
        return watermarks

    def _judge(self, monotonic_us: int, wall_us: int, unread: Mapping[str, bool]) -> None:
        """Find the producers that are too far behind to count; none of an unread stream."""
        if self.draining:
            return
        streams = self.streams.items()
        active = {n: s.time.active(s.staging.producers, monotonic_us) for n, s in streams}
        fronts = {n: s.front_us(active[n], wall_us) for n, s in streams}
        for name, s in self.streams.items():
            others = (fronts[c.other] for c in self.couplings if c.stream == name)
            counts = np.zeros_like(active[name]) if unread[name] else active[name]
            s.judge(max(fronts[name], *others, WATERMARK_MIN_US), counts, monotonic_us)

    def _is_saturated(
        self, take: Mapping[str, int], free: Mapping[str, int], unread: Mapping[str, bool]
    ) -> bool:
        """See `saturated`."""
        return any(
            take[name] < free[name] or (unread[name] and not s.aligned)
            for name, s in self.streams.items()
            if s.plan.source.listens
        )

    def _admissible(self, staged_chunks: Mapping[str, StagedChunks]) -> dict[str, int]:
        """The chunks of each stream that wait for no other one; notes which streams are `aligned`,
        and up to which time each staging accepts rows: any while a stream is full, since the rows
        that the others wait for may be unread."""
        free, full = {}, any(own.full for own in staged_chunks.values())
        for name, s in self.streams.items():
            limit = limit_us(name, staged_chunks, self.couplings)
            free[name] = up_to(staged_chunks[name], limit)
            s.aligned = free[name] < len(staged_chunks[name].stop)
            s.staging.useful_us = TIME_MAX_US if full or limit is None else limit
        return free

    def _follow(
        self, facts: dict[str, StreamFacts], staged_chunks: Mapping[str, StagedChunks]
    ) -> None:
        """Let a stream without active producers and staged rows follow the streams it is joined
        with.

        One that has had no row yet follows only where the rows that await it take too much memory.
        """
        for name, own in facts.items():
            others = {c.other for c in self.couplings if c.stream == name}
            if staged_chunks[name].horizon_us is not None or not others:
                continue
            if self.streams[name].staging.rows > own.take_rows:
                continue
            if self.streams[name].time.fresh and not self._crowded():
                continue
            lowest = min(facts[o].watermark_us for o in others)
            if lowest != WATERMARK_MAX_US:
                own.watermark_us = max(own.watermark_us, lowest)

    def _crowded(self) -> bool:
        """Whether rows that wait for partners take half of the operators' share of the memory."""
        held = sum(o.state_bytes() for o in self.operators.values())
        return held > self.plan.promises.memory_bytes // 4

    def _end(self, facts: dict[str, StreamFacts]) -> None:
        """End the streams of a job that is deleted when it is drained, with their last rows."""
        left = any(f.take_rows < self.streams[name].staging.rows for name, f in facts.items())
        if self.meta.ends and not left:
            for f in facts.values():
                f.watermark_us = WATERMARK_MAX_US

    def _open(self, flows: dict[str, Flow], name: str, f: StreamFacts, live: bool) -> None:
        """Make flows of a stream's taken rows: on-time rows, and late rows for a dead letter."""
        s = self.streams[name]
        batch, late = s.open(f, self.scratch, live)
        flows[name] = Flow(batch, f.watermark_us, s.populated or s.plan.table is None)
        if (log := s.staging.origins) is not None:
            origins = log.take(f.rows, s.staging.producers.ids)
            if log.forwards:
                flows[name] = replace(flows[name], origins=origins)
        if s.plan.late == "dead_letter":
            flows[f"{name}.late"] = Flow(late, f.watermark_us)


def logged_inputs(job: JobRuntime, facts: JobFacts) -> dict[str, tuple[Batch, Chunks]]:
    """The rows that streams staged since the last beat, which the log records."""
    streams = facts.streams.items()
    return {name: job.streams[name].staging.unlogged() for name, f in streams if not f.loaded}
