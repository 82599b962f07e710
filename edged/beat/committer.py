"""The commit thread: makes beat n durable while beat n+1 races, then lets the acks go.

One commit at a time.  `submit` hands one over and returns at once; it must only be called when
`busy` is false (`wait` blocks on `fileno`, an eventfd that counts finished commits).  What fails
here is raised again by the next `check`, on the beat's thread.

Snapshots are written by a thread of their own beside the commits that follow, one at a time, and
taken over by the next commit.  One for which there is no room is given up: the log goes on, and the
next one is due after another quarter of the usual distance.

A commit that finds the store full stays in flight until the centre has taken enough off it; the
beats stop behind it, nothing is acked, and the sources fill up to their producers.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edged.clock import Clock
from edged.operators.base import State
from edged.sources.base import Source
from edged.store import BeatRecord, SnapshotTask, Store, StoreFull
from edged.uplink.held import Held


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

    def __init__(self, store: Store, uplink: Held | None, clock: Clock) -> None:
        self._store, self._uplink, self._clock = store, uplink, clock
        self._commit: Commit | None = None
        self._failure: BaseException | None = None
        self._wake = threading.Semaphore(0)
        self._finished = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = self._giving_up = False
        self._full_since_us: int | None = None
        self.busy = False
        self.full = False
        """Whether the commit in flight waits for room in the store."""
        self.failed: Callable[[], None] = lambda: None
        """Called on the commit thread when a commit has failed, so that an idle loop hears it."""
        self.landed: Callable[[list[int]], None] = lambda _: None
        """Told how long (µs) the pages that the centre has acknowledged had been durable."""
        self.room: Callable[[bool], None] = lambda _: None
        """Told on the commit thread that the store is full, and that there is room again."""
        self.full_us = 0
        """How long commits have waited for room so far."""
        self.lock = threading.Lock()
        """Held while the store and the uplink are in use."""
        self._task: SnapshotTask | None = None
        self._writer: threading.Thread | None = None
        self.snapshots_given_up = 0
        """Snapshots for which there was no room."""
        self._thread = threading.Thread(target=self._run, name="edged-commit", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when a commit has finished, or the store was found full, since `clear`."""
        return self._finished

    def submit(self, commit: Commit) -> None:
        """Hand over a commit; `busy` until it is through."""
        self.check()
        self._commit, self.busy = commit, True
        self._wake.release()

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

    def wait(self, while_full: Callable[[], None] | None = None) -> None:
        """Block until no commit is in flight; while the store is full, in `while_full`."""
        while self.busy:
            if self.full and while_full is not None:
                while_full()
            else:
                select.select([self._finished], [], [])
            self.clear()
        self.clear()
        self.check()

    def snapshot(self, beat: int, facts: bytes, arrays: State) -> None:
        """Take a snapshot behind which nothing older is replayed (any thread, none in flight)."""
        with self.lock:
            self._end_snapshot()
            moved = self._store.snapshot(beat, facts, arrays, barrier=True)
            if self._uplink is not None and moved:
                self._uplink.offer(moved)

    def settle(self, wait: bool = True) -> None:
        """Take in what the centre has acknowledged (any thread).

        Without `wait` only where no commit is being written: the next one, or the next call, does.
        """
        if self.lock.acquire(blocking=wait):
            try:
                self._take_acks()
            finally:
                self.lock.release()

    def full_us_until(self, now_us: int) -> int:
        """How long commits have waited for room, one that still does included."""
        since = self._full_since_us
        return self.full_us + (0 if since is None else now_us - since)

    def give_up(self) -> None:
        """Let a commit that waits for room fail with StoreFull, within a second."""
        self._giving_up = True

    def close(self) -> None:
        """Finish what is in flight and end the thread."""
        self._closing = True
        self._wake.release()
        self._thread.join()
        if self._failure is None:
            with self.lock:
                self._end_snapshot()
        os.close(self._finished)

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            commit, self._commit = self._commit, None
            if commit is None:
                if self._closing:
                    return
                continue
            try:
                with self.lock:
                    self._do(commit)
            except BaseException as problem:
                self._failure = problem
            self.busy = False
            os.eventfd_write(self._finished, 1)
            if self._failure is not None:
                self.failed()

    def _do(self, commit: Commit) -> None:
        started = self._clock.monotonic_us()
        if self._writer is not None and not self._writer.is_alive():
            self._end_snapshot()
        refs = self._append(commit)
        durable = self._clock.monotonic_us()
        for source, ticket in commit.tickets:
            source.committed(ticket)
        acked = self._clock.monotonic_us()
        if self._uplink is not None:
            if refs:
                self._uplink.offer(refs)
            self._take_acks()
        if commit.snapshot is not None:
            self._begin_snapshot(commit.record.number, *commit.snapshot)
        if commit.done is not None:
            names = [f"{r.key.stream}/{r.key.partition}/{r.key.seq}" for r in refs]
            end = self._clock.monotonic_us()
            commit.done(Committed(commit.record.number, started, durable, acked, end, names))

    def _append(self, commit: Commit) -> list[Any]:
        """Commit to the store; while it is full, wait for the centre to take pages off it."""
        while True:
            try:
                refs = self._store.commit(commit.record, commit.sync, self._clock.wall_us())
                self._note_room()
                return refs
            except StoreFull:
                if self._end_snapshot():
                    continue
                if self._uplink is None or self._giving_up:
                    raise
                self._wait_for_room(self._uplink.fileno())
            finally:
                self.full = False

    def _begin_snapshot(self, beat: int, facts: bytes, arrays: State) -> None:
        """Write a snapshot of `beat`, which was just committed, on a thread of its own."""
        self._end_snapshot()
        self._task = self._store.begin_snapshot(beat)
        self._writer = threading.Thread(
            target=self._task.write, args=(facts, arrays), name="edged-snapshot", daemon=True
        )
        self._writer.start()

    def _end_snapshot(self) -> bool:
        """Wait for the snapshot that is being written, if any, and take it over."""
        if self._task is None or self._writer is None:
            return False
        self._writer.join()
        task, self._task, self._writer = self._task, None, None
        try:
            moved = self._store.end_snapshot(task)
        except StoreFull:
            self.snapshots_given_up += 1
            return False
        if self._uplink is not None and moved:
            self._uplink.offer(moved)
        return True

    @property
    def snapshotting(self) -> bool:
        """Whether a snapshot is being written or waits to be taken over."""
        return self._task is not None

    def _note_room(self) -> None:
        if self._full_since_us is not None:
            self.full_us += self._clock.monotonic_us() - self._full_since_us
            self._full_since_us = None
            self.room(True)

    def _wait_for_room(self, uplink: int) -> None:
        """Wait for acks; meanwhile others may look into store and uplink."""
        self.full = True
        if self._full_since_us is None:
            self._full_since_us = self._clock.monotonic_us()
            self.room(False)
        os.eventfd_write(self._finished, 1)
        if self._uplink is not None:
            self._uplink.release()
        self.lock.release()
        try:
            with contextlib.suppress(OSError, ValueError):  # closed by a restart of the uplink
                select.select([uplink], [], [], 1.0)
        finally:
            self.lock.acquire()
        self._take_acks()

    def _take_acks(self) -> None:
        """Hear of acks; an uplink that has died is started again and told of all that is left."""
        if self._uplink is not None:
            since: list[int] = []
            for stream, partition, seq in self._uplink.poll():
                since += self._store.acked(stream, partition, seq)
            if since:
                now = self._clock.wall_us()
                self.landed([now - at for at in since if at])
            if self._uplink.restart_if_dead():
                self._uplink.offer(self._store.pending())
