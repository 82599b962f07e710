"""Saved states whose words name kept rows, dealt out by key to other instances.

Words are numbers of rows plus one, 0 for none.  The rows of all old states get one numbering; each
new state has those that its keys' words reach, and its words name these.  They are by time, but
rows of one old state keep their order: a late row counts from the latest time before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.concatenate import concatenate
from edged.data.flow import State
from edged.data.gather import take
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.operators._time_order import rows_from_state

Ints = npt.NDArray[np.int64]
KEPT = "kept"
"""Name of the kept rows in a saved state."""


class JoinedRows:
    """The rows that several states have kept under a name, and where those of each begin."""

    def __init__(
        self, schema: Schema, time: str, name: str, states: Sequence[State],
        counts: Sequence[int], due: Ints | None = None,
    ) -> None:  # fmt: skip
        """`due`: by what rows come in order, ascending in each state; else by time."""
        parts = [
            rows_from_state(state, name, schema, rows)
            for state, rows in zip(states, counts, strict=True)
        ]
        self.rows: Batch = concatenate(schema, parts, Scratch())
        fronts = [np.maximum.accumulate(part[time].values[: part.rows]) for part in parts]
        self._due: Ints = np.concatenate(fronts) if due is None else due
        self._starts = np.cumsum([0, *counts])

    def joined(self, words: Ints, number: int) -> Ints:
        """Words of a state, by its number, as words of all rows."""
        return np.where(words > 0, words + self._starts[number], 0)

    def part(self, reached: Ints) -> tuple[Batch, Ints, Callable[[Ints], Ints]]:
        """The rows that words of the joined rows name, in order; their places in these; and the
        function from words of the joined rows to words of the part."""
        places = np.unique(reached[reached > 0]) - 1
        places = places[np.argsort(self._due[places], kind="stable")]
        to: Ints = np.zeros(self.rows.rows + 1, np.int64)
        to[places + 1] = 1 + np.arange(places.size)
        return take(self.rows, places, Scratch()), places, lambda words: to[words]


def reached_by(heads: Ints, nodes: Ints) -> Ints:
    """The words that chains from `heads` on have: a node's first word leads to the next node."""
    found, front = [heads.ravel()], heads[heads > 0]
    while front.size:
        found.append(nodes[front - 1].ravel())
        front = nodes[front - 1, 0]
        front = front[front > 0]
    return np.concatenate(found)
