"""Reads pages from their locations on disk, and detects pages that are no longer there.

A location may be stale: the page has moved, or its file is gone or holds something else.  Only the
identifying fields of the header (`edged/pages/format.py`) are unpacked.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

from edged.pages.header import CHECKSUM_AT, HEADER_BYTES, MAGIC, checksum
from edged.uplink.send_queue import PageLocation

_HEADER = struct.Struct("<4s8xI12xI8xQ8xI100x64s")
_FILES_MAX = 8


class WrongPage(Exception):
    """`place` does not hold the expected page."""

    def __init__(self, place: PageLocation, detail: str) -> None:
        super().__init__(detail)
        self.place, self.detail = place, detail


class PageReader:
    """Reads batches of pages into one reused buffer, with at most `_FILES_MAX` files open per
    batch."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def read(self, places: Sequence[PageLocation]) -> memoryview:
        """The pages of `places` end to end, valid until the next call.

        Stops before the first page that is not at its location, and raises WrongPage if that is
        the very first.  A page read alone also has its checksum verified.
        """
        size = sum(p.length for p in places)
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)
        files: dict[str, int] = {}
        at = 0
        try:
            for place in places:
                target = view[at : at + place.length]
                problem = _read(files, place, target) or _mismatch(place, target)
                if not problem and len(places) == 1:
                    problem = _damage(target)
                if problem and at == 0:
                    raise WrongPage(place, f"{_name(place)} in {place.file}: {problem}")
                if problem:
                    break
                at += place.length
        finally:
            for fd in files.values():
                os.close(fd)
        return view[:at]


def _name(place: PageLocation) -> str:
    return f"{place.stream} partition {place.partition} seq {place.seq}"


def _read(files: dict[str, int], place: PageLocation, target: memoryview) -> str:
    """Fill `target`; returns the problem, empty without one."""
    try:
        fd = files.get(place.file)
        if fd is None:
            if len(files) >= _FILES_MAX:
                os.close(files.pop(next(iter(files))))
            fd = files[place.file] = os.open(place.file, os.O_RDONLY | os.O_CLOEXEC)
        at = 0
        while at < len(target):
            count = os.preadv(fd, [target[at:]], place.offset + at)
            if not count:
                return f"the file ends before byte {place.offset + len(target)}"
            at += count
    except OSError as problem:
        return os.strerror(problem.errno or 0)
    return ""


def _mismatch(place: PageLocation, page: memoryview) -> str:
    """The problem if the bytes are not this page, else an empty text."""
    if len(page) < HEADER_BYTES:
        return "shorter than a header"
    magic, stored_bytes, _, seq, partition, stream = _HEADER.unpack_from(page)
    named = (MAGIC, place.length, place.seq, place.partition, place.stream.encode())
    if (magic, stored_bytes, seq, partition, stream.rstrip(b"\0")) != named:
        return f"another page or none lies at byte {place.offset}"
    return ""


def _damage(page: memoryview) -> str:
    if checksum(page) != int.from_bytes(page[CHECKSUM_AT : CHECKSUM_AT + 4], "little"):
        return "its checksum is wrong on the device's own disk"
    return ""
