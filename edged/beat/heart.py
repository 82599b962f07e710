"""The heart: idle → wake → race → commit → idle, for all jobs of one daemon together.

One thread runs this loop and everything that touches stagings, operators and sinks.  Commits run
beside it (see `committer`), control is served in all its waits, and nothing else lives here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edged.beat.batcher import Batcher, Beaten
from edged.beat.changes import Changes, Posted
from edged.beat.committer import Commit, Committer
from edged.beat.crash_counter import Attempts
from edged.beat.disk_full_gate import ROOM_MS
from edged.beat.governor_hooks import Steering
from edged.beat.inputs import Inputs
from edged.beat.jobs import Jobs
from edged.beat.pending_work import Left, is_empty
from edged.beat.quarantine import Quarantine
from edged.beat.record import BeatFacts, buffers
from edged.beat.runtime import JobRuntime, logged_inputs
from edged.beat.snapshots import SNAPSHOT_BYTES, SnapshotPace
from edged.beat.stats import BeatTimes, Held, Stats
from edged.beat.stream_alignment import ONE_CHUNK
from edged.data.flow import BeatContext, State
from edged.data.workers import Workers
from edged.job.changes import PAUSED, Change
from edged.job.plan import Promises
from edged.pages.sealed import SealedPage
from edged.placement.placement import KernelProfile
from edged.platform.clock import Clock
from edged.platform.event_loop import Waiter
from edged.sinks.base import Flush
from edged.sources.base import Source
from edged.store import BeatRecord, Store, StoreFull
from governors.base import Governor

ATTEMPTS_MAX = 5
"""Processes that may die in races before the input that they die of is set aside."""


@dataclass(slots=True)
class Cue:
    """What a beat is for."""

    oldest_us: int
    """Arrival (monotonic) of the oldest rows that it may find."""
    race: bool
    """Whether to run the jobs, or only to commit what has arrived."""
    rows_max: int | None = None
    """Rows that the governor admits; None: all."""
    last: bool = False
    """Whether no beat follows, so that every page is to be sealed."""
    seal: JobRuntime | None = None
    """A job that is to have nothing open after it."""


class Heart:
    """The loop.  Built by the daemon from recovered jobs; `run` returns after `stop`."""

    def __init__(
        self,
        book: Jobs,
        inputs: Inputs,
        store: Store,
        committer: Committer,
        waiter: Waiter,
        stats: Stats,
        clock: Clock,
        workers: Workers,
        governor: Governor,
        *,
        beat: int,
        directory: Path,
        snapshot_bytes: int = SNAPSHOT_BYTES,
        profile: KernelProfile | None = None,
    ) -> None:
        self.jobs, self.sources = book.list, inputs.sources
        self.changes = Changes(book, inputs, clock)
        self._book = book
        self._store, self._committer, self._waiter = store, committer, waiter
        self._stats, self._clock, self._workers = stats, clock, workers
        self.quarantine = Quarantine(directory / "quarantine")
        self._attempts = Attempts(directory / "attempts", ATTEMPTS_MAX, clock.monotonic_us())
        self._pace = SnapshotPace(store, committer.snapshots, snapshot_bytes)
        self._profile = profile
        self.beat = beat
        self.held = Held()
        self.batcher = Batcher(0, 0)
        self._left = Left(clock.monotonic_us())
        self._steering = Steering(governor, self.batcher, self._left, waiter, clock)
        self._drains_until_us: int | None = None
        self._stopping = self._beating = False
        self.before_commit: Callable[[], None] = lambda: None
        """Called in every beat that takes something, with no commit in flight."""
        waiter.add_commit(committer.fileno())
        committer.failed = waiter.kick
        self.take_jobs()

    def stop(self) -> None:
        """Let the current beat finish, seal and commit what is there, and return from `run`."""
        self._stopping = True
        self._waiter.kick()

    def drain(self, within_us: int) -> None:
        """Read nothing new, race and seal all that was accepted, wait until the centre has it, for
        `within_us` at most; then stop."""
        self._drains_until_us = self._clock.monotonic_us() + within_us
        self.take_jobs()
        self._waiter.kick()

    def run(self) -> None:
        """Beat until stopped.

        A stop ends with a snapshot, so that the next start replays nothing and no window is lost
        whose inputs were not logged.  Where the store is full when stopped, the snapshot is given
        up, and the beat that waits for room: it was not acked, so the producers have it still.
        The same goes for a sink whose disk is full.
        """
        try:
            while not self._stopping:
                self._committer.check()
                self.changes.serve(self)
                drained = self.changes.settle(self)
                if self._drains_until_us is not None and (drained or self._drain_is_over()):
                    break
                if (cue := self._await_cue()) is not None:
                    self._beat(cue)
            self._stopping = True
            self._beat(Cue(self._clock.monotonic_us(), True, last=True))
            self.rest()
            if self._store.log_bytes_since_snapshot:
                self.snapshot()
        except StoreFull:
            if not self._stopping:
                raise
        self._attempts.close()

    @property
    def settled(self) -> bool:
        """Whether no beat is under way and no commit in flight: what was sealed is durable."""
        return not self._beating and not self._committer.busy

    @property
    def set_aside_rows(self) -> int:
        """Rows in the quarantine that this process put there."""
        return self.quarantine.rows

    @property
    def state(self) -> str:
        """`running`, `draining` (on its way to stop) or `stopping`."""
        if self._stopping:
            return "stopping"
        return "running" if self._drains_until_us is None else "draining"

    def save(self, reuse: bool = False) -> tuple[bytes, State]:
        """Facts and arrays of a snapshot of all jobs as they stand; see `JobRuntime.save`."""
        arrays: State = {}
        for job in self.jobs:
            for key, value in job.save(reuse).items():
                arrays[f"{job.plan.name}/{key}"] = value
        return json.dumps(self._book.facts(), separators=(",", ":")).encode(), arrays

    # what changes of the jobs need -------------------------------------------------------------

    def post(self, posted: Posted) -> None:
        """Ask for a change of the jobs; any thread.  Raises CommandError where too many wait."""
        self.changes.post(posted)
        self._waiter.kick()

    def rest(self) -> None:
        """Wait for the commit under way: all that was staged is durable then."""
        self._committer.wait(self._while_committing)

    def seal(self, job: JobRuntime) -> None:
        """A beat that leaves nothing of the job open."""
        self._beat(Cue(self._clock.monotonic_us(), True, seal=job))
        self.rest()

    def take_jobs(self) -> None:
        """The jobs, or their states, are others from now on."""
        for job in self.jobs:
            was_held = job.held
            job.hold(self._drains_until_us is not None)
            if was_held and not job.held:
                job.connect_anew(self._clock.monotonic_us())
            if not job.placers:
                job.place_by(self._profile)
        self._take_promises()
        self._left.found(self._active(), self._clock.monotonic_us())
        self._left.took = True  # sources that were held are read at once

    def log_change(self, change: Change, done: Callable[[], None]) -> None:
        """Put the change into the log; `done` is called on the commit thread when it is durable."""
        self.beat += 1
        facts = BeatFacts(change.at_us, {}, change)
        commit = Commit(BeatRecord(self.beat, facts.encode(), [], []), [])
        commit.done = lambda _: done()
        self._committer.submit(commit)

    def snapshot(self) -> None:
        """Take a snapshot now, with no commit under way.  Raises StoreFull."""
        self._committer.snapshot(self.beat, *self.save(), self._while_committing)

    def _take_promises(self) -> None:
        """What the jobs promise together: the shortest times, the strongest durability."""
        kept = [job.plan.promises for job in self.jobs if job.about.state != PAUSED] or [Promises()]
        self.batcher.promise(min(p.latency_us for p in kept), min(p.ack_within_us for p in kept))
        promises = [job.plan.promises for job in self.jobs]
        self._exactly_once = any(p.durability == "exactly_once" for p in promises)
        self._sync = any(p.durability != "none" for p in promises)

    # waiting -----------------------------------------------------------------------------------

    def _active(self) -> list[JobRuntime]:
        """The jobs that take part in beats now."""
        return [job for job in self.jobs if not job.rests]

    def _interrupted(self) -> bool:
        """Whether something is to be done between beats before the next one.  Raises what the
        commit thread has failed with."""
        self._committer.check()
        return self._stopping or bool(self.changes)

    def _drain_is_over(self) -> bool:
        until = self._drains_until_us
        return until is not None and self._clock.monotonic_us() >= until

    def _await_cue(self) -> Cue | None:
        """Sleep until a beat is due; None: something else is to be done first."""
        oldest, race = self._await_input()
        if oldest is None:
            return None
        if not race:
            now = self._clock.monotonic_us()
            wake = self.batcher.wake(oldest, now, self._left.since_us())
            self._waiter.until(wake.at_us, self._interrupted)
            race = wake.race
        rows_max = None
        if race:
            rows_max = self._steering.admitted(oldest, self._active, self._interrupted)
        if self._interrupted():
            return None  # what has come waits where it is
        return Cue(oldest, race, rows_max)

    def _await_input(self) -> tuple[int | None, bool]:
        """Wait for something to do; the arrival time of the oldest of it, None for nothing, and
        whether a deadline has passed, so that there is no waiting for more."""
        now = self._clock.monotonic_us()
        if any(job.drains for job in self._active()):
            self._waiter.serve_control()
            return now, True
        if self._left.can_go_on(self.sources):
            self._waiter.serve_control()
            return self._left.new_us, False
        if self._waiter.ready_now():
            return self._left.new_us, False
        # `ready_now` may have taken the kick that came with a stop, a change of the jobs or with a
        # commit's failure.
        if self._interrupted():
            return None, False
        deadline = self._deadline(now)
        if self._waiter.until_input(deadline):
            return self._clock.monotonic_us(), False
        now = self._clock.monotonic_us()
        return (now, True) if deadline is not None and now >= deadline else (None, False)

    def _deadline(self, now: int) -> int | None:
        """When to beat, or to look after changes, though nothing arrives."""
        due = self._left.due_us(now, self._clock.wall_us(), self._active(), self.batcher)
        if self._drains_until_us is not None:
            due.append(self._drains_until_us)
        if self.changes.again_us > now:
            due.append(self.changes.again_us)
        return min(due) if due else None

    def _while_committing(self) -> None:
        """Serve control until the commit thread says something; where that waits for room in a
        full store, nobody who is to stop waits with it."""
        over = self._drain_is_over()
        if self._committer.room.full and (self._stopping or over):
            self._stopping = True
            self._committer.give_up()
        self._waiter.until_commit(None if over else self._drains_until_us)

    # a beat ------------------------------------------------------------------------------------

    def _beat(self, cue: Cue) -> None:
        self._beating, jobs = True, self._active()
        cue.oldest_us = self._left.oldest_us(cue.oldest_us)
        woke, wall = self._clock.monotonic_us(), self._clock.wall_us()
        ingested = self._ingest(woke, wall)
        tickets = [(source, source.seal()) for source in self.sources]
        facts = self._decide(jobs, ingested, wall, cue)
        inputs = {job.plan.name: logged_inputs(job) for job in jobs}
        if is_empty(facts, jobs):
            self._pass_over(tickets)
            return
        self.beat += 1
        logged = buffers(inputs) if self._exactly_once else []
        pages = self._race(jobs, facts)
        times = BeatTimes(
            self.beat, cue.oldest_us, woke, ingested, self._clock.monotonic_us(), 0,
            facts.rows_logged(), facts.rows_taken(),
            {j.plan.name: j.plan.promises.latency_us for j in jobs if facts.takes(j.plan.name)},
        )  # fmt: skip
        self._steering.idle(times.rows_logged, times.rows_taken)
        self._left.raced(self._active(), cue.oldest_us)
        self.rest()
        self.before_commit()
        self._hand_over(facts, logged, pages, tickets, times)
        if cue.race:
            for job in jobs:
                job.place()
        if self._attempts.careful:
            self.rest()
        self._beating = False
        fill = max((s.pressure() for s in self.sources), default=0.0)
        race_us = times.raced_us - ingested
        self.batcher.beaten(Beaten(times.rows_taken, ingested - woke, race_us, fill))

    def _ingest(self, now: int, wall: int) -> int:
        """Listen to the sources, unless the last beat has left enough of what they said then; when
        that is done."""
        if not self._left.cut:
            for source in self.sources:
                source.ingest(now, wall)
                self.held.note(source.name, source.more(), self._clock.monotonic_us())
            self._left.listened(now, self._clock.monotonic_us())
        self._steering.ingested()
        return self._clock.monotonic_us()

    def _decide(self, active: Sequence[JobRuntime], now: int, wall: int, cue: Cue) -> BeatFacts:
        rows_max, rows_over, held_us = self.batcher.rows_max(), self.batcher.rows_over(), None
        if cue.rows_max is not None and cue.rows_max < rows_max + rows_over:
            rows_max, rows_over, held_us = max(1, min(rows_max, cue.rows_max)), 0, now
        if self._attempts.careful:
            rows_max = ONE_CHUNK
        # not by `now`: nobody was listened to since the last ingest
        heard_us = self._left.heard_us
        jobs = {j.plan.name: j.decide(heard_us, rows_max, cue.race, rows_over) for j in active}
        facts = BeatFacts(wall, jobs)
        open_us = cue.oldest_us if self._left.open_us is None else self._left.open_us
        flush = Flush.PROMPT if self.batcher.must_flush(open_us, now) else Flush.NO
        for job in active if cue.race else ():
            mine = jobs[job.plan.name]
            whole = cue.last or job.drains or job is cue.seal or mine.ends()
            results = job.plan.promises.durability == "results"
            mine.flush = Flush.ALL if whole or results else flush
        self._left.decided(active, facts, cue.race, cue.oldest_us, held_us)
        return facts

    def _race(self, jobs: Sequence[JobRuntime], facts: BeatFacts) -> list[SealedPage]:
        """Run every job's step; input that has crashed too often is set aside instead."""
        beat = BeatContext(self.beat, facts.wall_us, self._workers, self._await_room)
        pages: list[SealedPage] = []
        for job in jobs:
            mine = facts.jobs[job.plan.name]
            if not self._attempts.begin(job.fingerprint(mine) if self._attempts.careful else 0):
                self.quarantine.take(beat, job, mine)
            pages += job.step(beat, mine)
        self._committer.room.found("beat")
        self._attempts.end(self._clock.monotonic_us())
        for job in jobs:
            for s in job.streams.values():
                s.staging.mark_logged()
        return pages

    def _await_room(self, problem: OSError) -> None:
        """What the beat writes beside the store finds its disk full: wait, with control served."""
        self._committer.room.wanted("beat", str(problem))
        now = self._clock.monotonic_us()
        self._waiter.until(now + 1000 * ROOM_MS, lambda: self._stopping)
        if self._stopping or self._drain_is_over():
            self._stopping = True
            self._attempts.end(now)
            raise StoreFull(str(problem)) from problem

    def _pass_over(self, tickets: list[tuple[Source, Any]]) -> None:
        """The beat has found nothing to do and leaves no record."""
        self._stats.idle_beats += 1
        self._steering.idle(0, 0)
        self.rest()
        for source, ticket in tickets:
            source.committed(ticket)
        self._beating = False

    def _hand_over(
        self,
        facts: BeatFacts,
        logged: list[Any],
        pages: list[SealedPage],
        tickets: list[tuple[Source, Any]],
        times: BeatTimes,
    ) -> None:
        record = BeatRecord(self.beat, facts.encode(), logged, pages)
        commit = Commit(record, tickets, self._sync)
        size = sum(memoryview(b).nbytes for b in (*logged, *(p.data for p in pages)))
        if self._pace.due(size):
            commit.snapshot = self.save(reuse=True)  # none is being written
        times.sealed_us = self._clock.monotonic_us()

        def done(committed: Any) -> None:
            self.batcher.committed(committed.durable_us - committed.started_us)
            self._stats.durable(times, committed)

        commit.done = done
        self._committer.submit(commit)
