"""Snapshots of the jobs' state: written on a thread of their own beside later commits, one at a
time, and adopted by the next commit.

A snapshot that finds the disk full is given up.  The log goes on, and the next snapshot is due
after a quarter of the usual distance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edged.data.flow import State
from edged.store import SnapshotTask, Store, StoreFull
from edged.store.page_index import PageRef


class Snapshots:
    """Snapshots of one store; commit thread only, except `under_way`, `given_up` and
    `adopted`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._task: SnapshotTask | None = None
        self._writer: threading.Thread | None = None
        self.given_up = 0
        """Snapshots that found the disk full."""
        self.adopted = -1
        """Beat of the newest snapshot that this process has taken; -1: none."""

    @property
    def under_way(self) -> bool:
        """Whether a snapshot is being written or waits to be adopted."""
        return self._task is not None

    @property
    def written(self) -> bool:
        """Whether a snapshot is written and waits to be adopted."""
        return self._writer is not None and not self._writer.is_alive()

    def begin(
        self, beat: int, facts: bytes, arrays: State, sync: Callable[[], object] = lambda: None
    ) -> None:
        """Start to write a snapshot of `beat`, which was just committed; none is under way.  `sync`
        makes the files durable that it names."""
        self._task = task = self._store.begin_snapshot(beat)

        def write() -> None:
            try:
                sync()
            except BaseException as problem:
                task.problem = problem  # a failed snapshot is not adopted
            else:
                task.write(facts, arrays)

        self._writer = threading.Thread(target=write, name="edged-snapshot", daemon=True)
        self._writer.start()

    def end(self) -> list[PageRef] | None:
        """Wait for the snapshot that is under way and adopt it.

        Returns the new places of pages that it moved; None where there is no snapshot, or no room
        for it.
        """
        if self._task is None or self._writer is None:
            return None
        self._writer.join()
        task, self._task, self._writer = self._task, None, None
        try:
            moved = self._store.end_snapshot(task)
        except StoreFull:
            self.given_up += 1
            return None
        self.adopted = task.beat
        return moved


class SnapshotSchedule:
    """Decides when the next snapshot is due."""

    def __init__(self, store: Store, snapshots: Snapshots, every_bytes: int) -> None:
        self._store, self._snapshots, self._every_bytes = store, snapshots, every_bytes
        self._given_up = self._not_before = 0

    def due(self, size: int, loaded_bytes: int = 0) -> bool:
        """Whether a snapshot is due after a record of `size` bytes more, where records since the
        last one name files of `loaded_bytes` (`edged.beat.table_loads`).

        Only a snapshot retires log. The distance in log bytes is therefore at most a quarter of the
        store's capacity, and at most a sixteenth where the record after this one might find no
        room: a beat that waits for room lets no snapshot pass. A segment that a record did not fit
        holds less log than it takes space, so that there a second segment is enough.

        Files that records name count as log: a start reads them, and merged ones go only behind a
        snapshot.
        """
        logged = self._store.log_bytes_since_snapshot + size
        capacity = self._store.capacity
        crowded = self._store.is_crowded(size, capacity)
        every_bytes = min(self._every_bytes, capacity // (16 if crowded else 4))
        enough = 0 if crowded and self._store.log_segments > 1 else every_bytes
        logged += loaded_bytes
        given_up = self._snapshots.given_up
        if given_up != self._given_up:
            self._given_up, self._not_before = given_up, logged + every_bytes // 4
        if self._snapshots.under_way or logged < max(enough, self._not_before):
            return False
        self._not_before = 0
        return True
