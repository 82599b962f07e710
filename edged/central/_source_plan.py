"""Planning of a read: positions in a landing, what is new after them, and its split into tasks.

A position is `{segment: rows of its index}`; a micro-batch is the range between two positions.  All
functions here depend only on landing files *below* the given positions, which never change:
planning again, in another process or after a restart, gives the same tasks.

Pages of other streams lie between those of the requested stream and cost one index row each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edged.central import segments
from edged.errors import CentralError

Position = dict[str, int]
Slice = tuple[str, int, int]
"""(segment, first row, row after the last)."""

TASK_BYTES_MIN = 4 << 20
"""Input is split more finely than requested, down to this size, so that small batches use more
cores."""
TASKS_PER_BATCH = 8


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Upper bounds of one micro-batch's input; None: unbounded.  At least one page is always
    admitted."""

    bytes: int | None = None
    pages: int | None = None
    rows: int | None = None
    rows_min: int = 0
    """Wait until this many rows are available."""


def canonical(position: Mapping[str, int]) -> Position:
    """The canonical form: sorted names, plain integers, no segment with zero rows."""
    return {name: int(position[name]) for name in sorted(position) if position[name]}


def advance(
    landing: str,
    stream_hash: int,
    start: Mapping[str, int],
    end: Mapping[str, int],
    limits: BatchLimits,
) -> Position:
    """The furthest position from `start` towards `end` within `limits`.

    `stream_hash` selects the stream.  Pages are taken in landing order over all segments, so that
    no collector's segments starve.  Positions never go back.
    """
    target = {name: max(end.get(name, 0), start.get(name, 0)) for name in {*start, *end}}
    fresh = [
        _NewRows.read(landing, name, start.get(name, 0), target[name]) for name in sorted(target)
    ]
    rows = _NewRows.merged([f for f in fresh if len(f.length)])
    counted = rows.stream == np.uint64(stream_hash)
    if limits.rows_min and int(rows.tuples[counted].sum()) < limits.rows_min:
        return canonical(start)
    taken = _within(counted, rows, limits)
    if taken == len(counted):
        return canonical(target)
    reached = dict(start)
    for name, row in zip(rows.name[:taken].tolist(), rows.row[:taken].tolist(), strict=True):
        reached[name] = max(reached.get(name, 0), row + 1)
    return canonical(reached)


def drop_retired(landing: str, position: Mapping[str, int]) -> Position:
    """`position` without segments that retention has deleted.

    A segment counts as deleted only if a later one of the same collector still exists: an
    unmounted landing changes nothing.
    """
    there = set(segments.list_segments(landing))
    latest: dict[str, int] = {}
    for name in there:
        instance, number = segments.parse_name(name)
        latest[instance] = max(number, latest.get(instance, -1))
    kept = {}
    for name, rows in position.items():
        instance, number = segments.parse_name(name)
        if name in there or number > latest.get(instance, -1):
            kept[name] = rows
    return canonical(kept)


def tasks(
    landing: str,
    stream_hash: int,
    start: Mapping[str, int],
    end: Mapping[str, int],
    task_bytes: int,
) -> list[tuple[Slice, ...]]:
    """The range between the positions, as tasks of about `task_bytes` of the stream's pages."""
    found: list[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for name in sorted(end):
        first = int(start.get(name, 0))
        if int(end[name]) > first:
            rows = _rows(landing, name, first, int(end[name]))
            mine = np.flatnonzero(rows["stream_hash"] == np.uint64(stream_hash))
            if len(mine):
                found.append((name, mine + first, rows["length"][mine].astype(np.int64)))
    total = sum(int(lengths.sum()) for _, _, lengths in found)
    size = min(task_bytes, max(TASK_BYTES_MIN, -(-total // TASKS_PER_BATCH)))
    plan: list[tuple[Slice, ...]] = []
    for slices in _packed(found, size):
        plan.append(tuple(slices))
    return plan


def _packed(
    found: list[tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64]]], size: int
) -> Iterator[list[Slice]]:
    """Cut the pages, laid end to end, every `size` bytes."""
    task: list[Slice] = []
    before, current = 0, 0
    for name, rows, lengths in found:
        number = (before + np.cumsum(lengths) - lengths) // size
        before += int(lengths.sum())
        cuts = np.flatnonzero(np.diff(number)) + 1
        for part in np.split(np.arange(len(rows)), cuts):
            if int(number[part[0]]) != current and task:
                yield task
                task = []
            current = int(number[part[0]])
            task.append((name, int(rows[part[0]]), int(rows[part[-1]]) + 1))
    if task:
        yield task


def _rows(landing: str, name: str, start: int, stop: int) -> segments.Rows:
    try:
        rows = segments.read_rows(landing, name, start, stop)
    except FileNotFoundError as problem:
        raise CentralError(
            f"{problem.filename}: a segment that is still to be read is gone; bring it back, or "
            "start with a new checkpoint to go on without it"
        ) from problem
    if len(rows) < stop - start:
        raise CentralError(
            f"{landing}: segment {name} has {start + len(rows)} pages, {stop} were there before; "
            "this landing is older than the checkpoint: restore both from the same moment"
        )
    return rows


@dataclass(frozen=True, slots=True)
class _NewRows:
    """Index rows beyond a position, as columns."""

    name: npt.NDArray[np.object_]
    row: npt.NDArray[np.int64]
    landed: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    tuples: npt.NDArray[np.int64]
    stream: npt.NDArray[np.uint64]

    @classmethod
    def read(cls, landing: str, name: str, start: int, stop: int) -> _NewRows:
        empty = np.zeros(0, segments.ROW)
        rows = _rows(landing, name, start, stop) if stop > start else empty
        landed = rows["landed_at_us"]
        return cls(
            np.full(len(rows), name, object),
            np.arange(start, start + len(rows)),
            # A collector's clock may step back; its pages keep their order.
            np.maximum.accumulate(landed) if len(landed) else landed,
            rows["length"].astype(np.int64),
            rows["tuples"].astype(np.int64),
            rows["stream_hash"],
        )

    @classmethod
    def merged(cls, parts: list[_NewRows]) -> _NewRows:
        if not parts:
            parts = [cls.read("", "", 0, 0)]
        landed = np.concatenate([p.landed for p in parts])
        order = np.argsort(landed, kind="stable")
        return cls(
            np.concatenate([p.name for p in parts])[order],
            np.concatenate([p.row for p in parts])[order],
            landed[order],
            np.concatenate([p.length for p in parts])[order],
            np.concatenate([p.tuples for p in parts])[order],
            np.concatenate([p.stream for p in parts])[order],
        )


def _within(counted: npt.NDArray[np.bool_], rows: _NewRows, limits: BatchLimits) -> int:
    """The number of leading `rows` within the limits."""
    over = np.zeros(len(counted), np.bool_)
    for limit, amount in (
        (limits.bytes, rows.length),
        (limits.pages, np.ones(len(counted), np.int64)),
        (limits.rows, rows.tuples),
    ):
        if limit is not None:
            over |= np.cumsum(np.where(counted, amount, 0)) > limit
    first_page = np.flatnonzero(counted)[:1]
    if len(first_page):
        over[: first_page[0] + 1] = False
    beyond = np.flatnonzero(over)
    return int(beyond[0]) if len(beyond) else len(counted)
