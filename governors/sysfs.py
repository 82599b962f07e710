"""Reads and writes the kernel's files below one root; `governors` has no other access to a board.

A board is a directory: `/` on a real board, else a fixture or a simulated tree.  Paths have the
form that they have on a real board ("/sys/class/devfreq/...") and are looked up below the root.
Symbolic links in a fixture are relative.

Each access is one open, one read or write and one close.  Python's buffered reader is unusable
here: it turns EAGAIN, which some thermal zones and INA3221 drivers return, into a TypeError.

Errors by errno:

    SysfsError
    ├── Absent          ENOENT, ENODEV, ENXIO, ENOTDIR: no such file, or no longer (hotplug)
    ├── Denied          EACCES, EPERM, EROFS: the file exists; this process may not use it
    ├── Busy            EAGAIN, EBUSY: temporarily unavailable
    └── KernelRefused   EINVAL, EIO, ENODATA, ERANGE and all others: invalid value or failed device
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

CPU = "/sys/devices/system/cpu"
CPUFREQ = f"{CPU}/cpufreq"
DEVFREQ = "/sys/class/devfreq"
POWERCAP = "/sys/class/powercap"
INA3221_SHUNT_STEP_UV = 40
"""Resolution of the shunt voltage of an INA3221."""
READ_MAX = 64 << 10
"""Bytes read at most; a sysfs attribute has at most one page."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1


class SysfsError(Exception):
    """A file could not be read or written.  `path` is the path on a real board."""

    def __init__(self, path: str, problem: OSError) -> None:
        self.path, self.errno = path, problem.errno
        super().__init__(f"{path}: {problem.strerror or problem}")


class Absent(SysfsError):
    """The file does not exist."""


class Denied(SysfsError):
    """This process may not read or write the file."""


class Busy(SysfsError):
    """The file is temporarily unavailable."""


class KernelRefused(SysfsError):
    """The kernel rejected the value, or the device failed."""


_KINDS: dict[int | None, type[SysfsError]] = {
    **dict.fromkeys((errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR), Absent),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), Denied),
    **dict.fromkeys((errno.EAGAIN, errno.EBUSY), Busy),
}


def error(path: str, problem: OSError) -> SysfsError:
    """The SysfsError for the errno of an OSError."""
    return _KINDS.get(problem.errno, KernelRefused)(path, problem)


class Sysfs:
    """A board's file tree.  Subclasses add the behaviour of a kernel to plain files
    (`simulated`)."""

    def __init__(self, root: Path | str = "/") -> None:
        self.root = Path(root)
        self._base = "" if self.root == Path("/") else str(self.root)

    def place(self, path: str) -> str:
        """The path in the file system of this process."""
        return f"{self._base}{path}"

    def read(self, path: str) -> str:
        """Content without trailing newline and NULs.  Raises SysfsError."""
        try:
            fd = os.open(self.place(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                content = os.read(fd, READ_MAX)
            finally:
                os.close(fd)
        except OSError as problem:
            raise error(path, problem) from problem
        return content.decode("utf-8", "replace").strip("\0\n ")

    def read_long(self, path: str) -> str:
        """Content of a file that the kernel gives in parts, such as /proc/interrupts.  Raises
        SysfsError."""
        try:
            with open(self.place(path), errors="replace") as file:
                return file.read()
        except OSError as problem:
            raise error(path, problem) from problem

    def read_int(self, path: str) -> int:
        """Content as a decimal integer in the range of s64 and u64. Raises SysfsError
        (KernelRefused where the content is no such integer)."""
        text = self.read(path)
        if _INTEGER.fullmatch(text) and INT_MIN <= (value := int(text)) <= INT_MAX:
            return value
        garbled = OSError(errno.EINVAL, f"holds {text[:40]!r}, which is no integer of 64 bits")
        raise KernelRefused(path, garbled)

    def get(self, path: str) -> str | None:
        """Content, or None where the file cannot be read."""
        try:
            return self.read(path)
        except SysfsError:
            return None

    def get_int(self, path: str) -> int | None:
        """Integer content, or None where the file holds no integer or cannot be read."""
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
        """Whether a file or directory exists at `path`."""
        return Path(self.place(path)).exists()

    def writable(self, path: str) -> bool:
        """Whether this process may write the file."""
        return os.access(self.place(path), os.W_OK)

    def read_only(self, path: str) -> bool:
        """Whether the file lies on a read-only mount, such as /sys in a container."""
        try:
            return bool(os.statvfs(self.place(path)).f_flag & os.ST_RDONLY)
        except OSError:
            return False

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty where the directory does not exist."""
        try:
            return sorted(entry.name for entry in Path(self.place(path)).iterdir())
        except OSError:
            return []

    def glob(self, pattern: str) -> Iterator[str]:
        """Paths that match `pattern`, sorted, in the form of a real board."""
        for found in sorted(self.root.glob(pattern.lstrip("/"))):
            yield str(found)[len(self._base) :]

    def resolve(self, path: str) -> str:
        """The path with symbolic links resolved, in the form of a real board."""
        found = str(Path(self.place(path)).resolve())
        base = str(self.root.resolve()) if self._base else ""
        return found[len(base) :] if found.startswith(base) else found
