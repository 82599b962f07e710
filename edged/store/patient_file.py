"""A file whose unreadable blocks read as zeros, which no checksum takes for data.

A read that fails with EIO is repeated once, because the disk may succeed the second time.  Then it
is made block by block, and the blocks that fail are zeros.  Whether damage there is safe to pass is
for the caller to decide: `unreadable` has the offsets.  All other errors are raised.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edged.platform.disk import Buffer, Disk, File
from edged.store.records import ALIGN


class PatientFile:
    """See the module; everything but reading is the file's own."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.path = file.path
        self.unreadable: list[int] = []
        """Offsets of the blocks that were zeros."""

    def pread(self, length: int, offset: int) -> bytes:
        """See `File.pread`."""
        for _ in range(2):
            try:
                return self._file.pread(length, offset)
            except OSError as problem:
                if problem.errno != errno.EIO:
                    raise
        end = min(offset + length, self._file.size())
        parts = []
        while offset < end:
            step = min(ALIGN - offset % ALIGN, end - offset)
            try:
                parts.append(self._file.pread(step, offset))
            except OSError as problem:
                if problem.errno != errno.EIO:
                    raise
                self.unreadable.append(offset)
                parts.append(bytes(step))
            offset += step
        return b"".join(parts)

    def preadinto(self, buffer: memoryview, offset: int) -> int:
        """See `File.preadinto`."""
        try:
            return self._file.preadinto(buffer, offset)
        except OSError as problem:
            if problem.errno != errno.EIO:
                raise
        data = self.pread(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """See `File.pwritev`."""
        self._file.pwritev(buffers, offset)

    def sync(self) -> None:
        """See `File.sync`."""
        self._file.sync()

    def allocate(self, length: int) -> None:
        """See `File.allocate`."""
        self._file.allocate(length)

    def truncate(self, length: int) -> None:
        """See `File.truncate`."""
        self._file.truncate(length)

    def size(self) -> int:
        """See `File.size`."""
        return self._file.size()

    def lock(self) -> bool:
        """See `File.lock`."""
        return self._file.lock()

    def map(self, length: int) -> npt.NDArray[np.uint8]:
        """See `File.map`."""
        return self._file.map(length)

    def close(self) -> None:
        """See `File.close`."""
        self._file.close()


def open_patiently(disk: Disk, path: str) -> PatientFile:
    """Open a file to read it past unreadable blocks."""
    return PatientFile(disk.open(path))
