"""Links, flows and the beat's context: what operators, joins and sinks exchange.

A link between operators carries, each beat, a `Flow`: a batch and the watermark that holds after
it.  Statically it is a `Link`: schema, event-time column, and the largest disorder of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.schema import Schema
from edged.data.workers import Workers

WATERMARK_MIN_US = -(2**63)
"""Nothing is known yet."""
WATERMARK_MAX_US = 2**63 - 1
"""End of stream: nothing more will come."""
State = dict[str, npt.NDArray[Any]]
"""An operator's state as named arrays; scalars are arrays of one element."""


@dataclass(frozen=True, slots=True)
class Link:
    """What flows along an edge of the graph, known before anything runs."""

    schema: Schema
    time: str
    """Name of the event-time column (type timestamp, not nullable)."""
    disorder_us: int = 0
    """Rows that are not late may carry times this far below the largest time seen before them."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One beat's rows on a link, and the watermark after them: later rows that are not late have
    times >= `watermark_us`."""

    batch: Batch
    watermark_us: int


@dataclass(frozen=True, slots=True)
class BeatContext:
    """What the loop tells operators and sinks.  Number and clock are in the beat's record, so that
    replay sees the same."""

    number: int
    wall_us: int
    """The wall clock at the beat's start, as logged: a label, never an input to a decision."""
    workers: Workers
    await_room: Callable[[OSError], None] | None = None
    """Called where a disk is full, with what it said: returns when another try is worth it, raises
    where nobody waits any more.  None: nobody ever does."""
