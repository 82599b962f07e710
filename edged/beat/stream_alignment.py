"""Stream alignment: how many rows of each stream a beat takes.  No I/O.

A fast stream must not run ahead of a slow one that it is joined with.  Rows of stream `a` that are
further ahead of stream `b` than the join's bound cannot match yet and would only enlarge the
window.  So `a` is taken up to the horizon of `b` (the latest staged time of its slowest active
producer) plus the bound.

The fast producers of `a` must not run ahead of a slow one of `a` either, because the rows that
theirs match are kept for the slow one.  So `a` is also taken only up to its own horizon plus the
bounds of both sides, unless its staging is full: the slow producer's rows may be unread then.

Whole chunks are taken: a chunk is taken if its earliest row lies within the limit.

Progress is guaranteed.  If each of a group of coupled streams has rows and is held back, all of
them advance to the oldest waiting row plus the bound.  A stream that is held back by one without
rows waits until the other sends, ends, or becomes idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edged.data.flow import owner
from edged.job.plan import JobPlan

ONE_CHUNK = 0
"""As `rows_max`: see `decide_take`."""


@dataclass(frozen=True, slots=True)
class StagedChunks:
    """A stream's staged chunks: the end of each (rows), and its earliest time."""

    stop: npt.NDArray[np.int64]
    time_min: npt.NDArray[np.int64]
    horizon_us: int | None
    """See `WatermarkTracker.horizon`; None: the stream holds no other back."""
    full: bool = False
    """Whether the staging is full."""


@dataclass(frozen=True, slots=True)
class Coupling:
    """`stream` may run ahead of `other` by `ahead_us`."""

    stream: str
    other: str
    ahead_us: int


def couplings(plan: JobPlan) -> list[Coupling]:
    """How far each stream may run ahead of each other one, from the joins that read both."""
    tightest: dict[tuple[str, str], int] = {}
    timed = {name for name, stream in plan.streams.items() if stream.table is None}
    for id in plan.order:
        ahead = plan.operators[id].ahead_us()
        links = plan.inputs[id]
        for i, limit in enumerate(ahead):
            for j in range(len(links)):
                if i == j or limit is None:
                    continue
                for a in upstream(plan, links[i]) & timed:
                    for b in upstream(plan, links[j]) & timed - {a}:
                        tightest[a, b] = min(limit, tightest.get((a, b), limit))
    return [Coupling(a, b, limit) for (a, b), limit in tightest.items()]


def upstream(plan: JobPlan, link: str) -> set[str]:
    """The streams and tables whose rows reach a link."""
    name = owner(link)
    if name in plan.streams:
        return {name}
    return set().union(*(upstream(plan, i) for i in plan.inputs[name]))


def decide_take(
    waiting: Mapping[str, StagedChunks],
    couplings: Sequence[Coupling],
    rows_max: int,
    rows_over: int = 0,
    free: Mapping[str, int] | None = None,
) -> tuple[dict[str, int], bool]:
    """Chunks to take per stream, and whether `rows_max` limited them.

    `free` are the `admissible` chunks of each stream, where the caller has them.

    `rows_max` bounds the rows of all streams together.  At least one chunk of each is taken, and
    all chunks if they have at most `rows_over` rows more.  With ONE_CHUNK only the oldest chunk of
    all streams is taken.
    """
    take = {n: admissible(n, waiting, couplings) for n in waiting} if free is None else {**free}
    held = any(waiting[n].stop.size and not count for n, count in take.items())
    for group in _groups(waiting, couplings) if held else ():
        if all(_held_by_others(n, waiting, couplings) for n in group):
            ahead = max((c.ahead_us for c in couplings if c.stream in group), default=0)
            limit = min(int(waiting[n].time_min[0]) for n in group) + ahead
            take |= {n: up_to(waiting[n], limit) for n in group}
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
    """The connected components of the coupled streams."""
    groups = [{name} for name in names]
    for c in couplings:
        ends = [g for g in groups if c.stream in g or c.other in g]
        if len(ends) == 2:
            groups = [g for g in groups if g not in ends] + [ends[0] | ends[1]]
    return groups


def limit_us(
    name: str, waiting: Mapping[str, StagedChunks], couplings: Sequence[Coupling]
) -> int | None:
    """The time up to which a stream's rows may be taken; None: no limit."""
    others, own = _others_limit_us(name, waiting, couplings), waiting[name]
    if own.horizon_us is None or own.full:
        return others
    back = {c.stream: c.ahead_us for c in couplings if c.other == name}
    bounds = (c.ahead_us + back[c.other] for c in couplings if c.stream == name and c.other in back)
    limits = [own.horizon_us + bound for bound in bounds]
    return min(limits if others is None else [*limits, others], default=None)


def admissible(
    name: str, waiting: Mapping[str, StagedChunks], couplings: Sequence[Coupling]
) -> int:
    """Chunks of a stream that wait for no other stream."""
    return up_to(waiting[name], limit_us(name, waiting, couplings))


def _others_limit_us(
    name: str, waiting: Mapping[str, StagedChunks], couplings: Sequence[Coupling]
) -> int | None:
    limits = (
        horizon + c.ahead_us
        for c in couplings
        if c.stream == name and (horizon := waiting[c.other].horizon_us) is not None
    )
    return min(limits, default=None)


def _held_by_others(
    name: str, waiting: Mapping[str, StagedChunks], couplings: Sequence[Coupling]
) -> bool:
    """Whether the stream has rows, and all of them wait for another stream."""
    own = waiting[name]
    return own.stop.size > 0 and not up_to(own, _others_limit_us(name, waiting, couplings))


def up_to(w: StagedChunks, limit_us: int | None) -> int:
    """Number of chunks before the first that begins after the limit."""
    if limit_us is None or not w.stop.size:
        return w.stop.size
    beyond = w.time_min > limit_us
    first = int(beyond.argmax())
    return first if beyond[first] else w.stop.size


def _rows(w: StagedChunks, count: int) -> int:
    return int(w.stop[count - 1]) if count else 0


def _within(w: StagedChunks, count: int, rows: int) -> int:
    if count == 0:
        return 0
    return max(1, min(count, int(np.searchsorted(w.stop[:count], rows, side="right"))))
