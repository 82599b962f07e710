"""The journal: what stood in the board's files before this process wrote, and what it wrote since.

    line 1          JSON: {"format": 1, "boot": id, "files": [{name, part, path, original}, ...]}
    then per file   SLOT bytes: two texts that would be ours, padded with spaces, newline

Line 1 is on the disk before the first write to the board (temporary file, fsync, rename, fsync of
the directory).  A slot is overwritten in place before each write to its file, with the value that
stands there and the one that will: it survives the death of this process, and needs no fsync,
since a reboot takes the board's limits with it (`boot` tells that there was one).

The journal may belong to an unprivileged daemon and be restored from by root: links are not
followed, and what it says is checked against the board's own knobs (see `restoring`).

Beside it lies a lock that its owner holds: a journal without an owner is one to restore from.
Locks on the board's own files keep apart daemons that keep different journals.
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
    """A child of fork() must not hold its parent's locks beyond the parent's death."""
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
    """What we may have written; empty: nothing."""


class Lock:
    """Held until released or until this process dies."""

    def __init__(self, path: str, create: bool = False) -> None:
        """Raises BlockingIOError where somebody holds it, OSError where it cannot be opened."""
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
        """Let go; may be repeated."""
        if self._fd in _held:
            _held.discard(self._fd)
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # also where a child has not yet closed its copy
            os.close(self._fd)


class LimitJournal:
    """The file at `path`, held by this process."""

    def __init__(self, path: Path) -> None:
        """Raises NotPermitted where another process holds it."""
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
                f"{path} is held by process {owner}, which owns this board's limits: they are left "
                "to it; stop it, or run only one daemon a board with control"
            ) from None
        except OSError as problem:
            raise NotPermitted(
                f"{lock}: {problem.strerror}; limits are not touched without a journal: give the "
                "directory to the daemon's user"
            ) from problem

    def create(self, boot: str, records: Sequence[JournalRecord]) -> None:
        """Make it durable, in place of what there was.  Raises ActuatorError."""
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
        """File `index` holds `before` (empty: not ours) and is about to be written `after`."""
        if self._fd is not None:
            os.pwrite(self._fd, _slot(before, after), self._start + index * SLOT)

    def load(self) -> tuple[str, list[JournalRecord]] | None:
        """Boot id and records; None where there is no journal.  Raises ActuatorError."""
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
                f"{self.path} is no journal of limits ({problem}): set the limits by hand, "
                "or with nvpmodel, and delete it"
            ) from problem
        slots = (
            body[i * SLOT : (i + 1) * SLOT].decode("ascii", "replace") for i in range(len(plain))
        )
        return boot, [
            replace(record, ours=frozenset(slot.split()))
            for record, slot in zip(plain, slots, strict=True)
        ]

    def remove(self) -> None:
        """There is nothing to restore any more.  Raises ActuatorError."""
        self._close()
        try:
            self.path.unlink(missing_ok=True)
            self._sync_directory()
        except OSError as problem:
            raise ActuatorError(
                f"{self.path}: {problem.strerror}; all is restored, delete it"
            ) from problem

    def release(self) -> None:
        """Let go of it; what it says stays."""
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
    """Of the kernel's run; empty where the tree has none."""
    return sysfs.get(BOOT_ID) or ""


def _slot(*texts: str) -> bytes:
    return " ".join(text for text in texts if text).encode().ljust(SLOT - 1)[: SLOT - 1] + b"\n"


def _record(entry: dict[str, str]) -> JournalRecord:
    name, part, path, original = (entry[key] for key in ("name", "part", "path", "original"))
    if not all(isinstance(text, str) for text in (name, part, path, original)):
        raise TypeError("a file's entry holds what is no text")
    return JournalRecord(name, part, path, original)
