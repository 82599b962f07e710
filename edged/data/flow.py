"""Links, flows and the beat's context: the types that operators, joins and sinks exchange.

A link between operators carries, each beat, a `Flow`: a batch and the watermark that holds after
it.  Statically it is a `Link`: schema, event-time column, and the largest disorder of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.origins import Origins
from edged.data.schema import Schema
from edged.data.table_terms import TableTerms
from edged.data.workers import Workers

WATERMARK_MIN_US = -(2**63)
"""No time is known yet."""
WATERMARK_MAX_US = 2**63 - 1
"""End of stream."""
State = dict[str, npt.NDArray[Any]]
"""An operator's state as named arrays; scalars are arrays of one element."""


def owner(link: str) -> str:
    """The part that a link comes from: `readings` of `readings.late`, `check` of `check.alarms`."""
    return link.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Link:
    """The static type of an edge of the job's graph."""

    schema: Schema
    time: str
    """Name of the event-time column (type timestamp, not nullable); empty for a table."""
    disorder_us: int = 0
    """Largest distance of an on-time row's time below the largest earlier time."""
    weight: str = ""
    """Name of the weight column (type int32, not nullable); empty: each row has weight 1.

    A row of weight n stands for n equal rows, and one of weight -n takes n of them back.  The
    column is one of the schema's, so whatever moves rows moves their weights.
    """
    table: TableTerms | None = None
    """The terms of a table; None: the rows are a stream."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One beat's rows on a link, and the watermark after them: later rows that are not late have
    times >= `watermark_us`."""

    batch: Batch
    watermark_us: int
    populated: bool = True
    """Whether a table's first rows are complete, these included; a stream's always are."""
    origins: Origins | None = None
    """The messages that the rows come from, in a hop without a log (durability `through`)."""


@dataclass(frozen=True, slots=True)
class BeatContext:
    """The beat as operators and sinks see it.  Number and clock are in the beat's record, so a
    replay sees the same values."""

    number: int
    wall_us: int
    """Wall clock at the beat's start, as logged.  A label only: no decision depends on it."""
    workers: Workers
    await_room: Callable[[OSError], None] | None = None
    """Called with the error of a full disk.  Returns when a retry is worthwhile, raises when the
    wait is over.  None: a full disk is an error."""
