"""How much of each stream a beat takes.  Sans-IO.

A fast stream must not outrun a slow one's window: rows of stream `a` that are further ahead of
stream `b` than the join's bound cannot match anything yet, and would only swell the window.  So
`a` is taken up to the horizon of `b` (its slowest active producer's latest staged time) plus the
bound.  Whole chunks are taken: a chunk whose earliest row lies within the limit goes.

Progress is guaranteed: where every one of the streams that are coupled has rows and is held back
(fast and slow producers crosswise, further apart than the bound), all go on to the oldest waiting
row plus the bound.  A stream held back by one that has nothing waiting simply waits: the other will
send, end, or fall silent and stop counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ONE_CHUNK = 0
"""As `rows_max`: see `decide_take`."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stream's staged chunks: where each ends (rows), and its earliest time."""

    stop: npt.NDArray[np.int64]
    time_min: npt.NDArray[np.int64]
    horizon_us: int | None
    """See `StreamTime.horizon`; None: the stream holds nobody back."""


@dataclass(frozen=True, slots=True)
class Coupling:
    """`stream` may run ahead of `other` by `ahead_us`."""

    stream: str
    other: str
    ahead_us: int


def decide_take(
    waiting: Mapping[str, Waiting], couplings: Sequence[Coupling], rows_max: int
) -> tuple[dict[str, int], bool]:
    """Chunks to take per stream, and whether `rows_max` cut them short.

    `rows_max` bounds the rows of all streams together, but a chunk of each is always taken; with
    ONE_CHUNK, the oldest chunk of all and no other.
    """
    take = {name: _allowed(name, w, waiting, couplings) for name, w in waiting.items()}
    for group in _groups(waiting, couplings):
        if all(waiting[n].stop.size and not take[n] for n in group):
            ahead = max((c.ahead_us for c in couplings if c.stream in group), default=0)
            limit = min(int(waiting[n].time_min[0]) for n in group) + ahead
            take |= {n: _up_to(waiting[n], int(waiting[n].stop.size), limit) for n in group}
    if rows_max == ONE_CHUNK:
        wanted = [(int(waiting[n].time_min[0]), n) for n, count in take.items() if count]
        one = {n: int(bool(wanted) and n == min(wanted)[1]) for n in take}
        return one, one != take
    total = sum(_rows(waiting[name], count) for name, count in take.items())
    if total <= rows_max:
        return take, False
    cut = {
        name: _within(waiting[name], count, rows_max * _rows(waiting[name], count) // total)
        for name, count in take.items()
    }
    return cut, cut != take


def _groups(names: Iterable[str], couplings: Sequence[Coupling]) -> list[set[str]]:
    """The streams, those together that are coupled directly or through others."""
    groups = [{name} for name in names]
    for c in couplings:
        ends = [g for g in groups if c.stream in g or c.other in g]
        if len(ends) == 2:
            groups = [g for g in groups if g not in ends] + [ends[0] | ends[1]]
    return groups


def limit_us(
    name: str, waiting: Mapping[str, Waiting], couplings: Sequence[Coupling]
) -> int | None:
    """The time up to which a stream's rows may be taken; None: no other one holds it back."""
    limits = [
        horizon + c.ahead_us
        for c in couplings
        if c.stream == name and (horizon := waiting[c.other].horizon_us) is not None
    ]
    return min(limits, default=None)


def _allowed(
    name: str, own: Waiting, waiting: Mapping[str, Waiting], couplings: Sequence[Coupling]
) -> int:
    count = int(own.stop.size)
    limit = limit_us(name, waiting, couplings)
    return count if limit is None or count == 0 else _up_to(own, count, limit)


def _up_to(w: Waiting, count: int, limit_us: int) -> int:
    """How many of the first `count` chunks come before the first that begins after the limit."""
    beyond = np.flatnonzero(w.time_min[:count] > limit_us)
    return int(beyond[0]) if beyond.size else count


def _rows(w: Waiting, count: int) -> int:
    return int(w.stop[count - 1]) if count else 0


def _within(w: Waiting, count: int, rows: int) -> int:
    if count == 0:
        return 0
    return max(1, min(count, int(np.searchsorted(w.stop[:count], rows, side="right"))))
