"""Journal of the original contents of a board's files and of the values written since.

    line 1          JSON: {"format": 1, "boot": id, "files": [{name, part, path, original}, ...]}
    then per file   SLOT bytes: up to two values that may be this process's, padded, newline

Line 1 is durable before the first write to the board (temporary file, fsync, rename, fsync of the
directory). Before each write to a board file its slot is overwritten in place with the current and
the next value.  A slot survives the death of the process and needs no fsync, since a reboot also
resets the board's limits (`boot` detects it).

An unprivileged daemon may own the journal while root restores from it: symbolic links are not
followed, and its records are checked against the board's own knobs (`restoring`).

The owner holds a lock file beside it; a journal whose lock is free is to be restored from.  Locks
on the board's files separate daemons that use different journals.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from governors.errors import ActuatorError, NotPermitted
from governors.sysfs import Sysfs

FORMAT = 1
SLOT = 64
BOOT_ID = "/proc/sys/kernel/random/boot_id"

_held: set[int] = set()


def _forked() -> None:
    """Close the locks in a child of fork(), which would otherwise outlive the parent's."""
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forked)


class OwnedElsewhere(NotPermitted):
    """Another process owns the board's limits."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """One file of the board."""

    name: str
    part: str
    path: str
    original: str
    ours: frozenset[str] = frozenset()
    """Values that this process may have written; empty: none."""


class Lock:
    """A file lock, held until `release` or the death of the process."""

    def __init__(self, path: str, create: bool = False) -> None:
        """Raises BlockingIOError where another process holds it, OSError where the file cannot be
        opened."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW if create else os.O_RDONLY
        self._fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
        _held.add(self._fd)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if create:
                os.ftruncate(self._fd, 0)
                os.write(self._fd, b"%d\n" % os.getpid())
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock; idempotent."""
        if self._fd in _held:
            _held.discard(self._fd)
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # explicit: a child may still hold a copy of fd
            os.close(self._fd)


class LimitJournal:
    """The journal at `path`, locked by this process."""

    def __init__(self, path: Path) -> None:
        """Raises OwnedElsewhere where another process holds it, NotPermitted where it cannot be
        created."""
        self.path = path
        self._fd: int | None = None
        self._start = 0
        lock = path.with_name(f"{path.name}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(str(lock), create=True)
        except BlockingIOError:
            owner = lock.read_text("ascii", "replace").strip() or "?"
            raise OwnedElsewhere(
                f"{path} is locked by process {owner}, which owns this board's limits: they are "
                "left to it; stop it, or run only one daemon a board with control"
            ) from None
        except OSError as problem:
            raise NotPermitted(
                f"{lock}: {problem.strerror}; limits are not touched without a journal: give the "
                "directory to the daemon's user"
            ) from problem

    def create(self, boot: str, records: Sequence[JournalRecord]) -> None:
        """Replace the journal durably.  Raises ActuatorError."""
        temporary = self.path.with_name(f"{self.path.name}.new")
        files = [{"name": r.name, "part": r.part, "path": r.path, "original": r.original}
                 for r in records]  # fmt: skip
        head = json.dumps({"format": FORMAT, "boot": boot, "files": files}).encode() + b"\n"
        body = b"".join(_slot(*sorted(r.ours)[:2]) for r in records)
        try:
            temporary.unlink(missing_ok=True)
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.write(fd, head + body)
                os.fsync(fd)
                temporary.replace(self.path)
                self._sync_directory()
            except OSError:
                os.close(fd)
                raise
        except OSError as problem:
            raise ActuatorError(
                f"{self.path}: {problem.strerror}; limits are not touched without a journal"
            ) from problem
        self._close()
        self._fd, self._start = fd, len(head)

    def note(self, index: int, before: str, after: str) -> None:
        """Record that file `index` holds `before` (empty: the original) and will be written
        `after`."""
        if self._fd is not None:
            os.pwrite(self._fd, _slot(before, after), self._start + index * SLOT)

    def load(self) -> tuple[str, list[JournalRecord]] | None:
        """Boot id and records; None without a journal.  Raises ActuatorError."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise NotPermitted(f"{self.path}: {problem.strerror}") from problem
        head, _, body = content.partition(b"\n")
        try:
            document = json.loads(head)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}, not {FORMAT}")
            plain = [_record(entry) for entry in document["files"]]
            boot = str(document["boot"])
        except (ValueError, KeyError, TypeError) as problem:
            raise ActuatorError(
                f"{self.path} is not a journal of limits ({problem}): set the limits by hand, "
                "or with nvpmodel, and delete the file"
            ) from problem
        slots = (
            body[i * SLOT : (i + 1) * SLOT].decode("ascii", "replace") for i in range(len(plain))
        )
        return boot, [
            replace(record, ours=frozenset(slot.split()))
            for record, slot in zip(plain, slots, strict=True)
        ]

    def remove(self) -> None:
        """Delete the journal, since nothing is left to restore.  Raises ActuatorError."""
        self._close()
        try:
            self.path.unlink(missing_ok=True)
            self._sync_directory()
        except OSError as problem:
            raise ActuatorError(
                f"{self.path}: {problem.strerror}; all limits are restored: delete the file"
            ) from problem

    def release(self) -> None:
        """Unlock the journal and keep its content."""
        self._close()
        self._lock.release()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _sync_directory(self) -> None:
        fd = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def boot_id(sysfs: Sysfs) -> str:
    """Id of the running boot; empty where the tree has none."""
    return sysfs.get(BOOT_ID) or ""


def _slot(*texts: str) -> bytes:
    return " ".join(text for text in texts if text).encode().ljust(SLOT - 1)[: SLOT - 1] + b"\n"


def _record(entry: dict[str, str]) -> JournalRecord:
    name, part, path, original = (entry[key] for key in ("name", "part", "path", "original"))
    if not all(isinstance(text, str) for text in (name, part, path, original)):
        raise TypeError("an entry holds a value that is not a text")
    return JournalRecord(name, part, path, original)
