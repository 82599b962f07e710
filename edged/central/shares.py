"""How much of the landing each device's pages take, and when that is too much.

One device must not fill the centre's disk for all others: whose landed pages take more than `share`
of the landing's file system is told to wait (`quota`), and keeps its pages until some of them have
been read and deleted (`edged/central/expire.py`).

Counted are the rows of all segments that there are, whichever collector wrote them: at the start,
and again in the background once REFRESH_S have passed, when what this collector has landed since
counts no longer by itself.  So what other collectors land, and what is deleted, is known a minute
late at most; several collectors together may let a device pass its share by what they land in it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edged.central import segments

SHARE = 0.5
REFRESH_S = 60.0

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
        self._sizes: Counter[int] = Counter()
        """By the rows that were counted."""
        self._since: Counter[int] = Counter()
        """By what was landed here since the last count."""
        self._refreshing: threading.Thread | None = None
        self._refresh()

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
        """Wait for what goes on in the background."""
        if self._refreshing is not None:
            self._refreshing.join()

    def _refresh_beside(self) -> None:
        if self._refreshing is None or not self._refreshing.is_alive():
            self._refreshing = threading.Thread(target=self._refresh, name="shares")
            self._refreshing.start()

    def _refresh(self) -> None:
        """Count the rows that are new and forget the segments that are gone."""
        self._refreshed_s = time.monotonic()
        if self._share >= 1:
            return
        with self._lock:
            sizes, before = self._sizes.copy(), self._since.copy()
        names = segments.list_segments(self._landing)
        for name in self._counted.keys() - set(names):
            self._drop(name, sizes)
        for name in names:
            self._count(name, sizes)
        with self._lock:  # what has landed meanwhile may count twice, until the next time
            self._sizes, self._since = +sizes, self._since - before

    def _count(self, name: str, sizes: Counter[int]) -> None:
        start, held = self._counted.get(name, (0, []))
        try:
            if segments.committed(self._landing, name) <= start:
                return
            rows = segments.read_rows(self._landing, name, start)
        except FileNotFoundError:  # deleted meanwhile
            self._drop(name, sizes)
            return
        devices, which = np.unique(rows["device_hash"], return_inverse=True)
        taken = np.zeros(devices.size, np.int64)
        np.add.at(taken, which, rows["length"])
        sizes.update(dict(zip(devices.tolist(), taken.tolist(), strict=True)))
        self._counted[name] = (start + len(rows), [*held, (devices, taken)])

    def _drop(self, name: str, sizes: Counter[int]) -> None:
        for devices, taken in self._counted.pop(name, (0, []))[1]:
            sizes.subtract(dict(zip(devices.tolist(), taken.tolist(), strict=True)))
