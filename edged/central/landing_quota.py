"""The quota of a landing: counts the bytes of each device's pages and limits them.

One device must not fill the centre's disk for all others.  If its landed pages take more than
`share` of the landing's file system it gets the answer `quota`, and keeps its pages until some have
been read and deleted (`edged/central/expire.py`).

All rows of all segments are counted, of every collector, in the background: at the start, and again
after REFRESH_S; in between, this collector adds what it lands.  Pages of other collectors, and
deletions, are therefore known at most a minute late.

Bound.  With one collector no delivery lands that would take its device beyond the share, also not
together with other deliveries of its commit.  Several collectors together may exceed it by what
they land in a minute; and after a crash one may, by what had landed since the last count, until its
own first count is complete.

    LANDING/shares      the result of the last count: an array of SIZE (numpy's format), its CRC-32

is written after each count and at the end.  A start uses it until its own count is complete, which
takes a second for some 10 000 segments, more with a cold disk; only without a valid file the start
waits for the first count.
"""

from __future__ import annotations

import io
import logging
import math
import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edged.central import segments
from edged.central.tables import replace_file

SHARE = 0.5
REFRESH_S = 60.0
_DISK_S = 1.0
SIZE = np.dtype([("device", "<u8"), ("bytes", "<i8")])
"""A device's hash and the bytes of its pages."""
_LOG = logging.getLogger(__name__)

_Held = list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]
"""Devices' hashes and bytes, each for some rows of a segment."""


class LandingQuota:
    """The quota of one landing.  Only `held` and `largest` are safe on any thread.

    `share` is a part of the file system, 0 to 1; with 1 nothing is limited or counted.
    """

    def __init__(self, landing: str | Path, share: float) -> None:
        self._landing, self._share = Path(landing), share
        self._lock = threading.Lock()
        self._bytes_max, self._bytes_max_s = 0, -math.inf
        self._counted: dict[str, tuple[int, _Held]] = {}
        self._counting: Counter[int] = Counter()
        """Sums over the rows in `_counted`; both belong to the counting thread."""
        self._sizes: Counter[int] = Counter()
        """The sums of the last complete count."""
        self._since: Counter[int] = Counter()
        """Bytes landed here since then, or initially the result of an earlier count."""
        self._written: bytes | None = None
        self._refreshed_s = time.monotonic()
        self._refreshing: threading.Thread | None = None
        self._closing = threading.Event()
        if share >= 1:
            return
        if (known := self._read()) is None:
            self._refresh()
        else:
            self._since.update(known)
            self._refresh_in_background()

    @property
    def bytes_max(self) -> int:
        """The limit of one device in bytes; a file system that grows counts a second later."""
        now_s = time.monotonic()
        if now_s - self._bytes_max_s > _DISK_S:
            disk = os.statvfs(self._landing)
            self._bytes_max = int(self._share * disk.f_blocks * disk.f_frsize)
            self._bytes_max_s = now_s
        return self._bytes_max

    def would_exceed(self, device: int, size: int) -> bool:
        """Whether `size` further bytes of the device (a hash) would exceed the quota."""
        if self._share >= 1:
            return False
        if time.monotonic() - self._refreshed_s >= REFRESH_S:
            self._refresh_in_background()
        return self.held(device) + size > self.bytes_max

    def held(self, device: int) -> int:
        """Bytes of the device's pages, as far as known."""
        with self._lock:
            return self._sizes[device] + self._since[device]

    def add(self, sizes: Mapping[int, int]) -> None:
        """Add the bytes of pages that have landed, by device."""
        with self._lock:
            self._since.update(sizes)

    def largest(self) -> float:
        """The largest part of its quota that a device uses."""
        with self._lock:
            most = max((self._sizes + self._since).values(), default=0)
        return most / max(1, self.bytes_max)

    def close(self) -> None:
        """Stop a count in the background, and write what is known."""
        self._closing.set()
        if self._refreshing is not None:
            self._refreshing.join()
        if self._share < 1:
            self._write()

    def _refresh_in_background(self) -> None:
        if self._refreshing is None or not self._refreshing.is_alive():
            self._refreshing = threading.Thread(target=self._refresh, name="shares")
            self._refreshing.start()

    def _refresh(self) -> None:
        """Count, and write the result; an unreadable landing is counted the next time."""
        self._refreshed_s = time.monotonic()
        try:
            if self._count_all():
                self._write()
        except OSError as problem:
            _LOG.warning("the quota count failed: %s", problem)

    def _count_all(self) -> bool:
        """Count new rows and drop deleted segments; False if `close` interrupted it."""
        with self._lock:
            before = self._since.copy()
        names = segments.list_segments(self._landing)
        for name in self._counted.keys() - set(names):
            self._drop(name)
        for name in names:
            if self._closing.is_set():
                return False
            self._count(name)
        with self._lock:  # pages landed meanwhile may count twice until the next count
            self._sizes, self._since = +self._counting, self._since - before
        return True

    def _count(self, name: str) -> None:
        start, held = self._counted.get(name, (0, []))
        try:
            if segments.committed(self._landing, name) <= start:
                return
            rows = segments.read_rows(self._landing, name, start)
        except FileNotFoundError:  # deleted in the meantime
            self._drop(name)
            return
        devices, which = np.unique(rows["device_hash"], return_inverse=True)
        taken = np.zeros(devices.size, np.int64)
        np.add.at(taken, which, rows["length"])
        self._counting.update(dict(zip(devices.tolist(), taken.tolist(), strict=True)))
        self._counted[name] = (start + len(rows), [*held, (devices, taken)])

    def _drop(self, name: str) -> None:
        for devices, taken in self._counted.pop(name, (0, []))[1]:
            self._counting.subtract(dict(zip(devices.tolist(), taken.tolist(), strict=True)))

    def _read(self) -> dict[int, int] | None:
        """The last count of any collector; None without a valid file."""
        try:
            data = (self._landing / "shares").read_bytes()
            if zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
                return None
            sizes = np.load(io.BytesIO(data[:-4]), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        if not isinstance(sizes, np.ndarray) or sizes.dtype != SIZE or sizes.ndim != 1:
            return None
        return dict(zip(sizes["device"].tolist(), sizes["bytes"].tolist(), strict=True))

    def _write(self) -> None:
        with self._lock:
            known = self._sizes + self._since
        content = io.BytesIO()
        np.save(content, np.array(sorted(known.items()), SIZE))
        body = content.getvalue()
        if body == self._written:
            return
        try:
            crc = zlib.crc32(body).to_bytes(4, "little")
            replace_file(self._landing / "shares", body + crc)
            self._written = body
        except OSError as problem:
            _LOG.warning("the quota count was not written: %s", problem)
