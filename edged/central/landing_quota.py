"""How much of the landing each device's pages take, and when that is too much.

One device must not fill the centre's disk for all others: whose landed pages take more than `share`
of the landing's file system is told to wait (`quota`), and keeps its pages until some of them have
been read and deleted (`edged/central/expire.py`).

Counted are the rows of all segments that there are, whichever collector wrote them, in the
background: at the start, and again once REFRESH_S have passed, when what this collector has landed
since counts no longer by itself.  So what other collectors land, and what is deleted, is known a
minute late at most; several collectors together may let a device pass its share by what they land
in it.

    LANDING/shares      what was counted, an array of SIZE (numpy's format)

is written after each count and at the end.  A start takes it for true until it has counted, which
takes a second for some 10 000 segments and more where the disk is cold; only where it is not there,
or no such array, the first count is waited for.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edged.central import segments
from edged.central.tables import replace_file

SHARE = 0.5
REFRESH_S = 60.0
SIZE = np.dtype([("device", "<u8"), ("bytes", "<i8")])
"""A device's hash, and what its pages take."""
_LOG = logging.getLogger(__name__)

_Held = list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]]
"""Devices' hashes and bytes, each for some rows of a segment."""


class Shares:
    """Those of one landing.  `over` and `landed` are for one thread, `largest` for any.

    `share` is a part of the file system, 0 to 1; with 1 nothing is bounded or counted.
    """

    def __init__(self, landing: str | Path, share: float) -> None:
        self._landing, self._share = Path(landing), share
        self._lock = threading.Lock()
        self._counted: dict[str, tuple[int, _Held]] = {}
        self._counting: Counter[int] = Counter()
        """By the rows in `_counted`; like that, the counting thread's."""
        self._sizes: Counter[int] = Counter()
        """The same, as the last whole count had it."""
        self._since: Counter[int] = Counter()
        """By what was landed here since, or what was told of an earlier count."""
        self._written: bytes | None = None
        self._refreshed_s = time.monotonic()
        self._refreshing: threading.Thread | None = None
        self._closing = threading.Event()
        if share >= 1:
            return
        if (told := self._read()) is None:
            self._refresh()
        else:
            self._since.update(told)
            self._refresh_beside()

    @property
    def bytes_max(self) -> int:
        """What one device may take."""
        disk = os.statvfs(self._landing)
        return int(self._share * disk.f_blocks * disk.f_frsize)

    def over(self, device: int, size: int) -> bool:
        """Whether `size` bytes more of the device (a hash) would be too much."""
        if self._share >= 1:
            return False
        if time.monotonic() - self._refreshed_s >= REFRESH_S:
            self._refresh_beside()
        return self.held(device) + size > self.bytes_max

    def held(self, device: int) -> int:
        """Bytes of the device's pages, as far as is known."""
        with self._lock:
            return self._sizes[device] + self._since[device]

    def landed(self, sizes: Mapping[int, int]) -> None:
        """Pages of these devices have landed."""
        with self._lock:
            self._since.update(sizes)

    def largest(self) -> float:
        """The largest part of its share that a device takes."""
        with self._lock:
            most = max((self._sizes + self._since).values(), default=0)
        return most / max(1, self.bytes_max)

    def close(self) -> None:
        """End a count that goes on in the background; what is known is written."""
        self._closing.set()
        if self._refreshing is not None:
            self._refreshing.join()
        if self._share < 1:
            self._write()

    def _refresh_beside(self) -> None:
        if self._refreshing is None or not self._refreshing.is_alive():
            self._refreshing = threading.Thread(target=self._refresh, name="shares")
            self._refreshing.start()

    def _refresh(self) -> None:
        """Count, and write what was counted; a landing that cannot be read is counted next time."""
        self._refreshed_s = time.monotonic()
        try:
            if self._count_all():
                self._write()
        except OSError as problem:
            _LOG.warning("what each device's pages take was not counted: %s", problem)

    def _count_all(self) -> bool:
        """Count the rows that are new and forget the segments that are gone; False where the end
        came before that."""
        with self._lock:
            before = self._since.copy()
        names = segments.list_segments(self._landing)
        for name in self._counted.keys() - set(names):
            self._drop(name)
        for name in names:
            if self._closing.is_set():
                return False
            self._count(name)
        with self._lock:  # what has landed meanwhile may count twice, until the next time
            self._sizes, self._since = +self._counting, self._since - before
        return True

    def _count(self, name: str) -> None:
        start, held = self._counted.get(name, (0, []))
        try:
            if segments.committed(self._landing, name) <= start:
                return
            rows = segments.read_rows(self._landing, name, start)
        except FileNotFoundError:  # deleted meanwhile
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
        """What was counted last, by whichever collector; None where that is not known."""
        try:
            sizes = np.load(self._landing / "shares", allow_pickle=False)
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
        if content.getvalue() == self._written:
            return
        try:
            replace_file(self._landing / "shares", content.getvalue())
            self._written = content.getvalue()
        except OSError as problem:
            _LOG.warning("what each device's pages take was not written: %s", problem)
