"""Migration: brings a store of an earlier format to this one, step by step, before it is used.

A step from format n-1 to n names the files that it rewrites and how.  Its work is in

    STORE/migration/began        the step, and the session that it began after
    STORE/migration/<path>       a rewritten file, durable and whole under this name
    STORE/migration/plan         the paths of all of them: everything is rewritten
    STORE/identity               the new format: from here on the step counts

and then each file is renamed over the old one.  A step without files writes the identity alone.

Invariants

 1. Until the identity has the new format nothing else of the store is changed: the version that
    wrote it may go on with it, and the work is thrown away then.
 2. From then on the new files are whole and durable; an old file goes only when it is replaced.  A
    version that does not know the format refuses the store.
 3. Every step may be interrupted at any moment; the next start finishes it, and does not rewrite
    what is whole.
 4. The room for all new files is checked before the first is written.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edged.errors import StoreCorrupt
from edged.platform.disk import Buffer, Disk, File, flat_view
from edged.store import identity
from edged.store.checked_lines import read_checked, write_checked
from edged.store.errors import StoreFull

Rewrite = Callable[[File], Iterable[Buffer]]
"""The content of the new file, in order, made from the old one."""
Tell = Callable[[str], None]
DIRECTORIES = ("log", "snapshots", "spool", "shelf")
FREE_BYTES_MIN = 1 << 20
"""Bytes that stay free beside the new files."""
_STALE = (".tmp", ".spare")


@dataclass(frozen=True)
class Step:
    """How a store of the format before becomes one of a format."""

    changes: str
    """What the format changes, for the operator."""
    rewrites: Callable[[str], Rewrite | None] = lambda path: None
    """How the file at a path below the store is rewritten; None: it stays."""
    growth: float = 1.0
    """Upper bound of the new files' bytes for each byte of the old ones."""


STEPS: Mapping[int, Step] = {
    2: Step(
        "beats say which rows they left to later beats, which producers do not count, and which "
        "streams opened again; format 1 is read as it is"
    ),
}
"""The step to each format.  docs/formats.md lists the formats."""


@dataclass(frozen=True)
class Pending:
    """What a migration would do."""

    found: int
    target: int
    files: tuple[str, ...]
    """Files that the first step rewrites."""
    bytes: int
    """Room that it needs."""
    free: int
    changes: tuple[str, ...] = ()
    """What the formats after the one found change, in order."""


def pending(
    disk: Disk, store: str, found: int, steps: Mapping[int, Step] = STEPS, target: int = 0
) -> Pending:
    """What `migrate` would do with a store of format `found`; nothing is changed."""
    target = target or identity.FORMAT
    step = steps[found + 1] if found < target else Step("")
    names = [(path, size) for path, size, _ in _files(disk, store, step)]
    need = int(sum(size for _, size in names) * step.growth) + (FREE_BYTES_MIN if names else 0)
    changes = tuple(steps[number].changes for number in range(found + 1, target + 1))
    return Pending(found, target, tuple(n for n, _ in names), need, disk.free(store), changes)


def migrate(
    disk: Disk,
    store: str,
    epoch: int,
    tell: Tell = lambda text: None,
    steps: Mapping[int, Step] = STEPS,
    target: int = 0,
) -> tuple[int, int] | None:
    """Bring a store to format `target`, by default this version's, and finish what an earlier start
    began.  Returns the format found and the new one, None where they are equal.

    Raises StoreFull, with the store unchanged, where there is no room for a step.
    """
    target = target or identity.FORMAT
    first = found = identity.read_format(disk, f"{store}/identity")
    _Work(disk, store, found, tell).finish()
    while found < target:
        found += 1
        _Work(disk, store, found, tell).run(steps[found], epoch)
    return None if first == target else (first, target)


def _files(disk: Disk, store: str, step: Step) -> Iterator[tuple[str, int, Rewrite]]:
    """Path, size and rewriting of each file that a step rewrites."""
    for directory in DIRECTORIES:
        if not disk.exists(f"{store}/{directory}"):
            continue
        for name in disk.listdir(f"{store}/{directory}"):
            path = f"{directory}/{name}"
            rewrite = None if name.endswith(_STALE) else step.rewrites(path)
            if rewrite is not None:
                file = disk.open(f"{store}/{path}")
                size = file.size()
                file.close()
                yield path, size, rewrite


class _Work:
    """The work of one step, in its directory."""

    def __init__(self, disk: Disk, store: str, to: int, tell: Tell) -> None:
        self._disk, self._store, self._to, self._tell = disk, store, to, tell
        self._place = f"{store}/migration"

    def run(self, step: Step, epoch: int) -> None:
        """Rewrite the files that are not rewritten yet, and put them in place."""
        files = list(_files(self._disk, self._store, step))
        self._tell(f"store: format {self._to - 1} becomes {self._to}: {step.changes}")
        if files:
            self._begin()
            self._check_room(files, step)
            for number, (path, size, rewrite) in enumerate(files, 1):
                self._tell(f"store: format {self._to}: file {number} of {len(files)}, {size} bytes")
                self._rewrite(path, rewrite)
            for directory in DIRECTORIES:
                self._disk.sync_directory(f"{self._place}/{directory}")
            self._write("plan", {"to": self._to, "files": [path for path, _, _ in files]})
        identity.write_identity(self._disk, f"{self._store}/identity", epoch, self._to)
        if files:
            self.finish()

    def finish(self) -> None:
        """Put the files of a step that counts in place, and remove its work."""
        plan = self._read("plan")
        if plan is None or plan["to"] != self._to:
            return
        for path in plan["files"]:
            if self._disk.exists(f"{self._place}/{path}"):
                self._disk.rename(f"{self._place}/{path}", f"{self._store}/{path}")
        for directory in DIRECTORIES:
            self._disk.sync_directory(f"{self._store}/{directory}")
            self._disk.sync_directory(f"{self._place}/{directory}")
        self._clear()

    def _begin(self) -> None:
        """Go on with the work of an earlier start, unless the store was used since."""
        session = zlib.crc32(_content(self._disk, f"{self._store}/session"))
        began = {"to": self._to, "session": session}
        for directory in ("", *(f"/{name}" for name in DIRECTORIES)):
            self._disk.mkdir(f"{self._place}{directory}")
        if self._read("began") == began:
            return
        self._clear()
        self._write("began", began)
        self._disk.sync_directory(self._store)

    def _check_room(self, files: Iterable[tuple[str, int, Rewrite]], step: Step) -> None:
        left = [s for path, s, _ in files if not self._disk.exists(f"{self._place}/{path}")]
        need, free = int(sum(left) * step.growth) + FREE_BYTES_MIN, self._disk.free(self._store)
        if left and need > free:
            raise StoreFull(
                f"{self._store}: bringing the store to format {self._to} needs {need} bytes beside "
                f"the old files, {free} are free; free some room on that disk.  Nothing was "
                "changed: the version of edged before can still use the store"
            )

    def _rewrite(self, path: str, rewrite: Rewrite) -> None:
        new = f"{self._place}/{path}"
        if self._disk.exists(new):
            return
        old, file, at = self._disk.open(f"{self._store}/{path}"), None, 0
        try:
            file = self._disk.open(f"{new}.tmp", create=True)
            file.truncate(0)
            for buffer in rewrite(old):
                file.pwritev([buffer], at)
                at += len(flat_view(buffer))
            file.sync()
        finally:
            old.close()
            if file is not None:
                file.close()
        self._disk.rename(f"{new}.tmp", new)

    def _clear(self) -> None:
        """Delete the work; the plan first, since it must not outlive a file."""
        for directory in ("", *(f"/{name}" for name in DIRECTORIES)):
            place, names = f"{self._place}{directory}", self._disk.listdir(self._place + directory)
            for name in sorted(names, key=lambda name: name != "plan"):
                if directory or name in ("plan", "began", "plan.tmp", "began.tmp"):
                    self._disk.unlink(f"{place}/{name}")
            self._disk.sync_directory(place)

    def _write(self, name: str, content: Mapping[str, object]) -> None:
        write_checked(self._disk, f"{self._place}/{name}", content)

    def _read(self, name: str) -> dict[str, Any] | None:
        """The content of a file; None where it is missing.  Files are written whole or not at all:
        a damaged plan is StoreCorrupt."""
        path = f"{self._place}/{name}"
        if not self._disk.exists(path):
            return None
        found: dict[str, Any] | None = read_checked(self._disk, path)
        if found is None and name != "began":
            raise StoreCorrupt(f"{path}: damaged; see docs/store.md, 'When the store is damaged'")
        return found


def _content(disk: Disk, path: str) -> bytes:
    if not disk.exists(path):
        return b""
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
