"""The disk interface of the store, which tests may replace (as they may `edged.platform.clock`).

A `Disk` names files by path; a `File` is one open file.  `SystemDisk` is the real disk.  All errors
are the operating system's OSError; the caller decides what they mean.

Guarantees that the store relies on, and what a simulated disk may lose in a crash:

1. `File.sync` returned: the bytes written and the size set before it survive.  Nothing else does.
2. `Disk.sync_directory` returned: the names created, renamed and unlinked in it before survive.
   Until then each of these may or may not have happened; a rename happens wholly or not at all.
3. An un-synced write may be on disk in part, 512-byte sectors in any order, some of them garbage.
4. After `allocate(n)` writes below `n` need no new space on a file system that overwrites in
   place, so that "disk full" can only strike where a file grows.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = "bytes | bytearray | memoryview | npt.NDArray[Any]"
"""Contiguous bytes that are written without a copy."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of exhausted space and quota."""
_IOV_MAX = 1024


class File(Protocol):
    """One open file; offsets and lengths are bytes."""

    path: str

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the file's end."""

    def preadinto(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; returns the number of bytes read."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all of `buffers`, one after the other, from `offset` on."""

    def sync(self) -> None:
        """Make data and size durable (fdatasync)."""

    def allocate(self, length: int) -> None:
        """Reserve space so that the file is at least `length` long (posix_fallocate)."""

    def truncate(self, length: int) -> None:
        """Cut or extend to `length`."""

    def size(self) -> int:
        """The file's size."""

    def lock(self) -> bool:
        """Take an exclusive lock, held while this file is open; False: another process holds it."""

    def map(self, length: int) -> npt.NDArray[np.uint8]:
        """The first `length` bytes for reading, without a copy where the file allows it.  They stay
        after `close` and after the file's name has gone.  The file must not become shorter."""

    def close(self) -> None:
        """Close; the lock is released."""


class Disk(Protocol):
    """Names and directories."""

    def open(self, path: str, create: bool = False) -> File:
        """Open for reading and writing; with `create` the file is made where there is none."""

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; nothing happens where it exists."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def exists(self, path: str) -> bool:
        """Whether the path names something."""

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing `new`."""

    def unlink(self, path: str) -> None:
        """Remove a file's name."""

    def sync_directory(self, path: str) -> None:
        """Make a directory's names durable (fsync)."""

    def free(self, path: str) -> int:
        """Free bytes at `path`, as the file system reports them."""


def flat_view(buffer: Buffer) -> memoryview:
    """The bytes of `buffer` as a memoryview of format B, without a copy where it is contiguous."""
    if isinstance(buffer, np.ndarray):
        if buffer.size == 0:
            return memoryview(b"")
        if buffer.ndim == 1 and buffer.flags.c_contiguous:
            return buffer.view(np.uint8).data
        return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8).data
    view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class SystemFile:
    """A file of the operating system."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pread(self, length: int, offset: int) -> bytes:
        """See `File.pread`."""
        parts = []
        while length > 0:
            part = os.pread(self._fd, length, offset)
            if not part:
                break
            parts.append(part)
            length -= len(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def preadinto(self, buffer: memoryview, offset: int) -> int:
        """See `File.preadinto`."""
        done = 0
        while done < len(buffer):
            got = os.preadv(self._fd, [buffer[done:]], offset + done)
            if got == 0:
                break
            done += got
        return done

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """See `File.pwritev`."""
        views = [v for v in map(flat_view, buffers) if len(v)]
        first = 0
        while first < len(views):
            group = views[first : first + _IOV_MAX]
            written = os.pwritev(self._fd, group, offset)
            offset += written
            for view in group:
                if written < len(view):
                    views[first] = view[written:]
                    break
                written -= len(view)
                first += 1

    def sync(self) -> None:
        """See `File.sync`."""
        os.fdatasync(self._fd)

    def allocate(self, length: int) -> None:
        """See `File.allocate`."""
        os.posix_fallocate(self._fd, 0, length)

    def truncate(self, length: int) -> None:
        """See `File.truncate`."""
        os.ftruncate(self._fd, length)

    def size(self) -> int:
        """See `File.size`."""
        return os.fstat(self._fd).st_size

    def lock(self) -> bool:
        """See `File.lock`: flock, so a child made by fork without exec would share it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def map(self, length: int) -> npt.NDArray[np.uint8]:
        """See `File.map`."""
        if length == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self._fd, length, prot=mmap.PROT_READ), np.uint8)

    def close(self) -> None:
        """See `File.close`."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class SystemDisk:
    """The real disk."""

    def open(self, path: str, create: bool = False) -> SystemFile:
        """See `Disk.open`; refuses symbolic links, so that no path leads out of the store."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        return SystemFile(path, os.open(path, flags, 0o640))

    def mkdir(self, path: str) -> None:
        """See `Disk.mkdir`."""
        Path(path).mkdir(mode=0o750, parents=True, exist_ok=True)

    def listdir(self, path: str) -> list[str]:
        """See `Disk.listdir`."""
        return sorted(p.name for p in Path(path).iterdir())

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return Path(path).exists()

    def rename(self, old: str, new: str) -> None:
        """See `Disk.rename`."""
        Path(old).replace(new)

    def unlink(self, path: str) -> None:
        """See `Disk.unlink`."""
        Path(path).unlink()

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free(self, path: str) -> int:
        """See `Disk.free`."""
        return filesystem_bytes(path)[0]


def filesystem_bytes(path: str) -> tuple[int, int]:
    """Free and total bytes of the file system that `path` is on or would be created on.

    A file system that does not report its size counts as unlimited.
    """
    while True:
        try:
            facts = os.statvfs(path)
            break
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path) or "."  # noqa: PTH120 - no Path a beat
    if facts.f_blocks == 0:
        return 1 << 62, 1 << 62
    return facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize


def sync_files(disk: Disk, directory: str, names: Sequence[str]) -> None:
    """Make these files of a directory durable, and their names."""
    for name in names:
        file = disk.open(f"{directory}/{name}")
        try:
            file.sync()
        finally:
            file.close()
    if names:
        disk.sync_directory(directory)


def replace_file(
    disk: Disk, path: str, buffers: Sequence[Buffer], sync: bool = True, over: str | None = None
) -> None:
    """Replace the file at `path` by `buffers`: write a temporary file beside it, sync, rename.

    A crash leaves the old file or the new one; with `sync=False`, for files that are only hints, it
    may leave garbage.  On an error the temporary is removed and the old file stays.  `over` names
    an obsolete file in the same directory, which becomes the temporary: overwriting blocks is far
    cheaper than allocating them (`edged.store.log`).
    """
    temporary = path + ".tmp"
    if over is not None:
        disk.rename(over, temporary)
        disk.sync_directory(str(Path(path).parent))
    file = disk.open(temporary, create=True)
    try:
        size = sum(len(flat_view(b)) for b in buffers)
        if sync:
            file.allocate(max(1, size))
        file.pwritev(buffers, 0)
        file.truncate(size)
        if sync:
            file.sync()
    except OSError:
        disk.unlink(temporary)
        raise
    finally:
        file.close()
    disk.rename(temporary, path)
    if sync:
        disk.sync_directory(str(Path(path).parent))
