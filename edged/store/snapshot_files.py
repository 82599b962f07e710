"""The directory of snapshots: the existing files, the newest, and a spare file for the next one.

The newest is kept, and the one before it while the log still leads on from there and the store has
room.  One retired file
stays as a spare that the next snapshot overwrites, which costs much less than a new file (see
`edged.store.log`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from edged.platform.disk import Disk
from edged.store import snapshots
from edged.store.salvage import Salvage
from edged.store.snapshots import Array, Damaged, Snapshot


@dataclass
class SnapshotTask:
    """A snapshot in progress; made by `Store.begin_snapshot`."""

    beat: int
    path: str
    log_bytes: int
    """Bytes of the log's records that the snapshot replaces."""
    over: str | None
    """The spare file that it overwrites."""
    disk: Disk
    epoch: int
    size: int = 0
    problem: BaseException | None = None

    def write(self, facts: bytes, arrays: Mapping[str, Array]) -> None:
        """Write the file.  Any error is stored and raised by `Store.end_snapshot`, so that a failed
        snapshot never counts."""
        try:
            self.size = snapshots.write_snapshot(
                self.disk, self.path, self.epoch, self.beat, facts, arrays, self.over
            )
        except BaseException as problem:
            self.problem = problem


class SnapshotFiles:
    """The snapshot files of one store; `bytes` is safe on any thread."""

    def __init__(self, disk: Disk, directory: str, epoch: int) -> None:
        self._disk, self._directory, self._epoch = disk, directory, epoch
        self._sizes: dict[int, int] = {}  # beat -> bytes, oldest first
        self._spare_bytes = 0
        self.beat = 0
        """Beat of the newest; 0: there is none."""

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return sum(list(self._sizes.values())) + self._spare_bytes

    @property
    def next_bytes(self) -> int:
        """Additional bytes for a snapshot as large as the newest."""
        return max(0, self._sizes.get(self.beat, 0) - self._spare_bytes)

    def scan(self) -> tuple[Snapshot | None, dict[int, str]]:
        """The newest valid snapshot, and the problems of newer ones, by beat.  Incomplete and spare
        files are deleted."""
        found, damaged = None, {}
        for name in reversed(self._disk.listdir(self._directory)):
            path = f"{self._directory}/{name}"
            if name.endswith((".tmp", ".spare")):
                self._disk.unlink(path)
            elif name.endswith(".snap") and name[:-5].isdigit():
                beat = int(name[:-5])
                if found is None:
                    try:
                        found = snapshots.read_snapshot(self._disk, path, self._epoch)
                    except Damaged as problem:
                        damaged[beat] = str(problem)
                file = self._disk.open(path)
                self._sizes[beat] = file.size()
                file.close()
        self._sizes = dict(sorted(self._sizes.items()))
        self.beat = found.beat if found else 0
        return found, damaged

    def newest_partly(self, damaged: Iterable[int]) -> Snapshot | None:
        """The newest of damaged snapshots whose facts are whole, without its damaged arrays."""
        for beat in sorted(damaged, reverse=True):
            path = snapshots.path_of(self._directory, beat)
            with suppress(Damaged):
                found = snapshots.read_snapshot(self._disk, path, self._epoch, partly=True)
                self.beat = max(self.beat, beat)
                return found
        return None

    def set_aside(self, beat: int, problem: str, salvage: Salvage) -> None:
        """Move a damaged snapshot out of the way: nothing needs it."""
        salvage.move(snapshots.path_of(self._directory, beat), "snapshot", problem)
        del self._sizes[beat]

    def report(self, beat: int, problem: str, lost: str, salvage: Salvage) -> None:
        """Record a damaged snapshot, which stays until a newer one is durable."""
        path = snapshots.path_of(self._directory, beat)
        salvage.add(path, 0, self._sizes[beat], "snapshot", problem, lost)

    def begin(self, beat: int, log_bytes: int) -> SnapshotTask:
        """A task for the snapshot after `beat`, which replaces `log_bytes` of the log."""
        path = snapshots.path_of(self._directory, beat)
        over = self._spare if self._spare_bytes else None
        self._spare_bytes = 0
        return SnapshotTask(beat, path, log_bytes, over, self._disk, self._epoch)

    def finish(self, task: SnapshotTask) -> None:
        """Record the task's snapshot as the newest."""
        self._sizes[task.beat] = task.size
        self.beat = task.beat

    def forget(self, first: int, barrier: bool) -> None:
        """Delete snapshots that recovery no longer needs; the log leads on from beat `first`.

        With `barrier` only the newest may serve a recovery, and that is durable on return.
        """
        older = sorted(self._sizes)[:-1]
        keep = [] if barrier else [beat for beat in older[-1:] if first <= beat]
        for beat in older:
            if beat not in keep:
                size = self._sizes.pop(beat)
                path = snapshots.path_of(self._directory, beat)
                if self._spare_bytes or barrier:
                    self._disk.unlink(path)
                else:
                    self._disk.rename(path, self._spare)
                    self._spare_bytes = size
        if barrier:
            self._disk.sync_directory(self._directory)

    def make_room(self) -> None:
        """Delete the spare file, and the snapshots before `beat`: only a start that finds that one
        damaged would read them."""
        for beat in [beat for beat in self._sizes if beat < self.beat]:
            self._disk.unlink(snapshots.path_of(self._directory, beat))
            del self._sizes[beat]
        if self._spare_bytes:
            self._disk.unlink(self._spare)
            self._spare_bytes = 0

    @property
    def _spare(self) -> str:
        return f"{self._directory}/.spare"
