"""How much of each stream a beat takes.  Sans-IO.

A fast stream must not outrun a slow one's window: rows of stream `a` that are further ahead of
stream `b` than the join's bound cannot match anything yet, and would only swell the window.  So
`a` is taken up to the horizon of `b` (its slowest active producer's latest staged time) plus the
bound.  Nor must the fast producers of `a` outrun a slow one of `a` itself: what their rows could
match is held for that one, so that they are taken up to the horizon of `a` plus the bounds of both
sides; but not where the staging of `a` is full, because the slow one's rows may lie unread then.
Whole chunks are taken: a chunk whose earliest row lies within the limit goes.

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
    full: bool = False
    """Whether its staging is."""


@dataclass(frozen=True, slots=True)
class Coupling:
    """`stream` may run ahead of `other` by `ahead_us`."""

    stream: str
    other: str
    ahead_us: int


def decide_take(
    waiting: Mapping[str, Waiting],
    couplings: Sequence[Coupling],
    rows_max: int,
    rows_over: int = 0,
) -> tuple[dict[str, int], bool]:
    """Chunks to take per stream, and whether `rows_max` cut them short.

    `rows_max` bounds the rows of all streams together, but a chunk of each is always taken, and
    all where `rows_over` rows more are all; with ONE_CHUNK, the oldest chunk of all and no other.
    """
    take = {name: _up_to(w, limit_us(name, waiting, couplings)) for name, w in waiting.items()}
    for group in _groups(waiting, couplings):
        if all(_held_by_others(n, waiting, couplings) for n in group):
            ahead = max((c.ahead_us for c in couplings if c.stream in group), default=0)
            limit = min(int(waiting[n].time_min[0]) for n in group) + ahead
            take |= {n: _up_to(waiting[n], limit) for n in group}
    if rows_max == ONE_CHUNK:
        wanted = [(int(waiting[n].time_min[0]), n) for n, count in take.items() if count]
        one = {n: int(bool(wanted) and n == min(wanted)[1]) for n in take}
        return one, one != take
    total = sum(_rows(waiting[name], count) for name, count in take.items())
    if total <= rows_max + rows_over:
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
    """The time up to which a stream's rows may be taken; None: nothing holds it back."""
    others, own = _others_limit_us(name, waiting, couplings), waiting[name]
    if own.horizon_us is None or own.full:
        return others
    back = {c.stream: c.ahead_us for c in couplings if c.other == name}
    bounds = (c.ahead_us + back[c.other] for c in couplings if c.stream == name and c.other in back)
    limits = [own.horizon_us + bound for bound in bounds]
    return min(limits if others is None else [*limits, others], default=None)


def _others_limit_us(
    name: str, waiting: Mapping[str, Waiting], couplings: Sequence[Coupling]
) -> int | None:
    limits = (
        horizon + c.ahead_us
        for c in couplings
        if c.stream == name and (horizon := waiting[c.other].horizon_us) is not None
    )
    return min(limits, default=None)


def _held_by_others(
    name: str, waiting: Mapping[str, Waiting], couplings: Sequence[Coupling]
) -> bool:
    """Whether it has rows, all of which wait for another stream."""
    own = waiting[name]
    return own.stop.size > 0 and not _up_to(own, _others_limit_us(name, waiting, couplings))


def _up_to(w: Waiting, limit_us: int | None) -> int:
    """How many chunks come before the first that begins after the limit."""
    beyond = np.flatnonzero(w.time_min > limit_us) if limit_us is not None else w.stop[:0]
    return int(beyond[0]) if beyond.size else int(w.stop.size)


def _rows(w: Waiting, count: int) -> int:
    return int(w.stop[count - 1]) if count else 0


def _within(w: Waiting, count: int, rows: int) -> int:
    if count == 0:
        return 0
    return max(1, min(count, int(np.searchsorted(w.stop[:count], rows, side="right"))))
