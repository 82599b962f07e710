"""The directory of snapshots: which there are, the newest, and a spare file for the next one.

Kept are the newest, and the one before it while the log still leads on from there.  One of the
others stays as a spare file that the next snapshot overwrites, which is far cheaper than writing
anew (see `edged.store.log`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edged.platform.disk import Disk
from edged.store import snapshots
from edged.store.snapshots import Array, Snapshot


@dataclass
class SnapshotTask:
    """A snapshot that is being taken; made by `Store.begin_snapshot`."""

    beat: int
    path: str
    log_bytes: int
    """Bytes of the log's records that the snapshot makes superfluous."""
    over: str | None
    """A file that is overwritten for it."""
    disk: Disk
    epoch: int
    size: int = 0
    problem: BaseException | None = None

    def write(self, facts: bytes, arrays: Mapping[str, Array]) -> None:
        """Make the file; what goes wrong, whatever it is, is raised by `Store.end_snapshot`: a
        snapshot that is not there must not count."""
        try:
            self.size = snapshots.write_snapshot(
                self.disk, self.path, self.epoch, self.beat, facts, arrays, self.over
            )
        except BaseException as problem:
            self.problem = problem


class SnapshotFiles:
    """The files of one store; `bytes` may be read from any thread."""

    def __init__(self, disk: Disk, directory: str, epoch: int) -> None:
        self._disk, self._directory, self._epoch = disk, directory, epoch
        self._sizes: dict[int, int] = {}  # beat -> bytes, oldest first
        self._spare_bytes = 0
        self.beat = 0
        """Of the newest; 0: there is none."""

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return sum(list(self._sizes.values())) + self._spare_bytes

    @property
    def next_bytes(self) -> int:
        """Bytes that one like the newest would take beyond what is held."""
        return max(0, self._sizes.get(self.beat, 0) - self._spare_bytes)

    def scan(self) -> tuple[Snapshot | None, dict[int, str]]:
        """The newest that is whole, and what is wrong with the newer ones, by beat.  Half-made and
        spare files are removed."""
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
                    except snapshots.Damaged as problem:
                        damaged[beat] = f"{path}: damaged: {problem}"
                        continue
                file = self._disk.open(path)
                self._sizes[beat] = file.size()
                file.close()
        self._sizes = dict(sorted(self._sizes.items()))
        self.beat = found.beat if found else 0
        return found, damaged

    def set_aside(self, damaged: Mapping[int, str], directory: str) -> None:
        """Move the damaged ones there, for a person to look at."""
        for beat in damaged:
            old = snapshots.path_of(self._directory, beat)
            self._disk.rename(old, snapshots.path_of(directory, beat))

    def begin(self, beat: int, log_bytes: int) -> SnapshotTask:
        """A task for the snapshot after `beat`, which replaces so much of the log."""
        path = snapshots.path_of(self._directory, beat)
        over = self._spare if self._spare_bytes else None
        self._spare_bytes = 0
        return SnapshotTask(beat, path, log_bytes, over, self._disk, self._epoch)

    def took(self, task: SnapshotTask) -> None:
        """The task's is the newest now."""
        self._sizes[task.beat] = task.size
        self.beat = task.beat

    def forget(self, first: int, barrier: bool) -> None:
        """Give up those that nothing starts from any more; the log leads on from beat `first`.

        With `barrier` nothing may start from any but the newest, and that is durable on return.
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

    def drop_spare(self) -> None:
        """Delete the spare file, to give its room back."""
        if self._spare_bytes:
            self._disk.unlink(self._spare)
            self._spare_bytes = 0

    @property
    def _spare(self) -> str:
        return f"{self._directory}/.spare"
