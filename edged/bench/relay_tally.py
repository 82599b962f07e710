"""The tally of a sink: counts in a file that other processes map, read without a question.

Every packet counts once: its number must be above the last one of its sender.  With as many packets
as were sent, and their sum, that proves that each came once and in order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

SENDERS_MAX = 64
_ROWS, _DISORDER, _SUM, _SLEEP_US, _GC_NS, _GC_RUNS = range(6)
_LAST = 8
_BINS = _LAST + SENDERS_MAX
_PARTS = 16
"""Bins for each power of two of microseconds: 6 % wide at most."""
_BIN_COUNT = _PARTS * 32
_CELLS = _BINS + _BIN_COUNT

Int64s = npt.NDArray[np.int64]


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def tally_packets(cells: Any, seq: Any, sender: Any, ts: Any, now_us: int) -> None:
    """Count packets, those out of order, the sum of their numbers, and their latencies."""
    rows = seq.size
    total, disorder = 0, 0
    for i in range(rows):
        number = seq[i]
        last = _LAST + (sender[i] & (SENDERS_MAX - 1))
        disorder += number <= cells[last]
        cells[last] = number
        total += number
    start = 0
    while start < rows:
        stop = start + 1
        while stop < rows and ts[stop] == ts[start]:
            stop += 1
        late = max(0, now_us - ts[start])
        power = 0
        while late >> power >= 2 * _PARTS:
            power += 1
        index = (late >> power) + power * _PARTS
        cells[_BINS + min(index, _BIN_COUNT - 1)] += stop - start
        start = stop
    cells[_DISORDER] += disorder
    cells[_SUM] += total
    cells[_ROWS] += rows


class Tally:
    """A mapped tally; `create` makes its file."""

    def __init__(self, path: Path) -> None:
        self.cells: Int64s = np.memmap(path, np.int64, "r+", shape=(_CELLS,))

    @classmethod
    def create(cls, path: Path) -> Tally:
        """A new one with zeros."""
        path.write_bytes(bytes(8 * _CELLS))
        return cls(path)

    @property
    def rows(self) -> int:
        """Packets so far."""
        return int(self.cells[_ROWS])

    @property
    def gc_ns(self) -> int:
        """Time in the garbage collector of Python so far."""
        return int(self.cells[_GC_NS])

    @property
    def sleep_us(self) -> int:
        """How long the sink sleeps for each packet."""
        return int(self.cells[_SLEEP_US])

    @sleep_us.setter
    def sleep_us(self, value: int) -> None:
        """Set it, for the packets from now on."""
        self.cells[_SLEEP_US] = value

    def collected(self, nanoseconds: int) -> None:
        """Count a run of the garbage collector."""
        self.cells[_GC_NS] += nanoseconds
        self.cells[_GC_RUNS] += 1

    def count(self, rows: int) -> None:
        """Count packets without numbers."""
        self.cells[_ROWS] += rows

    def latencies(self) -> Int64s:
        """Packets by latency so far, a copy."""
        return np.array(self.cells[_BINS:])

    def once_in_order(self, sent: int) -> bool:
        """Whether packets 1..sent of one sender came once each, in order."""
        whole = (sent * (sent + 1) // 2 + (1 << 63)) % (1 << 64) - (1 << 63)
        found = self.rows, int(self.cells[_DISORDER]), int(self.cells[_SUM])
        return found == (sent, 0, whole)

    @property
    def disorder(self) -> int:
        """Packets whose number was not above the last one of their sender."""
        return int(self.cells[_DISORDER])

    @property
    def sum(self) -> int:
        """Sum of the numbers."""
        return int(self.cells[_SUM])


def share_above(bins: Int64s, ms: float) -> float:
    """The share of the packets whose latency is above so many ms, to a bin."""
    ends = np.array([_end_ms(i) for i in range(bins.size)])
    return round(float(bins[ends > ms].sum() / max(1, bins.sum())), 6)


def percentile_ms(bins: Int64s, share: float) -> float:
    """The latency below which this share of the packets lies: upper end of its bin."""
    total = int(bins.sum())
    if not total:
        return float("nan")
    return round(_end_ms(int(np.searchsorted(np.cumsum(bins), share * total))), 3)


def _end_ms(index: int) -> float:
    """The upper end of a bin."""
    power = max(0, index // _PARTS - 1)
    return float((index - power * _PARTS + 1) * 2.0**power / 1000)
