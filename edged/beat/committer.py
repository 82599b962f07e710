"""The commit thread: makes beat n durable while beat n+1 races, then lets the acks go.

Store and uplink are this thread's alone, because it waits for the disk: nobody else takes a lock
that is held over an fsync.  Others ask: `submit` hands over a commit, one at a time, `call`
anything else, and both return at once.  All that was asked is done in order.  In between the
thread sleeps on one epoll, which tells it of the uplink's news too (`watch`).

    heart ── submit, call ──► [commit · task · task] ──► store, uplink
                                                          │
          ◄── fileno (commits that have ended), heard ────┘

What fails here is raised again by the next `check`, on the beat's thread; after that nothing that
was asked is done.

A commit that finds the store full stays in flight until there is room (see `room`); the beats stop
behind it, nothing is acked, and the sources fill up to their producers.  Tasks are done meanwhile.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from edged.beat.disk_full_gate import ROOM_MS, Room
from edged.beat.snapshots import Snapshots
from edged.data.flow import State
from edged.platform.clock import Clock
from edged.sources.base import Source
from edged.store import BeatRecord, Encoded, Store, StoreFull
from edged.uplink.upload_coalescer import UploadCoalescer

Task = Callable[[], object]


@dataclass(slots=True)
class Commit:
    """One beat's worth of durability, and who wants to hear of it."""

    record: BeatRecord
    tickets: list[tuple[Source, Any]]
    sync: bool = True
    snapshot: tuple[bytes, State] | None = None
    """Facts and arrays of a snapshot to be taken right after the commit."""
    done: Callable[[Committed], None] | None = None
    """Called on the commit thread when all is durable and acked."""


@dataclass(slots=True)
class Committed:
    """What a commit was like; times are monotonic microseconds."""

    beat: int
    started_us: int
    durable_us: int
    acked_us: int
    finished_us: int
    pages: list[str] = field(default_factory=list)


class Committer:
    """Owns the commit thread and, with it, all calls of the store and the uplink."""

    def __init__(self, store: Store, uplink: UploadCoalescer | None, clock: Clock) -> None:
        self._store, self._uplink, self._clock = store, uplink, clock
        self.snapshots = Snapshots(store)
        self._failure: BaseException | None = None
        self._refused: StoreFull | None = None
        self._asked: deque[tuple[Task, bool]] = deque()
        """What is to be done, and whether `busy` stands for it."""
        self._working = self._closing = self._giving_up = False
        self._ask = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._finished = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.epoll()
        self._watched: dict[int, Task] = {}
        self.busy = False
        """Whether a commit is in flight."""
        self.room = Room(clock)
        """Whether the commit in flight, or anybody else, waits for room."""
        self.failed: Task = lambda: None
        """Called on the commit thread when something has failed, so that an idle loop hears it."""
        self.landed: Callable[[list[int]], None] = lambda _: None
        """Told how long (µs) the pages that the centre has acknowledged had been durable."""
        self.heard: Task = lambda: None
        """Called on the commit thread when the uplink had news, or acks that somebody awaits."""
        self._poller.register(self._ask, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="edged-commit", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when a commit has finished, or the store was found full, since `clear`."""
        return self._finished

    def submit(self, commit: Commit) -> None:
        """Hand over a commit; `busy` until it is through, and must not be before."""
        self.check()
        self._hand_over(partial(self._commit, commit))

    def call(self, task: Task) -> None:
        """Have the commit thread do something with store or uplink, soon; any thread.  What it
        raises ends the daemon."""
        self._asked.append((task, False))
        os.eventfd_write(self._ask, 1)

    def watch(self, fd: int, task: Task) -> None:
        """Have the commit thread do something whenever `fd` is readable."""
        self._watched[fd] = task
        self._poller.register(fd, select.EPOLLIN)

    @property
    def at_work(self) -> bool:
        """Whether the thread does something or is about to: it may wait for the disk."""
        return self.busy or self._working or bool(self._asked)

    def check(self) -> None:
        """Raise what the commit thread failed with, if it did."""
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
        """Take a snapshot behind which nothing older is replayed, with no commit in flight, and
        return when it is durable; `meanwhile` as of `wait`.  Raises StoreFull."""
        self._hand_over(partial(self._snapshot, beat, facts, arrays))
        self.wait(meanwhile)
        if (refused := self._refused) is not None:
            self._refused = None
            raise refused

    def take_acks(self) -> None:
        """Hear of acks; an uplink that has died is started again and told of all that is left.
        The commit thread's."""
        if self._uplink is None:
            return
        since: list[int] = []
        for stream, partition, seq in self._uplink.poll():
            since += self._store.acked(stream, partition, seq)
        if since:
            now = self._clock.wall_us()
            self.landed([now - at for at in since if at])
            if self._uplink.bypassed:
                self.heard()
        if self._uplink.restart_if_dead():
            self._uplink.offer(self._store.pending())

    def give_up(self) -> None:
        """Let a commit that waits for room fail with StoreFull."""
        self._giving_up = True
        os.eventfd_write(self._ask, 1)

    def close(self) -> None:
        """Finish what was asked and end the thread; a commit does not wait for room any more."""
        self._closing = True
        self.give_up()
        self._thread.join()
        self._poller.close()
        os.close(self._ask)
        os.close(self._finished)

    # the commit thread -------------------------------------------------------------------------

    def _hand_over(self, task: Task) -> None:
        self.busy = True
        self._asked.append((task, True))
        os.eventfd_write(self._ask, 1)

    def _run(self) -> None:
        while not self._closing or self._asked:
            for fd, _ in self._poller.poll():
                self._working = True
                if fd == self._ask:
                    self._serve()
                elif self._failure is None:
                    self._try(self._watched[fd])
                self._working = False
        self._try(self._end_snapshot)

    def _serve(self) -> None:
        """Do what was asked."""
        os.eventfd_read(self._ask)
        while self._asked:
            task, submitted = self._asked.popleft()
            self._try(task)
            if submitted:
                self.busy = False
                os.eventfd_write(self._finished, 1)

    def _try(self, task: Task) -> None:
        """Do it, unless something has failed before: then nobody may go on with the store."""
        if self._failure is not None:
            return
        try:
            task()
        except BaseException as problem:
            self._failure = problem
            for fd in self._watched:
                self._poller.unregister(fd)
            self.failed()

    def _commit(self, commit: Commit) -> None:
        started = self._clock.monotonic_us()
        if self.snapshots.written:
            self._end_snapshot()
        refs = self._append(commit)
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
            self.snapshots.begin(commit.record.number, *commit.snapshot)
        if commit.done is not None:
            names = [f"{r.key.stream}/{r.key.partition}/{r.key.seq}" for r in refs]
            end = self._clock.monotonic_us()
            commit.done(Committed(commit.record.number, started, durable, acked, end, names))

    def _append(self, commit: Commit) -> list[Any]:
        """Commit to the store; while it is full, wait for room."""
        encoded = Encoded(commit.record)
        while True:
            try:
                refs = self._store.commit(encoded, commit.sync, self._clock.wall_us())
            except StoreFull as problem:
                if self._end_snapshot():
                    continue
                if self._giving_up:
                    raise
                self._wait_for_room(str(problem))
            else:
                self.room.found("commit")
                return refs

    def _snapshot(self, beat: int, facts: bytes, arrays: State) -> None:
        self._end_snapshot()
        try:
            moved = self._store.snapshot(beat, facts, arrays, barrier=True)
        except StoreFull as problem:
            self._refused = problem
            return
        if self._uplink is not None and moved:
            self._uplink.offer(moved)

    def _end_snapshot(self) -> bool:
        """Take over the snapshot that is being written, if any."""
        moved = self.snapshots.end()
        if self._uplink is not None and moved:
            self._uplink.offer(moved)
        return moved is not None

    def _wait_for_room(self, why: str) -> None:
        """Wait for acks or for others to make room, and do what is asked meanwhile: no other commit
        is among it."""
        self.room.wanted("commit", why)
        os.eventfd_write(self._finished, 1)
        poll = select.poll()
        poll.register(self._ask, select.POLLIN)
        if self._uplink is not None:
            self._uplink.release()
            poll.register(self._uplink.fileno(), select.POLLIN)
        if self._ask in dict(poll.poll(ROOM_MS)):
            self._serve()
        self.take_acks()
