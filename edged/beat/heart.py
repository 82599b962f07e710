"""The heart: idle → wake → race → commit → idle, for all jobs of one daemon together.

One thread runs this loop and everything that touches stagings, operators and sinks.  Commits run
beside it (see `committer`), control is served between its waits, and nothing else lives here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edged.beat.attempts import Attempts
from edged.beat.batcher import Batcher, Beaten
from edged.beat.changes import Changes, Posted
from edged.beat.committer import Commit, Committer
from edged.beat.quarantine import Quarantine
from edged.beat.record import BeatFacts, JobFacts, buffers
from edged.beat.runtime import JobRuntime, logged_inputs
from edged.beat.stats import BeatTimes, Held, Stats
from edged.beat.take import ONE_CHUNK
from edged.beat.waiter import Waiter
from edged.clock import Clock
from edged.errors import CommandError
from edged.inputs import Inputs
from edged.job.plan import Promises
from edged.jobs import PAUSED, Change, Jobs
from edged.operators.base import BeatContext, State
from edged.placement import Profile
from edged.sinks.base import Flush, SealedPage
from edged.sources.base import Source
from edged.store import BeatRecord, Store, StoreFull
from edged.workers import Workers
from governors.base import Done, Forecast, Governor, Steer

SNAPSHOT_BYTES = 512 << 20
"""Log since the last snapshot that makes the next one due: it bounds the recovery time."""
ATTEMPTS_MAX = 5
"""Processes that may die in races before the input that they die of is set aside."""


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
        profile: Profile | None = None,
    ) -> None:
        self.jobs, self.sources = book.list, inputs.sources
        self.changes = Changes(book, inputs)
        self._book = book
        self._store, self._committer, self._waiter = store, committer, waiter
        self._stats, self._clock, self._workers = stats, clock, workers
        self._governor = governor
        self.quarantine = Quarantine(directory / "quarantine")
        self._attempts = Attempts(directory / "attempts", ATTEMPTS_MAX, clock.monotonic_us())
        self._snapshot_bytes = snapshot_bytes
        self._given_up = self._not_before = 0
        self._profile = profile
        self.beat = beat
        self.held = Held()
        self._drains_until_us: int | None = None
        self._sealing: JobRuntime | None = None
        self.batcher = Batcher(0, 0)
        self._last_ingest_us = self._heard_us = clock.monotonic_us()
        self._oldest_open_us: int | None = None
        self._unraced_us: int | None = None
        self._cut = self._took = False
        self._stopping = self._beating = False
        self.before_commit: Callable[[], None] = lambda: None
        """Called in every beat that takes something, when store and uplink are nobody's."""
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
        """
        try:
            while not self._stopping:
                self._committer.check()
                self.changes.serve(self)
                drained = self.changes.settle(self)
                if self._drains_until_us is not None and (drained or self._drain_is_over()):
                    break
                oldest, race = self._await_input()
                if oldest is None:
                    continue
                if not race:
                    now = self._clock.monotonic_us()
                    wake = self.batcher.wake(oldest, now, self._unsealed_us())
                    self._waiter.until(wake.at_us, self._interrupted)
                    race = wake.race
                rows_max = self._admitted(oldest) if race else None
                if not self._interrupted():  # else what has come waits where it is
                    self._beat(oldest, race, rows_max)
            self._stopping = True
            self._beat(self._clock.monotonic_us(), True, last=True)
            self._await_commit()
            if self._store.log_bytes_since_snapshot:
                self._committer.snapshot(self.beat, *self.save())
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
        self._await_commit()

    def seal(self, job: JobRuntime) -> None:
        """A beat that leaves nothing of the job open."""
        self._sealing = job
        try:
            self._beat(self._clock.monotonic_us(), True)
        finally:
            self._sealing = None
        self._await_commit()

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
        self._took = True  # sources that were held are read at once

    def log_change(self, change: Change, done: Callable[[], None]) -> None:
        """Put the change into the log; `done` is called on the commit thread when it is durable."""
        self.beat += 1
        facts = BeatFacts(change.at_us, {}, change)
        commit = Commit(BeatRecord(self.beat, facts.encode(), [], []), [])
        commit.done = lambda _: done()
        self._committer.submit(commit)

    def snapshot(self) -> None:
        """Take a snapshot now, with no commit under way.  Raises StoreFull."""
        self._committer.snapshot(self.beat, *self.save())

    def wall_us(self) -> int:
        """The wall clock."""
        return self._clock.wall_us()

    def now_us(self) -> int:
        """The monotonic clock."""
        return self._clock.monotonic_us()

    def pin(self, name: str, operator: str, kernel: str | None) -> str:
        """Choose an operator's kernel by hand, see `JobRuntime.pin`."""
        for job in self.jobs:
            if job.plan.name == name:
                return job.pin(operator, kernel)
        raise CommandError("missing", f"there is no job {name}", where="job")

    def _take_promises(self) -> None:
        """What the jobs promise together: the shortest times, the strongest durability."""
        kept = [job.plan.promises for job in self.jobs if job.about.state != PAUSED] or [Promises()]
        self.latency_us = min(p.latency_us for p in kept)
        self.batcher.promise(self.latency_us, min(p.ack_within_us for p in kept))
        promises = [job.plan.promises for job in self.jobs]
        self._exactly_once = any(p.durability == "exactly_once" for p in promises)
        self._sync = any(p.durability != "none" for p in promises)

    def _active(self) -> list[JobRuntime]:
        """The jobs that take part in beats now."""
        return [job for job in self.jobs if not job.rests]

    def _interrupted(self) -> bool:
        """Whether something is to be done between beats before the next one."""
        return self._stopping or bool(self.changes)

    def _drain_is_over(self) -> bool:
        until = self._drains_until_us
        return until is not None and self._clock.monotonic_us() >= until

    def _await_input(self) -> tuple[int | None, bool]:
        """Wait for something to do; the arrival time of the oldest of it, None for nothing, and
        whether a deadline has passed, so that there is no waiting for more."""
        now = self._clock.monotonic_us()
        if any(job.drains for job in self._active()):
            self._waiter.serve_control()
            return now, True
        if self._can_go_on():
            self._waiter.serve_control()
            return self._last_ingest_us, False
        if self._waiter.ready_now():
            return self._last_ingest_us, False
        # `ready_now` may have taken the kick that came with a stop, a change of the jobs or with a
        # commit's failure.
        if self._interrupted():
            return None, False
        self._committer.check()
        deadline = self._deadline(now)
        if self._waiter.until_input(deadline):
            return self._clock.monotonic_us(), False
        now = self._clock.monotonic_us()
        return (now, True) if deadline is not None and now >= deadline else (None, False)

    def _can_go_on(self) -> bool:
        """Whether the last beat left work that needs no new input: it was cut, not held back."""
        return (
            self._cut
            or any(s.unread() for s in self.sources)
            or (self._took and any(s.more() for s in self.sources))
        )

    def _deadline(self, now: int) -> int | None:
        """When to beat though nothing arrives: rows to race or to seal, producers idle.

        Who is silent shows when the sources are listened to, which a race may have put off: what
        has come due since they last were is due now.
        """
        since = self._unsealed_us()
        due = [] if since is None else [self.batcher.race_by(since)]
        wall = self._clock.wall_us()
        if self._drains_until_us is not None:
            due.append(self._drains_until_us)
        if self.changes.again_us > now:
            due.append(self.changes.again_us)
        for job in self._active():
            if (left := job.due_in_us(wall)) is not None:
                due.append(now + left)
            for s in job.streams.values():
                idle = s.time.idle_at(s.staging.producers, self._heard_us)
                if idle is not None and (job.staged() or job.waits_for_time()):
                    due.append(idle)
        return min(due) if due else None

    def _unsealed_us(self) -> int | None:
        """Arrival of the oldest rows that are not raced, or in open pages."""
        waiting = (self._oldest_open_us, self._unraced_us)
        return min((since for since in waiting if since is not None), default=None)

    def _admitted(self, oldest_us: int) -> int | None:
        """Tell the governor of the race; the rows that it admits, None for all.

        Where it admits none, wait until it may admit some, with the sources muted: what arrives
        waits in their senders' buffers.  Another policy takes the time back, and is asked at once.
        """
        while not self._interrupted():
            steer = self._governor.race(self._forecast(oldest_us))
            self._steer(steer)
            if steer.units_max != 0:
                return steer.units_max
            self._waiter.until(steer.not_before_us, partial(self._freed, steer))
            self._committer.check()
        return None

    def _freed(self, steer: Steer) -> bool:
        return self._interrupted() or not steer.not_before_us

    def _forecast(self, oldest_us: int) -> Forecast:
        since = oldest_us if self._unraced_us is None else min(oldest_us, self._unraced_us)
        staged = sum(job.staged() for job in self._active())
        commit_us = int(self.batcher.commit_us) + self.batcher.margin_us
        now = self._clock.monotonic_us()
        return Forecast(
            now, staged, since + self.latency_us, self.latency_us, commit_us,
            self.batcher.period_us_max(), self.batcher.commit_every_us(),
        )  # fmt: skip

    def _steer(self, steer: Steer) -> None:
        self.batcher.steer(steer.wait_share, steer.race_us, steer.not_before_us)

    def _beat(
        self, oldest_us: int, race: bool, rows_max: int | None = None, last: bool = False
    ) -> None:
        self._beating, jobs = True, self._active()
        if self._unraced_us is not None:
            oldest_us = min(oldest_us, self._unraced_us)
        woke = self._clock.monotonic_us()
        wall = self._clock.wall_us()
        if not self._cut:
            for source in self.sources:
                source.ingest(woke, wall)
                self.held.note(source.name, source.more(), self._clock.monotonic_us())
            self._heard_us = woke
        self._last_ingest_us = ingested = self._clock.monotonic_us()
        self._governor.ingested()
        tickets = [(source, source.seal()) for source in self.sources]
        facts = self._decide(jobs, ingested, wall, race, oldest_us, last, rows_max)
        inputs = {job.plan.name: logged_inputs(job) for job in jobs}
        if _is_empty(facts, jobs):
            self._stats.idle_beats += 1
            self._steer(self._governor.idle(Done(0, 0)))
            self._await_commit()
            self._acknowledge(tickets)
            self._beating = False
            return
        self.beat += 1
        logged = buffers(inputs) if self._exactly_once else []
        pages = self._race(jobs, facts)
        raced = self._clock.monotonic_us()
        for job in jobs:
            for s in job.streams.values():
                s.staging.mark_logged()
        taken = sum(f.take_rows for j in facts.jobs.values() for f in j.streams.values())
        rows = sum(f.logged_rows for j in facts.jobs.values() for f in j.streams.values())
        self._steer(self._governor.idle(Done(rows, taken)))
        self._note_open(oldest_us)
        self._await_commit()
        self.before_commit()
        took = {
            job.plan.name: job.plan.promises.latency_us
            for job in jobs
            if any(f.take_rows for f in facts.jobs[job.plan.name].streams.values())
        }
        times = BeatTimes(self.beat, oldest_us, woke, ingested, raced, 0, rows, taken, took)
        self._hand_over(facts, logged, pages, tickets, times)
        if race:
            for job in jobs:
                job.place()
        if self._attempts.careful:
            self._await_commit()
        self._beating = False
        self.batcher.beaten(Beaten(taken, ingested - woke, raced - ingested, self._fill()))

    def _decide(
        self,
        active: Sequence[JobRuntime],
        now: int,
        wall: int,
        race: bool,
        oldest_us: int,
        last: bool,
        admitted: int | None,
    ) -> BeatFacts:
        rows_max = self.batcher.rows_max()
        if admitted is not None:
            rows_max = max(1, min(rows_max, admitted))
        if self._attempts.careful:
            rows_max = ONE_CHUNK
        # not by `now`: nobody was listened to since the last ingest
        jobs = {job.plan.name: job.decide(self._heard_us, rows_max, race) for job in active}
        open_since = oldest_us if self._oldest_open_us is None else self._oldest_open_us
        flush = Flush.PROMPT if self.batcher.must_flush(open_since, now) else Flush.NO
        self._cut = self._took = False
        for job in active:
            facts = jobs[job.plan.name]
            whole = last or job.drains or job is self._sealing or facts.ends()
            if race:
                results = job.plan.promises.durability == "results"
                facts.flush = Flush.ALL if whole or results else flush
            taken = sum(f.take_rows for f in facts.streams.values())
            self._took |= taken > 0
            self._cut |= race and job.cut
        if race:
            self._unraced_us = None
        elif self._unraced_us is None:
            self._unraced_us = oldest_us
        return BeatFacts(wall, jobs)

    def _race(self, jobs: Sequence[JobRuntime], facts: BeatFacts) -> list[SealedPage]:
        """Run every job's step; input that has crashed too often is set aside instead."""
        beat = BeatContext(self.beat, facts.wall_us, self._workers)
        pages: list[SealedPage] = []
        for job in jobs:
            mine = facts.jobs[job.plan.name]
            if not self._attempts.begin(job.fingerprint(mine) if self._attempts.careful else 0):
                self.quarantine.take(self.beat, job, mine)
            pages += job.step(beat, mine)
        self._attempts.end(self._clock.monotonic_us())
        return pages

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
        if self._snapshot_due(size):
            commit.snapshot = self.save(reuse=True)  # none is being written
        times.sealed_us = self._clock.monotonic_us()

        def done(committed: Any) -> None:
            self.batcher.committed(committed.durable_us - committed.started_us)
            self._stats.durable(times, committed)

        commit.done = done
        self._committer.submit(commit)

    def _snapshot_due(self, size: int) -> bool:
        """Whether enough log has come since the last snapshot, or since one was given up."""
        logged = self._store.log_bytes_since_snapshot + size
        given_up = self._committer.snapshots_given_up
        if given_up != self._given_up:
            self._given_up, self._not_before = given_up, logged + self._snapshot_bytes // 4
        if self._committer.snapshotting or logged < max(self._snapshot_bytes, self._not_before):
            return False
        self._not_before = 0
        return True

    def _await_commit(self) -> None:
        """Wait for the commit in flight; as long as the store is full, control is served."""
        self._committer.wait(self._while_full)

    def _while_full(self) -> None:
        if self._stopping or self._drain_is_over():
            self._stopping = True
            self._committer.give_up()
        self._waiter.until_commit(self._drains_until_us)

    def _note_open(self, oldest_us: int) -> None:
        if not any(j.open_rows() for j in self._active()):
            self._oldest_open_us = None
        elif self._oldest_open_us is None:
            self._oldest_open_us = oldest_us

    def _acknowledge(self, tickets: list[tuple[Source, Any]]) -> None:
        for source, ticket in tickets:
            source.committed(ticket)

    def _fill(self) -> float:
        return max((s.pressure() for s in self.sources), default=0.0)


def _is_empty(facts: BeatFacts, jobs: Sequence[JobRuntime]) -> bool:
    """Whether the beat would change nothing: no rows, no news of producers, no new watermark."""
    for job in jobs:
        j: JobFacts = facts.jobs[job.plan.name]
        for name, f in j.streams.items():
            if f.logged_rows or f.take_rows or f.producers:
                return False
            if j.race and f.watermark_us != job.streams[name].time.watermark_us:
                return False
        if j.race and job.seals(j.flush, facts.wall_us):
            return False
    return True
