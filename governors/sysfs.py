"""The kernel's files under one root: the only way in which `governors` reads or writes a board.

A board is a directory: `/` on a real one, a fixture or a simulated tree otherwise.  Paths are
written as on a real board ("/sys/class/devfreq/...") and looked up below the root.  Links in a
fixture are relative.

Files are opened, read once and closed with plain system calls: Python's buffered reader turns
EAGAIN, with which some thermal zones and INA3221 drivers answer, into a TypeError.

What a file answers is one of

    SysfsError
    ├── Absent      ENOENT, ENODEV, ENXIO, ENOTDIR: not there, or gone since (hotplug, unbinding)
    ├── Denied      EACCES, EPERM, EROFS: there, but not for us
    ├── Busy        EAGAIN, EBUSY: there, but not now
    └── Refused     EINVAL, EIO, ENODATA, ERANGE and all else: asked wrongly, or broken
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

READ_MAX = 64 << 10
"""Longest content that is read; sysfs gives at most a page."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1
"""What the kernel's integers reach: s64 and u64."""


class SysfsError(Exception):
    """A file could not be read or written; `path` is as on a real board."""

    def __init__(self, path: str, problem: OSError) -> None:
        self.path, self.errno = path, problem.errno
        super().__init__(f"{path}: {problem.strerror or problem}")


class Absent(SysfsError):
    """Not there."""


class Denied(SysfsError):
    """Not permitted."""


class Busy(SysfsError):
    """Not now."""


class KernelRefused(SysfsError):
    """The kernel refused, or the device failed."""


_KINDS: dict[int | None, type[SysfsError]] = {
    **dict.fromkeys((errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR), Absent),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), Denied),
    **dict.fromkeys((errno.EAGAIN, errno.EBUSY), Busy),
}


def error(path: str, problem: OSError) -> SysfsError:
    """The kind of error that an OSError is."""
    return _KINDS.get(problem.errno, KernelRefused)(path, problem)


class Sysfs:
    """A board's tree.  Subclasses may add a kernel's behaviour to plain files (see `simulated`)."""

    def __init__(self, root: Path | str = "/") -> None:
        self.root = Path(root)
        self._base = "" if self.root == Path("/") else str(self.root)

    def place(self, path: str) -> str:
        """Where `path` lies in the file system of this process."""
        return f"{self._base}{path}"

    def read(self, path: str) -> str:
        """The content without the final newline and NULs.  Raises SysfsError."""
        try:
            fd = os.open(self.place(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                content = os.read(fd, READ_MAX)
            finally:
                os.close(fd)
        except OSError as problem:
            raise error(path, problem) from problem
        return content.decode("utf-8", "replace").strip("\0\n ")

    def read_int(self, path: str) -> int:
        """The content as a decimal integer that a kernel may write.  Raises SysfsError (Refused
        where it is none)."""
        text = self.read(path)
        if _INTEGER.fullmatch(text) and INT_MIN <= (value := int(text)) <= INT_MAX:
            return value
        garbled = OSError(errno.EINVAL, f"holds {text[:40]!r}, which is no integer of 64 bits")
        raise KernelRefused(path, garbled)

    def get(self, path: str) -> str | None:
        """The content, or None where it cannot be read, for whatever reason."""
        try:
            return self.read(path)
        except SysfsError:
            return None

    def get_int(self, path: str) -> int | None:
        """The integer, or None where there is none to be read."""
        try:
            return self.read_int(path)
        except SysfsError:
            return None

    def write(self, path: str, value: str) -> None:
        """Write `value` with one system call.  Raises SysfsError."""
        try:
            fd = os.open(self.place(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(fd, value.encode())
            finally:
                os.close(fd)
        except OSError as problem:
            raise error(path, problem) from problem

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        return Path(self.place(path)).exists()

    def writable(self, path: str) -> bool:
        """Whether this process may write there."""
        return os.access(self.place(path), os.W_OK)

    def read_only(self, path: str) -> bool:
        """Whether it lies on what is mounted read-only, as a container's /sys does."""
        try:
            return bool(os.statvfs(self.place(path)).f_flag & os.ST_RDONLY)
        except OSError:
            return False

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; none where it is not there."""
        try:
            return sorted(entry.name for entry in Path(self.place(path)).iterdir())
        except OSError:
            return []

    def glob(self, pattern: str) -> Iterator[str]:
        """Paths (as on a real board) that match a pattern, sorted."""
        for found in sorted(self.root.glob(pattern.lstrip("/"))):
            yield str(found)[len(self._base) :]

    def resolve(self, path: str) -> str:
        """The path without links, as on a real board."""
        found = str(Path(self.place(path)).resolve())
        base = str(self.root.resolve()) if self._base else ""
        return found[len(base) :] if found.startswith(base) else found
