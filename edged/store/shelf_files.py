"""Shelf files: what the store keeps of jobs that cannot be loaded, one file a job.

`shelf/<beat:016d>-<job>.shelf` has the layout of a snapshot (`edged.store.snapshots`).  It is
written once, before the snapshot that names it, and deleted only after a snapshot that does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from edged.errors import StoreCorrupt
from edged.platform.disk import Disk
from edged.store.snapshots import Array, Damaged, Snapshot, read_snapshot, write_snapshot

_SUFFIX = ".shelf"
ShelfKey = tuple[str, int]
"""Job, and the newest beat in its file."""


class ShelfFiles:
    """The shelf files of one store; `bytes` is safe on any thread."""

    def __init__(self, disk: Disk, directory: str, epoch: int) -> None:
        self._disk, self._directory, self._epoch = disk, directory, epoch
        self._sizes: dict[str, int] = {}

    def scan(self) -> None:
        """Find the files; incomplete ones are deleted."""
        for name in self._disk.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if name.endswith(".tmp"):
                self._disk.unlink(path)
            elif name.endswith(_SUFFIX):
                file = self._disk.open(path)
                self._sizes[name] = file.size()
                file.close()

    def write(self, key: ShelfKey, facts: bytes, arrays: Mapping[str, Array]) -> None:
        """Write a file durably.  An equal key is replaced as a whole or not at all."""
        name, path = _name(key), f"{self._directory}/{_name(key)}"
        self._sizes[name] = write_snapshot(self._disk, path, self._epoch, key[1], facts, arrays)

    def read(self, key: ShelfKey) -> Snapshot:
        """A file's contents.  Raises StoreCorrupt where it is missing or damaged."""
        path, problem = self.path(key), "it is missing"
        if self._disk.exists(path):
            try:
                return read_snapshot(self._disk, path, self._epoch)
            except Damaged as damage:
                problem = f"damaged: {damage}"
        raise StoreCorrupt(f"{path}: {problem}, though job {key[0]} is kept there")

    def path(self, key: ShelfKey) -> str:
        """A file's path."""
        return f"{self._directory}/{_name(key)}"

    def keep(self, keys: Set[ShelfKey]) -> None:
        """Delete all other files, durably."""
        gone = self._sizes.keys() - {_name(key) for key in keys}
        for name in gone:
            self._disk.unlink(f"{self._directory}/{name}")
            del self._sizes[name]
        if gone:
            self._disk.sync_directory(self._directory)

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return sum(list(self._sizes.values()))


def _name(key: ShelfKey) -> str:
    job, beat = key
    return f"{beat:016d}-{job}{_SUFFIX}"
