"""The heart: the loop idle → wake → race → commit → idle, for all jobs of a daemon together.

One thread runs this loop and all code that touches stagings, operators and sinks.  Commits run
beside it (`edged.beat.committer`).  Control is served in all its waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from edged.beat.batcher import Batcher, BeatCosts
from edged.beat.beat_plan import BeatPlan
from edged.beat.changes import ChangeRequest, CheckRequest, JobChanges, JobHost
from edged.beat.committer import Commit, Committed, Committer
from edged.beat.crash_counter import CrashCounter
from edged.beat.disk_full_gate import RETRY_MS
from edged.beat.fingerprint import fingerprint
from edged.beat.governor_hooks import GovernorHooks
from edged.beat.inputs import Inputs
from edged.beat.jobs import JobRegistry
from edged.beat.pending_work import PendingWork
from edged.beat.quarantine import Quarantine
from edged.beat.raced_beat import RacedBeat
from edged.beat.record import BeatFacts
from edged.beat.runtime import JobRuntime
from edged.beat.snapshots import SnapshotSchedule
from edged.beat.stats import BeatTimes, SourceStalls, Stats
from edged.beat.stream_alignment import ONE_CHUNK
from edged.beat.stream_events import StreamEvents
from edged.beat.table_files import TableFiles
from edged.config.sections import SNAPSHOT_BYTES
from edged.data.flow import BeatContext, State
from edged.data.workers import Workers
from edged.events.publisher import EventPublisher
from edged.job.changes import PAUSED, Change
from edged.job.durability import RESULTS, SYNCED
from edged.job.promises import Promises
from edged.placement.placement import KernelProfile
from edged.platform.clock import Clock
from edged.platform.event_loop import EventLoop
from edged.sinks.base import Flush
from edged.sources.base import Source
from edged.store import BeatRecord, Store, StoreFull
from edged.store.errors import no_room
from governors.base import Governor

REST_US, REST_SHARE = 10_000, 20
"""A wait between beats of at least REST_US, and of the latency promise / REST_SHARE, is a rest."""
CRASHES_MAX = 5
"""Processes that may die in races before the input that kills them is set aside."""


class Heart:
    """The loop, built from recovered jobs; `run` returns after `stop`.

    Implements `edged.beat.changes.Beats`.
    """

    def __init__(
        self,
        registry: JobRegistry,
        inputs: Inputs,
        store: Store,
        committer: Committer,
        event_loop: EventLoop,
        stats: Stats,
        clock: Clock,
        workers: Workers,
        governor: Governor,
        publisher: EventPublisher,
        host: JobHost,
        *,
        beat: int,
        directory: Path,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        profile: KernelProfile | None = None,
    ) -> None:
        self.jobs, self.sources, self._inputs = registry.list, inputs.sources, inputs
        self.changes = JobChanges(registry, inputs, clock, publisher, host)
        self._registry = registry
        self._store, self._committer, self._event_loop = store, committer, event_loop
        self._stats, self._clock, self._workers = stats, clock, workers
        self.quarantine = Quarantine(directory / "quarantine", publisher)
        self._crashes = CrashCounter(directory / "attempts", CRASHES_MAX, clock.monotonic_us())
        self._snapshot_schedule = SnapshotSchedule(store, committer.snapshots, snapshot_bytes)
        self._stream_events = StreamEvents(publisher)
        self._tables = TableFiles(str(directory / "tables"))
        self._profile = profile
        self.beat = beat
        self.stalls = SourceStalls()
        self.batcher = Batcher(0, 0)
        self._pending = PendingWork(clock.monotonic_us())
        self._governor = GovernorHooks(governor, self.batcher, self._pending, event_loop, clock)
        self._drains = False
        self._drains_until_us: int | None = None
        self.drained = False
        """Whether a drain has come to its end."""
        self.on_round: Callable[[], None] = lambda: None
        """Called between beats, with changes of the jobs made."""
        self._rested_us = clock.monotonic_us()
        """End of the last rest between two beats."""
        self._stopping = self._beating = self._saturated = self._input_waits = False
        self._before_commit: Callable[[], None] = lambda: None
        event_loop.add_commit(committer.fileno())
        self.on_jobs_changed()

    def stop(self) -> None:
        """Finish the current beat, seal and commit all pages, and return from `run`."""
        self._stopping = True
        self._event_loop.wake()

    def drain(self, within_us: int | None) -> None:
        """Stop after all accepted rows are processed and the centre has all pages.

        Nothing new is read.  After `within_us`, if it is given, the heart stops in any case.
        """
        self._drains = True
        if within_us is not None:
            self._drains_until_us = self._clock.monotonic_us() + within_us
        self.on_jobs_changed()
        self._event_loop.wake()

    def run(self, before_commit: Callable[[], None] = lambda: None) -> None:
        """Beat until stopped.  `before_commit` is called in every beat that takes rows, with no
        commit in flight.

        A stop ends with a snapshot: the next start replays nothing, and no window is lost whose
        inputs were not logged.  If the store is full, both the snapshot and the beat that waits for
        room are given up.  That beat was not acked, so the producers send its rows again.  The same
        holds for a sink whose disk is full.
        """
        self._before_commit = before_commit
        try:
            while not self._stopping:
                self._committer.check()
                self._heed_store()
                self.changes.serve(self)
                drained = self.changes.settle(self)
                if self._drains and (drained or self._drain_is_over()):
                    self.drained = drained
                    break
                self.on_round()
                began_us = self._clock.monotonic_us()
                plan = self._await_beat()
                self._note_rest(began_us)
                if plan is not None:
                    self._beat(plan)
            self._stopping = True
            self._beat(BeatPlan(self._clock.monotonic_us(), True, last=True))
            self.await_commit()
            if self._store.log_bytes_since_snapshot:
                self.snapshot()
        except StoreFull:
            if not self._stopping:
                raise
        self._crashes.close()

    @property
    def settled(self) -> bool:
        """Whether no beat is under way and no commit in flight, so that all sealed pages are
        durable."""
        return not self._beating and not self._committer.busy

    @property
    def looked_us(self) -> int:
        """Monotonic time up to which a stream without new rows is known to have none: now while
        nothing is ready, else the last ingest."""
        if self._input_waits or self._beating:
            return self._pending.read_us
        return self._clock.monotonic_us()

    @property
    def state(self) -> str:
        """`running`, `draining` (before a stop) or `stopping`."""
        if self._stopping:
            return "stopping"
        return "draining" if self._drains else "running"

    def save(self, reuse: bool = False) -> tuple[bytes, State]:
        """Facts and arrays of a snapshot of all jobs; see `JobRuntime.save`."""
        arrays: State = {}
        for job in (job for job in self.jobs if job.plan.promises.logs):
            for key, value in job.save(reuse).items():
                arrays[f"{job.plan.name}/{key}"] = value
        self._tables.note(self.beat, arrays)
        if not reuse:
            with no_room("the files of tables"):
                self._tables.sync()
        return json.dumps(self._registry.facts(), separators=(",", ":")).encode(), arrays

    # changes of the jobs -----------------------------------------------------------------------

    def post(self, request: ChangeRequest | CheckRequest) -> None:
        """Request a change of the jobs; any thread.  Raises CommandError where too many wait."""
        self.changes.post(request)
        self._event_loop.wake()

    def await_commit(self) -> None:
        """Return when no commit is in flight: all staged rows are durable then."""
        self._committer.wait(self._while_committing)

    def seal_job(self, job: JobRuntime) -> None:
        """Run a beat that leaves no page of the job open."""
        self._beat(BeatPlan(self._clock.monotonic_us(), True, seal=job))
        self.await_commit()

    def on_jobs_changed(self) -> None:
        """Adopt the registry's jobs, their states and their promises."""
        now = self._clock.monotonic_us()
        for job in self.jobs:
            was_suspended = job.suspended
            job.apply_state(self._drains)
            resumed = was_suspended and not job.suspended
            if resumed:
                job.reset_idle_timers(now)
            for s in job.streams.values():
                if s.rows and (resumed or not s.silence.begun):
                    s.silence.resumed(now)
            if not job.placers:
                job.place_by(self._profile)
        for source in self.sources:
            self._note_stall(source)
        self._tables.follow(self.jobs, self._registry.shelved)
        self._stream_events.watch(self.jobs)
        self._adopt_promises()
        self._pending.jobs_changed(self._active(), self._clock.monotonic_us())
        self._pending.took = True  # read at once from sources that were suspended

    def log_change(self, change: Change, on_durable: Callable[[], None]) -> None:
        """Write the change into the log; `on_durable` is called on the commit thread."""
        self.beat += 1
        facts = BeatFacts(change.at_us, {}, change)
        commit = Commit(self.beat, BeatRecord(self.beat, facts.encode(), [], []), [])
        commit.on_durable = lambda _: on_durable()
        self._committer.submit(commit)

    def snapshot(self) -> None:
        """Take a snapshot now, with no commit in flight.  Raises StoreFull."""
        self._committer.snapshot(self.beat, *self.save(), self._while_committing)
        self.delete_unnamed()

    def delete_unnamed(self) -> None:
        """Delete the files of tables and shelf that the newest snapshots do not name."""
        self._tables.collect(self._committer.snapshots.adopted)
        kept = {(job.name, job.beat) for job in self._registry.shelved.values()}
        self._committer.call(lambda: self._store.keep_shelved(kept))

    def _adopt_promises(self) -> None:
        """Combine the jobs' promises: the shortest times, the strongest durability."""
        promises = [job.plan.promises for job in self.jobs]
        active = [job.plan.promises for job in self.jobs if job.meta.state != PAUSED]
        active = active or [Promises()]
        self.batcher.promise(min(p.latency_us for p in active),
                             min(p.ack_within_us for p in active))  # fmt: skip
        self._exactly_once = self._registry.logs_inputs()
        self._sync = any(p.durability in SYNCED for p in promises)

    # waiting -----------------------------------------------------------------------------------

    def _active(self) -> list[JobRuntime]:
        """The jobs that take part in beats."""
        return [job for job in self.jobs if not job.dormant]

    def _interrupted(self) -> bool:
        """Whether a stop or a change of the jobs comes before the next beat.  Raises the failure of
        the commit thread."""
        self._committer.check()
        return self._stopping or bool(self.changes)

    def _drain_is_over(self) -> bool:
        until = self._drains_until_us
        return until is not None and self._clock.monotonic_us() >= until

    def _await_beat(self) -> BeatPlan | None:
        """Sleep until a beat is due; None where something else comes first."""
        self._input_waits = False
        oldest, race = self._await_input()
        if oldest is None:
            return None
        self._input_waits = True
        if not race:
            now = self._clock.monotonic_us()
            wake = self.batcher.wake(oldest, now, self._pending.since_us())
            self._event_loop.until(wake.at_us, self._interrupted)
            if wake.at_us > now and not self._interrupted():
                self.batcher.woke(self._clock.monotonic_us() - wake.at_us)
            race = wake.race
        rows_max = None
        if race:
            rows_max = self._governor.admitted(oldest, self._active, self._interrupted)
        if self._interrupted():
            return None  # input stays in the sources
        if not race:
            self._governor.before_commit(oldest, self._active())
        return BeatPlan(oldest, race, rows_max)

    def _note_rest(self, began_us: int) -> None:
        now = self._clock.monotonic_us()
        if now - began_us >= max(REST_US, self.batcher.latency_us // REST_SHARE):
            self._rested_us = now

    def _await_input(self) -> tuple[int | None, bool]:
        """Wait for work.  Returns when the oldest of it arrived (None: there is none), and whether
        a deadline has passed, so that the beat must not wait for more."""
        now = self._clock.monotonic_us()
        if any(job.drains_now(now) for job in self._active()):
            self._event_loop.serve_control()
            return now, True
        if self._pending.deferred:
            self._event_loop.serve_control()
            return self._pending.new_us, True
        blocked = self._inputs.blocked_by_links(self._active(), self.stalls, now)
        if not blocked and self._pending.can_go_on(self.sources):
            self._event_loop.serve_control()
            return self._pending.new_us, False
        if not blocked and self._event_loop.ready_now():
            return self._pending.new_us, False
        # `ready_now` may have consumed the wake of a stop, of a change or of a failed commit
        if self._interrupted():
            return None, False
        if any(job.released(now) for job in self._active()):
            return self._clock.monotonic_us(), True
        deadline = self._deadline(now)
        if self._event_loop.until_input(deadline, muted=blocked):
            return self._clock.monotonic_us(), False
        self._pending.unready(self._event_loop.unready_us)
        now = self._clock.monotonic_us()
        return (now, True) if deadline is not None and now >= deadline else (None, False)

    def _deadline(self, now: int) -> int | None:
        """When to beat, or to serve changes, without new input."""
        due = self._pending.due_us(now, self._clock.wall_us(), self._active(), self.batcher)
        if self._drains_until_us is not None:
            due.append(self._drains_until_us)
        if self.changes.retry_us > now:
            due.append(self.changes.retry_us)
        return min(due) if due else None

    def _while_committing(self) -> None:
        """Serve control until the commit thread reports.  A stop gives up a commit that waits for
        room in a full store."""
        over = self._drain_is_over()
        self._heed_store()
        if self._committer.gate.full and (self._stopping or over):
            self._stopping = True
            self._committer.give_up()
        self._event_loop.until_commit(None if over else self._drains_until_us)

    def _heed_store(self) -> None:
        self._inputs.heed_store(self._committer.gate.full, self.jobs, self._clock.monotonic_us())

    # a beat ------------------------------------------------------------------------------------

    def _beat(self, plan: BeatPlan) -> None:
        self._beating, jobs = True, self._active()
        plan.oldest_us = self._pending.oldest_us(plan.oldest_us)
        woke, wall = self._clock.monotonic_us(), self._clock.wall_us()
        ingested = self._ingest(woke, wall)
        facts = self._decide(jobs, ingested, wall, plan)
        raced = RacedBeat.of(jobs, facts, self._exactly_once)
        if raced is None:
            self._skip_beat()
            return
        self.beat += 1
        self._race(jobs, raced)
        times = BeatTimes(
            self.beat, plan.oldest_us, woke, ingested, self._clock.monotonic_us(), 0,
            facts.rows_logged(), facts.rows_taken(),
            {j.plan.name: j.plan.promises.latency_us for j in jobs if facts.takes(j.plan.name)},
            self._saturated,
        )  # fmt: skip
        self._governor.after_race(times.rows_logged, times.rows_taken)
        self._pending.raced(self._active(), plan.oldest_us)
        self._stream_events.report(jobs, times.raced_us)
        left_us = self._clock.monotonic_us()
        self.await_commit()
        waited_us = self._clock.monotonic_us() - left_us
        self._before_commit()
        self._submit(raced, times)
        if plan.race:
            self.batcher.reserve_us = max((job.place() for job in jobs), default=0.0)
        if self._crashes.careful:
            self.await_commit()
        self._beating = False
        fill = max((s.pressure() for s in self.sources), default=0.0)
        race_us = times.sealed_us - waited_us - ingested
        self.batcher.learn(BeatCosts(times.rows_taken, ingested - woke, race_us, fill))

    def _ingest(self, now: int, wall: int) -> int:
        """Ingest from the sources, unless the last beat left rows staged; returns the end time.
        Rows that wait in one job do not keep the others from reading."""
        if not self._pending.cut or self._pending.deferred:
            for source in self.sources:
                source.ingest(now, wall)
                self._note_stall(source)
            self._pending.ingested(now, self._clock.monotonic_us())
        self._governor.after_ingest()
        return self._clock.monotonic_us()

    def _note_stall(self, source: Source) -> None:
        """Note whether senders wait because staging is full.  Waiting for another stream of a join
        is no stall."""
        stalled = source.more() and any(
            s.staging.full and not s.aligned for s in self._registry.fed_by(source.feeds)
        )
        self.stalls.note(source.name, stalled, self._clock.monotonic_us())

    def _decide(
        self, active: Sequence[JobRuntime], now: int, wall: int, plan: BeatPlan
    ) -> BeatFacts:
        rows_max, rows_over = self.batcher.rows_max(), self.batcher.rows_over()
        held_us = None
        if plan.rows_max is not None and plan.rows_max < rows_max + rows_over:
            rows_max, rows_over, held_us = max(1, min(rows_max, plan.rows_max)), 0, now
        if self._crashes.careful:
            rows_max = ONE_CHUNK
        # idleness counts until the last ingest, not until `now`: no source was read in between
        read_us = self._pending.read_us
        jobs = {
            j.plan.name: j.decide(read_us, wall, rows_max, plan.race, rows_over) for j in active
        }
        facts = BeatFacts(wall, jobs)
        open_us = plan.oldest_us if self._pending.open_us is None else self._pending.open_us
        flush = Flush.PROMPT if self.batcher.must_flush(open_us, now) else Flush.NO
        for job in active if plan.race else ():
            mine = jobs[job.plan.name]
            whole = plan.last or job.draining or job is plan.seal or mine.ends()
            results, job.schedules.flush = job.plan.promises.durability == RESULTS, whole
            mine.flush = Flush.ALL if whole or results else flush
        self._pending.decided(active, facts, plan.race, plan.oldest_us, held_us)
        self._saturated = (
            plan.race and held_us is None and not self._crashes.careful
            and now - self._rested_us > self.batcher.latency_us
            and (any(job.saturated for job in active) or any(s.unread() for s in self.sources))
        )  # fmt: skip
        return facts

    def _race(self, jobs: Sequence[JobRuntime], raced: RacedBeat) -> None:
        """Run every job's step.  Input that has crashed too often is set aside instead."""
        beat = BeatContext(self.beat, raced.facts.wall_us, self._workers, self._await_room)
        for job in jobs:
            mine = raced.facts.jobs[job.plan.name]
            if not self._crashes.begin(fingerprint(job, mine) if self._crashes.careful else 0):
                self.quarantine.set_aside(beat, job, mine)
            raced.add(job, job.step(beat, mine))
            if problem := self.quarantine.take_refused(beat, job):
                self.changes.stop_job(job, problem)
        self._committer.gate.proceed("beat")
        self._crashes.end(self._clock.monotonic_us())
        for job in jobs:
            for s in job.streams.values():
                s.staging.mark_logged()

    def _await_room(self, problem: OSError) -> None:
        """A sink or the quarantine found its disk full: wait for a retry, with control served."""
        self._committer.gate.wait("beat", str(problem))
        now = self._clock.monotonic_us()
        self._event_loop.until(now + 1000 * RETRY_MS, lambda: self._stopping)
        if self._stopping or self._drain_is_over():
            self._stopping = True
            self._crashes.end(now)
            raise StoreFull(str(problem)) from problem

    def _skip_beat(self) -> None:
        """End a beat that found nothing to do: it leaves no record."""
        self._stats.idle_beats += 1
        self._governor.after_race(0, 0)
        self.await_commit()
        for source in self.sources:
            source.committed(source.seal())
        self._beating = False

    def _submit(self, raced: RacedBeat, times: BeatTimes) -> None:
        adopted = self._committer.snapshots.adopted
        before = self._tables.submit(self.beat, raced.facts, adopted)
        self._store.tables_bytes = self._tables.disk_bytes()
        tickets = [(source, source.seal()) for source in self.sources]
        commit = raced.commit(self.beat, tickets, self._sync, self._registry)
        commit.before = before
        logged = raced.logged_bytes(), self._tables.loaded_bytes
        if commit.record is not None and self._snapshot_schedule.due(*logged):
            commit.snapshot = self.save(reuse=True)  # no snapshot is being written
            commit.sync_files = self._tables.sync
        times.sealed_us = self._clock.monotonic_us()

        def on_durable(committed: Committed) -> None:
            self.batcher.committed(committed.durable_us - times.sealed_us)
            self._stats.durable(times, committed)

        commit.on_durable = on_durable
        self._committer.submit(commit)
