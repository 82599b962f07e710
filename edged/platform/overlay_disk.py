"""A disk whose changes stay in memory: the files below it are only read.

What is written, renamed, created or unlinked is seen by later calls on the same `OverlayDisk` and
by nothing else; it costs its own size in memory.  A lock is always free, and a sync does nothing.
Files are opened read-only, so that a read-only file system will do.  Symbolic links are refused, as
`SystemDisk` does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edged.platform.disk import Buffer, filesystem_bytes, flat_view

_BLOCK = 4096


class _Content:
    """The bytes of a file: `base`, a file below up to `kept`, under the changed blocks."""

    def __init__(self, base: str | None, size: int) -> None:
        self.base, self.size, self.kept = base, size, size
        self.blocks: dict[int, bytearray] = {}

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        if size < self.size:
            self.kept = min(self.kept, size)
            for number in [n for n in self.blocks if n * _BLOCK >= size]:
                del self.blocks[number]
            if (last := self.blocks.get(size // _BLOCK)) is not None:
                last[size % _BLOCK :] = bytes(_BLOCK - size % _BLOCK)
        self.size = size


class OverlayFile:
    """A file of an `OverlayDisk`."""

    def __init__(self, path: str, content: _Content) -> None:
        self.path, self._content = path, content
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = -1 if content.base is None else os.open(content.base, flags)

    def pread(self, length: int, offset: int) -> bytes:
        """See `File.pread`."""
        data = bytearray(max(0, min(length, self._content.size - offset)))
        self.preadinto(memoryview(data), offset)
        return bytes(data)

    def preadinto(self, buffer: memoryview, offset: int) -> int:
        """See `File.preadinto`."""
        length = max(0, min(len(buffer), self._content.size - offset))
        below = max(0, min(length, self._content.kept - offset))
        done = 0
        while done < below and (got := os.preadv(self._fd, [buffer[done:below]], offset + done)):
            done += got
        buffer[done:length] = bytes(length - done)
        for number in range(offset // _BLOCK, -(-(offset + length) // _BLOCK)):
            if (block := self._content.blocks.get(number)) is not None:
                start, end = (
                    max(offset, number * _BLOCK),
                    min(offset + length, (number + 1) * _BLOCK),
                )
                part = memoryview(block)[start - number * _BLOCK : end - number * _BLOCK]
                buffer[start - offset : end - offset] = part
        return length

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """See `File.pwritev`."""
        for view in map(flat_view, buffers):
            at = 0
            while at < len(view):
                number, within = divmod(offset + at, _BLOCK)
                part = view[at : at + _BLOCK - within]
                self._block(number)[within : within + len(part)] = part
                at += len(part)
            offset += len(view)
            self._content.size = max(self._content.size, offset)

    def _block(self, number: int) -> bytearray:
        """A block that may be changed."""
        if number not in self._content.blocks:
            block = bytearray(_BLOCK)
            self.preadinto(memoryview(block), number * _BLOCK)
            self._content.blocks[number] = block
        return self._content.blocks[number]

    def sync(self) -> None:
        """See `File.sync`."""

    def allocate(self, length: int) -> None:
        """See `File.allocate`."""
        self._content.size = max(self._content.size, length)

    def truncate(self, length: int) -> None:
        """See `File.truncate`."""
        self._content.truncate(length)

    def size(self) -> int:
        """See `File.size`."""
        return self._content.size

    def lock(self) -> bool:
        """See `File.lock`."""
        return True

    def map(self, length: int) -> npt.NDArray[np.uint8]:
        """See `File.map`.  A copy."""
        return np.frombuffer(self.pread(length, 0), np.uint8)

    def close(self) -> None:
        """See `File.close`."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class OverlayDisk:
    """See the module."""

    def __init__(self) -> None:
        self._changed: dict[str, _Content | None] = {}
        """Content by path; None: unlinked."""
        self._made: set[str] = set()

    def open(self, path: str, create: bool = False) -> OverlayFile:
        """See `Disk.open`."""
        if path not in self._changed and os.path.lexists(path):
            self._changed[path] = _Content(path, os.stat(path, follow_symlinks=False).st_size)  # noqa: PTH116
        content = self._changed.get(path)
        if content is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            content = self._changed[path] = _Content(None, 0)
        return OverlayFile(path, content)

    def mkdir(self, path: str) -> None:
        """See `Disk.mkdir`."""
        self._made.add(path)

    def listdir(self, path: str) -> list[str]:
        """See `Disk.listdir`."""
        place = Path(path)
        names = {p.name for p in place.iterdir()} if place.exists() else set()
        for changed, content in self._changed.items():
            parent, _, name = changed.rpartition("/")
            if parent == path:
                (names.discard if content is None else names.add)(name)
        return sorted(names)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        if path in self._changed:
            return self._changed[path] is not None
        return path in self._made or Path(path).exists()

    def rename(self, old: str, new: str) -> None:
        """See `Disk.rename`."""
        self.open(old).close()
        self._changed[new], self._changed[old] = self._changed[old], None

    def unlink(self, path: str) -> None:
        """See `Disk.unlink`."""
        self.open(path).close()
        self._changed[path] = None

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""

    def free(self, path: str) -> int:
        """See `Disk.free`."""
        return filesystem_bytes(path)[0]
