"""The commit thread: makes beat n durable while beat n+1 races, then sends the acks.

Store and uplink belong to this thread, because it waits for the disk: no other thread takes a lock
that is held across an fsync.  Other threads enqueue work and return at once: `submit` takes a
commit, one at a time, `call` any other task.  Work is done in order.  In between the thread sleeps
in one epoll, which also watches the uplink's descriptors (`watch`).

    heart ── submit, call ──► [commit · task · task] ──► store, uplink
                                                          │
          ◄── fileno (finished commits), wake_heart ──────┘

A failure is raised by the next `check`, on the heart's thread.  After a failure no queued work is
done.

A commit that finds the store full stays in flight until there is room
(`edged.beat.disk_full_gate`).  Beats stop behind it, nothing is acked, and the sources apply
backpressure.  Tasks are done meanwhile.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from edged.beat.disk_full_gate import RETRY_MS, DiskFullGate
from edged.beat.snapshots import Snapshots
from edged.data.flow import State
from edged.events.publisher import EventPublisher
from edged.links.segments import PageSegments
from edged.pages.sealed import SealedPage
from edged.platform.clock import Clock
from edged.sources.base import Source
from edged.store import BeatRecord, Encoded, Store, StoreFull
from edged.store.gaps import Gap
from edged.store.loose_pages import LoosePages
from edged.uplink.upload_coalescer import UploadCoalescer

Task = Callable[[], object]


@dataclass(slots=True)
class Commit:
    """What is to be made durable together, and the callbacks that follow."""

    number: int
    """The beat."""
    record: BeatRecord | None
    """None: no job with a log has anything to record."""
    tickets: list[tuple[Source, Any]]
    sync: bool = True
    before: Task = lambda: None
    """Makes the files durable that the record names."""
    snapshot: tuple[bytes, State] | None = None
    """Facts and arrays of a snapshot to be taken right after the commit."""
    sync_files: Task = lambda: None
    """Makes the files durable that the snapshot names."""
    gaps: list[Gap] = field(default_factory=list)
    """Losses to be recorded before."""
    loose: list[SealedPage] = field(default_factory=list)
    """Pages of jobs without a log."""
    early: list[tuple[Source, Any]] = field(default_factory=list)
    """Tickets of sources that feed such jobs only: acked without waiting for the record."""
    on_durable: Callable[[Committed], None] | None = None
    """Called on the commit thread when all is durable and acked."""
    sync_us: int = 0
    """How long the disk's sync took, once it is durable."""


@dataclass(slots=True)
class Committed:
    """A finished commit; times are monotonic microseconds."""

    beat: int
    started_us: int
    durable_us: int
    acked_us: int
    finished_us: int
    pages: list[str] = field(default_factory=list)
    sync_us: int = 0
    """Part of the commit that waited for the disk's sync."""


class Committer:
    """Owner of the commit thread and, with it, of all calls of the store and the uplink.

    Both callbacks run on the commit thread.  `wake_heart` is called after a failure, when acks
    arrive that the heart waits for, and where a commit waits for room or has found it.
    `on_landed` gets the ages (µs since durable) of pages that the centre has acknowledged.
    """

    def __init__(
        self,
        store: Store,
        uplink: UploadCoalescer | None,
        clock: Clock,
        publisher: EventPublisher,
        *,
        wake_heart: Task = lambda: None,
        on_landed: Callable[[list[int]], None] = lambda _: None,
        segments: PageSegments | None = None,
    ) -> None:
        self._store, self._uplink, self._clock = store, uplink, clock
        self._wake_heart, self._on_landed = wake_heart, on_landed
        self.snapshots = Snapshots(store)
        self.loose = LoosePages(segments)
        self.on_loose_acked: Callable[[str, int, int], None] = lambda *_: None
        """Called on the commit thread where pages of a job without a log are acknowledged."""
        self._failure: BaseException | None = None
        self._snapshot_problem: StoreFull | None = None
        self._queue: deque[tuple[Task, bool]] = deque()
        """Tasks, and whether `busy` stands for the task."""
        self._working = self._closing = self._giving_up = False
        self._queued = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._finished = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.epoll()
        self._watched: dict[int, Task] = {}
        self.busy = False
        """Whether a commit is in flight."""
        self.drops: Mapping[str, str] = {}
        """Streams whose oldest pages are given up when the store is full, and their jobs.  Changed
        on the commit thread."""
        self.gate = DiskFullGate(clock, publisher, lambda: (store.bytes_used, store.bytes_max))
        """Whether the commit in flight, or a sink, waits for disk space."""
        self._poller.register(self._queued, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="edged-commit", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when a commit has finished, or the store was found full, since `clear`."""
        return self._finished

    def submit(self, commit: Commit) -> None:
        """Enqueue a commit.  `busy` must be False, and is True until the commit has finished.

        The pages of links are in flight from now on: `high` bounds those that wait for the disk,
        too.
        """
        self.check()
        if self._uplink is not None:
            self._uplink.sealed(commit.loose)
            self._uplink.sealed(() if commit.record is None else commit.record.pages)
        self._enqueue(partial(self._commit, commit))

    def call(self, task: Task) -> None:
        """Enqueue a task for store or uplink; any thread.  An exception in it ends the daemon."""
        self._queue.append((task, False))
        os.eventfd_write(self._queued, 1)

    def watch(self, fd: int, task: Task) -> None:
        """Run a task on the commit thread whenever `fd` is readable."""
        self._watched[fd] = task
        self._poller.register(fd, select.EPOLLIN)

    @property
    def at_work(self) -> bool:
        """Whether the thread has work: it may be waiting for the disk."""
        return self.busy or self._working or bool(self._queue)

    def check(self) -> None:
        """Raise the exception that the commit thread failed with, if it did."""
        if self._failure is not None:
            raise self._failure

    def clear(self) -> None:
        """Reset `fileno`."""
        try:
            os.eventfd_read(self._finished)
        except BlockingIOError:
            return

    def wait(self, meanwhile: Task | None = None) -> None:
        """Return when no commit is in flight.  `meanwhile` is called until then; it returns when
        `fileno` is readable, or earlier."""
        while self.busy:
            if meanwhile is not None:
                meanwhile()
            else:
                select.select([self._finished], [], [])
            self.clear()
        self.clear()
        self.check()

    def snapshot(
        self, beat: int, facts: bytes, arrays: State, meanwhile: Task | None = None
    ) -> None:
        """Take a snapshot that makes all earlier log records obsolete; return when it is durable.

        No commit may be in flight; `meanwhile` as for `wait`.  Raises StoreFull.
        """
        self._enqueue(partial(self._snapshot, beat, facts, arrays))
        self.wait(meanwhile)
        if (problem := self._snapshot_problem) is not None:
            self._snapshot_problem = None
            raise problem

    def take_acks(self) -> None:
        """Process acks.  Restarts an uplink process that has died and offers it all pages that are
        left.  Commit thread only."""
        if self._uplink is None:
            return
        durable_at_us: list[int] = []
        for stream, partition, seq in self._uplink.poll():
            if self.loose.acked(stream, partition, seq):
                self.on_loose_acked(stream, partition, seq)
            else:
                durable_at_us += self._store.acked(stream, partition, seq)
        for stream, partition in self._uplink.unreadable():
            self._store.check_page(stream, partition)
        for missing in self._uplink.missing():
            self._store.lose_missing(*missing)
        self._tell_lost()
        if durable_at_us:
            now_us = self._clock.wall_us()
            self._on_landed([now_us - at_us for at_us in durable_at_us if at_us])
            if self._uplink.bypassed:
                self._wake_heart()
        if self._uplink.restart_if_dead():
            self._uplink.offer([*self._store.pending(), *self.loose.pending()])

    def give_up(self) -> None:
        """Fail a commit that waits for room with StoreFull."""
        self._giving_up = True
        os.eventfd_write(self._queued, 1)

    def close(self) -> None:
        """Finish the queue and end the thread; commits no longer wait for room."""
        self._closing = True
        self.give_up()
        self._thread.join()
        self.loose.close()
        self._poller.close()
        os.close(self._queued)
        os.close(self._finished)

    # the commit thread -------------------------------------------------------------------------

    def _enqueue(self, task: Task) -> None:
        self.busy = True
        self._queue.append((task, True))
        os.eventfd_write(self._queued, 1)

    def _run(self) -> None:
        while not self._closing or self._queue:
            for fd, _ in self._poller.poll():
                self._working = True
                if fd == self._queued:
                    self._serve()
                elif self._failure is None:
                    self._try(self._watched[fd])
                self._working = False
        self._try(self._end_snapshot)

    def _serve(self) -> None:
        """Do the queued tasks."""
        os.eventfd_read(self._queued)
        while self._queue:
            task, is_commit = self._queue.popleft()
            self._try(task)
            if is_commit:
                self.busy = False
                os.eventfd_write(self._finished, 1)

    def _try(self, task: Task) -> None:
        """Do the task, unless an earlier one failed: the store must not be used after that."""
        if self._failure is not None:
            return
        try:
            task()
        except BaseException as problem:
            self._failure = problem
            for fd in self._watched:
                self._poller.unregister(fd)
            self._wake_heart()

    def _commit(self, commit: Commit) -> None:
        started = self._clock.monotonic_us()
        if self.snapshots.written:
            self._end_snapshot()
        for source, ticket in commit.early:
            source.committed(ticket)
        commit.before()
        refs = [] if commit.record is None else self._append(commit, Encoded(commit.record))
        refs += self.loose.add(commit.loose)
        durable = self._clock.monotonic_us()
        for source, ticket in commit.tickets:
            source.committed(ticket)
        acked = self._clock.monotonic_us()
        if self._uplink is not None:
            if refs:
                self._uplink.offer(refs)
            self.take_acks()
        if commit.snapshot is not None:
            self._end_snapshot()
            self.snapshots.begin(commit.number, *commit.snapshot, commit.sync_files)
        if commit.on_durable is not None:
            names = [f"{r.key.stream}/{r.key.partition}/{r.key.seq}" for r in refs]
            end = self._clock.monotonic_us()
            times = started, durable, acked, end
            commit.on_durable(Committed(commit.number, *times, names, commit.sync_us))

    def _append(self, commit: Commit, encoded: Encoded) -> list[Any]:
        """Commit to the store; while it is full, wait for room."""
        while True:
            try:
                if commit.gaps:
                    self._store.record_gaps(commit.gaps)
                    commit.gaps = []
                refs = self._store.commit(encoded, commit.sync, self._clock.wall_us())
            except StoreFull as problem:
                if self._end_snapshot() or self._drop_oldest():
                    continue
                if self._giving_up:
                    raise
                self._wait_for_room(str(problem))
            else:
                commit.sync_us = encoded.sync_us
                if self.gate.full:
                    self.gate.proceed("commit")
                    self._wake_heart()
                return refs

    def _drop_oldest(self) -> bool:
        """Give up some pages of jobs that allow it; False: there are none."""
        if not self.drops:
            return False
        gaps, moved = self._store.drop_oldest(self.drops, self._clock.wall_us())
        self._tell_lost()
        if self._uplink is not None:
            self._uplink.offer(moved)
        return bool(gaps)

    def _tell_lost(self) -> None:
        """Tell the uplink of pages that the store has set aside."""
        lost = self._store.take_lost()
        if lost and self._uplink is not None:
            self._uplink.lost(lost)

    def set_links(self, targets: Sequence[dict[str, Any]]) -> None:
        """Serve these links, and give up the pages without a log of all others.  Commit thread
        only."""
        given_up = self.loose.give_up({target["name"] for target in targets})
        if self._uplink is None:
            return
        if self._uplink.set_links(targets):
            self._uplink.offer([*self._store.pending(), *self.loose.pending()])
        self._uplink.give_up(given_up)

    def set_drops(self, streams: Mapping[str, str]) -> None:
        """Set `drops`.  Commit thread only."""
        self.drops, self._store.apart = streams, streams.keys()

    def _snapshot(self, beat: int, facts: bytes, arrays: State) -> None:
        self._end_snapshot()
        while True:
            try:
                moved = self._store.snapshot(beat, facts, arrays, barrier=True)
                self.snapshots.adopted = beat
                break
            except StoreFull as problem:
                if not self._drop_oldest():
                    self._snapshot_problem = problem
                    return
        self._tell_lost()
        if self._uplink is not None and moved:
            self._uplink.offer(moved)

    def _end_snapshot(self) -> bool:
        """Adopt the snapshot that is being written, if any."""
        moved = self.snapshots.end()
        self._tell_lost()
        if self._uplink is not None and moved:
            self._uplink.offer(moved)
        return moved is not None

    def _wait_for_room(self, reason: str) -> None:
        """Wait until acks or other processes make room; do queued tasks meanwhile.  No other commit
        is queued."""
        self.gate.wait("commit", reason)
        os.eventfd_write(self._finished, 1)
        self._wake_heart()
        poll = select.poll()
        poll.register(self._queued, select.POLLIN)
        if self._uplink is not None:
            self._uplink.release()
            poll.register(self._uplink.fileno(), select.POLLIN)
        if self._queued in dict(poll.poll(RETRY_MS)):
            self._serve()
        self.take_acks()
