"""Snapshots of the jobs' state, written beside the commits that follow: one at a time, on a thread
of its own, and taken over by the next commit.

A snapshot for which there is no room is given up: the log goes on, and the next one is due after
another quarter of the usual distance.
"""

from __future__ import annotations

import threading

from edged.data.flow import State
from edged.store import SnapshotTask, Store, StoreFull
from edged.store.page_index import PageRef

SNAPSHOT_BYTES = 512 << 20
"""Log since the last snapshot that makes the next one due: it bounds the recovery time."""


class Snapshots:
    """Those of one store; the commit thread's, but for `under_way` and `given_up`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._task: SnapshotTask | None = None
        self._writer: threading.Thread | None = None
        self.given_up = 0
        """Those for which there was no room."""

    @property
    def under_way(self) -> bool:
        """Whether one is being written, or waits to be taken over."""
        return self._task is not None

    @property
    def written(self) -> bool:
        """Whether one only waits to be taken over."""
        return self._writer is not None and not self._writer.is_alive()

    def begin(self, beat: int, facts: bytes, arrays: State) -> None:
        """Write one of `beat`, which was just committed; none is under way."""
        self._task = self._store.begin_snapshot(beat)
        self._writer = threading.Thread(
            target=self._task.write, args=(facts, arrays), name="edged-snapshot", daemon=True
        )
        self._writer.start()

    def end(self) -> list[PageRef] | None:
        """Wait for the one that is under way and take it over: the new places of pages that were
        moved; None where there is none, or no room for it."""
        if self._task is None or self._writer is None:
            return None
        self._writer.join()
        task, self._task, self._writer = self._task, None, None
        try:
            return self._store.end_snapshot(task)
        except StoreFull:
            self.given_up += 1
            return None


class SnapshotPace:
    """When the next snapshot is due."""

    def __init__(self, store: Store, snapshots: Snapshots, every_bytes: int) -> None:
        self._store, self._snapshots, self._every_bytes = store, snapshots, every_bytes
        self._given_up = self._not_before = 0

    def due(self, size: int) -> bool:
        """Whether, with a record of `size` bytes more, enough log has come since the last one, or
        since one was given up: at most a quarter of what the store can take, or it would fill up
        with log that only a snapshot retires."""
        logged = self._store.log_bytes_since_snapshot + size
        every_bytes = min(self._every_bytes, self._store.capacity // 4)
        given_up = self._snapshots.given_up
        if given_up != self._given_up:
            self._given_up, self._not_before = given_up, logged + every_bytes // 4
        if self._snapshots.under_way or logged < max(every_bytes, self._not_before):
            return False
        self._not_before = 0
        return True
