"""Frames between the daemon and a child, and the memory that they share.

A frame is a length (uint32, little-endian) and a JSON object.  Frames to the child:

    {"code": {…}}                              once, the first: `instances.Code`
    {"load": [[partition, offset, size], …]}   states in the inbox
    {"run": number, "size": bytes, "bounds": [[partition, start, stop], …], "save": bool,
     "quiet": bool}                            rows in the inbox; `quiet`: outputs are not wanted

and from it:

    {"ready": {"enforced": [text, …]}} or {"refused": text}
    {"done": number, "outputs": [[name, offset, size], …], "states": [[partition, offset, size], …],
     "failed": [[partition, reason], …], "unsaved": reason, "us": microseconds}

An area is a memory file.  The daemon makes it, and either side may enlarge it; it never shrinks, so
that no side reads past its end.  The first OUTBOX_HEAD_BYTES of the outbox are a head: the number
of the partition in work (int64), or IDLE or FINISHING.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

OUTBOX_HEAD_BYTES = 64
IDLE, FINISHING = -1, -2
"""No batch is in work; outputs and states are written."""
FRAME_BYTES_MAX = 64 << 20
AREA_BYTES = 1 << 16
"""First size of an area."""
_LENGTH = struct.Struct("<I")
_WORD = struct.Struct("<q")
_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK = 1033, 1, 2


class Area:
    """Memory that two processes share."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._map = mmap.mmap(file, os.fstat(file).st_size)

    @classmethod
    def new(cls, name: str) -> Area:
        """A new area that cannot shrink.  Raises OSError."""
        file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, AREA_BYTES)
            fcntl.fcntl(file, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_SEAL)
            return cls(file)
        except OSError:
            os.close(file)
            raise

    def of(self, size: int) -> mmap.mmap:
        """The memory, at least `size` bytes of it; a former one is then no longer this area's, but
        shows the same bytes.  Raises ValueError where the file is smaller."""
        if size > len(self._map):
            self._map = mmap.mmap(self.file, os.fstat(self.file).st_size)
            if size > len(self._map):
                raise ValueError(f"{size} bytes lie beyond the end of the shared memory")
        return self._map

    def grown(self, size: int) -> mmap.mmap:
        """As `of`; the file grows where it must.  Raises OSError."""
        if size > len(self._map) and size > os.fstat(self.file).st_size:
            os.ftruncate(self.file, 1 << (size - 1).bit_length())
        return self.of(size)

    def mark(self, partition: int) -> None:
        """Note the partition in work."""
        _WORD.pack_into(self._map, 0, partition)

    def marked(self) -> int:
        """The partition in work."""
        (found,) = _WORD.unpack_from(self._map, 0)
        return int(found)

    def close(self) -> None:
        """Close the file.  The memory goes with the last view of it."""
        os.close(self.file)


def send(sock: socket.socket, frame: Any) -> None:
    """Send a frame.  Raises OSError."""
    data = json.dumps(frame, separators=(",", ":")).encode()
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive(sock: socket.socket, wait: Callable[[], None] = lambda: None) -> Any:
    """The next frame; `wait` is called before each read, and raises TimeoutError to end it.

    Raises EOFError where the other side is gone, ValueError for garbage.
    """
    (size,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size, wait))
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes")
    found = json.loads(_exactly(sock, size, wait))
    if not isinstance(found, dict):
        raise ValueError("a frame that is no object")
    return found


def _exactly(sock: socket.socket, size: int, wait: Callable[[], None]) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        wait()
        data = sock.recv(size - len(parts))
        if not data:
            raise EOFError("the process has ended")
        parts += data
    return bytes(parts)
