"""What `edged bench tables` joins: two tables of integers, their changes, and a join over states.

T and U have a key, an identifier and a value.  The join's result is summed as it is made: the
weights, and the weights times a mix of both rows, modulo 2^64.  Two members whose sums agree after
every beat have made the same multiset of pairs, but for chance.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column
from edged.data.schema import INT64, Field, Schema
from edged.data.workers import Workers
from edged.platform.disk import SystemDisk
from edged.tables.base import TABLES, TableContext, TableState

Int64s = npt.NDArray[np.int64]
ROWS = Schema.of([Field("k", INT64), Field("id", INT64), Field("v", INT64)])
KEY = Schema.of([Field("k", INT64)])
_LEFT, _RIGHT = np.int64(0x9E3779B1), np.int64(0x85EBCA77)


@dataclass(frozen=True)
class TableChanges:
    """Weighted rows of one table: columns and weights."""

    k: Int64s
    id: Int64s
    v: Int64s
    weight: npt.NDArray[np.int32]

    @property
    def rows(self) -> int:
        """Their number."""
        return int(self.k.size)

    def batch(self) -> Batch:
        """The rows as a batch of `ROWS`."""
        return Batch(ROWS, self.rows, (Column(self.k), Column(self.id), Column(self.v)))

    def keys(self) -> Batch:
        """The keys alone."""
        return Batch(KEY, self.rows, (Column(self.k),))


@dataclass(frozen=True)
class TableBeat:
    """The changes of a beat, U's first; `changes` counts an update once."""

    of_u: TableChanges
    of_t: TableChanges
    changes: int


@dataclass
class Incremental:
    """T of `rows` rows, `per_key` a key, U of a tenth of that, and `beats` beats of changes: 70 %
    inserts and 15 % deletes of U, 15 % updates of T."""

    rows: int
    per_key: int
    beats: int
    changes: int
    seed: int = 1
    t: TableChanges = field(init=False)
    u: TableChanges = field(init=False)
    made: list[TableBeat] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        keys = max(1, self.rows // self.per_key)
        self.t = inserts(np.arange(self.rows) % keys, 0, rng)
        self.u = inserts(rng.integers(0, keys, self.rows // 10), 0, rng)
        t_v = self.t.v.copy()
        alive = [self.u]
        self.made = []
        for beat in range(self.beats):
            new = inserts(rng.integers(0, keys, self.changes * 70 // 100), (beat + 1) << 32, rng)
            old = alive[0] if len(alive) == 1 else alive[rng.integers(0, len(alive))]
            gone = np.sort(rng.choice(old.rows, min(old.rows, self.changes * 15 // 100), False))
            rest = np.delete(np.arange(old.rows), gone)
            alive = [a if a is not old else part(old, rest, 1) for a in alive] + [new]
            alive = [a for a in alive if a.rows]
            updated = rng.choice(self.rows, self.changes * 15 // 100, False)
            before = TableChanges(self.t.k[updated], self.t.id[updated], t_v[updated],
                             np.full(updated.size, -1, np.int32))  # fmt: skip
            t_v[updated] = rng.integers(0, 1 << 40, updated.size)
            after = TableChanges(before.k, before.id, t_v[updated], -before.weight)
            self.made.append(
                TableBeat(
                    together(new, part(old, gone, -1)), together(before, after),
                    new.rows + gone.size + updated.size,
                )
            )  # fmt: skip


def inserts(k: Int64s, first_id: int, rng: np.random.Generator) -> TableChanges:
    """Rows of these keys with identifiers from `first_id` on."""
    k = k.astype(np.int64)
    ids = first_id + np.arange(k.size, dtype=np.int64)
    return TableChanges(k, ids, rng.integers(0, 1 << 40, k.size), np.ones(k.size, np.int32))


def part(changes: TableChanges, rows: Int64s, weight: int) -> TableChanges:
    """Some rows of `changes`, with this weight."""
    return TableChanges(changes.k[rows], changes.id[rows], changes.v[rows],
                   np.full(rows.size, weight, np.int32))  # fmt: skip


def together(a: TableChanges, b: TableChanges) -> TableChanges:
    """The rows of both."""
    return TableChanges(np.concatenate([a.k, b.k]), np.concatenate([a.id, b.id]),
                   np.concatenate([a.v, b.v]), np.concatenate([a.weight, b.weight]))  # fmt: skip


@dataclass
class PairSums:
    """The result of a join so far."""

    pairs: int = 0
    weights: int = 0
    mixed: int = 0
    cpu_s: float = 0.0
    """Time of the counting itself."""

    def add(self, u: tuple[Int64s, Int64s], t: tuple[Int64s, Int64s], weight: Int64s) -> None:
        """Count pairs: identifier and value of both rows."""
        start = time.process_time()
        with np.errstate(over="ignore"):
            mix = (u[0] * _LEFT ^ u[1]) * (t[0] * _RIGHT ^ t[1])
            mixed = int((mix * weight).sum(dtype=np.int64))
        self.pairs += weight.size
        self.weights += int(weight.sum())
        self.mixed = (self.mixed + mixed) & 0xFFFFFFFFFFFFFFFF
        self.cpu_s += time.process_time() - start

    @property
    def answer(self) -> tuple[int, int]:
        """What members are compared by."""
        return self.weights, self.mixed


def made_state(
    member: str, directory: str, memory: int, compact: str = "auto", fanout: int = 4,
    workers: Workers | None = None,
) -> TableState:  # fmt: skip
    """An empty state of `ROWS` by `k`."""
    context = TableContext(SystemDisk(), directory, workers or Workers(1), memory, compact, fanout)
    return TABLES.load()[member](ROWS, ("k",), context)


def meet(state: TableState, changes: TableChanges, changes_are_u: bool, sums: PairSums) -> None:
    """Probe a side's state with the other side's changes and count the pairs."""
    found = state.probe(changes.keys())
    weight = found.weights.astype(np.int64) * changes.weight[found.probe]
    probing = changes.id[found.probe], changes.v[found.probe]
    matching = found.rows["id"].values, found.rows["v"].values
    u, t = (probing, matching) if changes_are_u else (matching, probing)
    sums.add(u, t, weight)


def beat_of(u: TableState, t: TableState, beat: TableBeat, sums: PairSums) -> None:
    """A beat of the symmetric join: each side's changes meet the other side's rows, once."""
    meet(t, beat.of_u, True, sums)
    u.apply(beat.of_u.batch(), beat.of_u.weight)
    meet(u, beat.of_t, False, sums)
    t.apply(beat.of_t.batch(), beat.of_t.weight)


def settle(*states: TableState, budget_rows: int = 1 << 20) -> None:
    """Merge all that is due."""
    for state in states:
        while state.work(budget_rows):
            pass


def members() -> list[str]:
    """The members that are part of edged, `runs` first."""
    found = [name for name, kind in TABLES.load().items() if kind.__module__.startswith("edged.")]
    return sorted(found, key=lambda name: name != "runs")


Row = dict[str, Any]
Tick = Callable[[str], None]
