"""The family of table states: one interface, one order of matches, a registry.

A table state is a multiset of rows: each distinct row has a weight, the sum of the weights of all
changes that named it.  An insert is a change of weight 1, a delete is one of weight -1, and an
update is both.  Rows are found by the values of their key columns.  The state may exceed memory;
its files lie in a directory of its own.

Every member guarantees:

1. Content.  A probe sees all changes that were applied before it.  Rows whose weights sum to 0 are
   not found.  A null in a key equals nothing.
2. Order.  Matches come by probing row, and for one probing row in the order of their values,
   column by column: nulls first, numbers ascending (NaN last, -0.0 as 0.0), bytes as memcmp.  The
   order does not depend on when or how files are merged, on the number of workers, or on a restart.
3. Durability.  `save` returns a state that names the files which it needs.  After `sync` they are
   durable.  A file is deleted by `keep` alone, so a state that was saved can be loaded until then.

A member is one file that registers itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.flow import State
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.platform.disk import Disk
from edged.tables.costs import MergePricing
from governors.registry import Registry

Weights = npt.NDArray[np.int32]

MEMBER = "runs"
"""The member that operators use."""
AUTO, ALWAYS, NEVER, SEED = COMPACTIONS = ("auto", "always", "never", "seed")
"""When runs are merged: when probes have paid for it, at once, never, or until `probing_ends`."""


class TableScratch:
    """Scratch memory of states that one thread uses in turn.

    Columns and weights that a probe returns live in it: they are valid until the next probe of any
    of these states.  Above its limit the memory is given back after each use.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.rows, self.images, self.limit_bytes = Scratch(), Scratch(), limit_bytes
        self._ranges: list[Scratch] = []

    def ranges(self, count: int) -> list[Scratch]:
        """The scratch of so many threads that probe together."""
        while len(self._ranges) < count:
            self._ranges.append(Scratch())
        return self._ranges[:count]

    def nbytes(self) -> int:
        """Bytes of it."""
        return sum(part.nbytes for part in (self.rows, self.images, *self._ranges))

    def trim(self) -> None:
        """Give memory above the limit back; arrays in use stay until nothing refers to them."""
        if self.nbytes() > self.limit_bytes:
            for part in (self.rows, self.images, *self._ranges):
                part.clear()


@dataclass(frozen=True, slots=True)
class TableContext:
    """What a state needs besides its columns."""

    disk: Disk
    directory: str
    """The state's own directory; made where it is missing."""
    workers: Workers
    memory_bytes: int
    """Most memory of the state: what is not written yet, directories of runs, and caches."""
    compact: str = AUTO
    fanout: int = 4
    """Runs of about one size that `always` merges."""
    scratch: TableScratch | None = None
    """Scratch memory that the state shares with others; None: it has its own."""
    pricing: MergePricing = field(default_factory=MergePricing)
    """What probes and merges cost here and now."""


@dataclass(frozen=True, slots=True)
class Matches:
    """What a probe found.  Arrays and batch are valid until the next probe of this state, or of one
    that shares its scratch."""

    probe: npt.NDArray[np.int64]
    """The probing row of each match, ascending."""
    rows: Batch
    """The matching rows, all columns of the table."""
    weights: Weights
    """Their weights, none of them 0."""


class TableState(ABC):
    """One table, or one side of a join without a window.  Not thread-safe."""

    name: ClassVar[str]

    def __init__(self, schema: Schema, key: tuple[str, ...], context: TableContext) -> None:
        """An empty state of rows of `schema`, found by the columns `key`."""
        self.schema, self.key, self.context = schema, key, context

    @abstractmethod
    def apply(self, rows: Batch, weights: Weights) -> None:
        """Add changes.  Rows with a null in the key are kept out: nothing finds them.

        Raises OverflowError where a row's weight leaves int32; the state is unchanged then.
        """

    @abstractmethod
    def probe(self, keys: Batch) -> Matches:
        """The rows whose key columns equal the columns of `keys`, in the order of `key`."""

    @abstractmethod
    def probing_ends(self) -> None:
        """Say that probes have become rare: the opposite side of a join has its rows (Epsio,
        "Using the asymmetry"). `seed` stops merging then; other rules ignore it."""

    @abstractmethod
    def work(self, budget_rows: int) -> bool:
        """Merge at most about `budget_rows` rows more; returns whether a merge remains under way.

        Called between beats and within them.  Without a call nothing is merged.
        """

    def merge_all(self) -> None:
        """Merge all that there is: the end of a population without merges.  Here: all that is due.

        Raises OSError where the result cannot be written; the state is unchanged then.
        """
        while self.work(1 << 20):
            pass

    @abstractmethod
    def save(self) -> State:
        """The state as copies: what is in memory only, and `files`, the JSON text of the names,
        sizes and checksums of the files it needs, as uint8."""

    @abstractmethod
    def load(self, state: State) -> None:
        """Load what `save` returned.  Raises StoreCorrupt that names a missing or damaged file
        and the rows that it takes along."""

    @abstractmethod
    def sync(self) -> None:
        """Make the files of the last `save` durable.  May be called on another thread."""

    @abstractmethod
    def keep(self, states: Collection[State]) -> None:
        """Delete the files that neither one of these saved states nor the running one needs."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Bytes of memory that the state holds."""

    @abstractmethod
    def disk_bytes(self) -> int:
        """Bytes of its files."""

    @abstractmethod
    def counters(self) -> Mapping[str, int | float]:
        """Rows, runs, merged rows, bytes read and written, debt: figures for status and benches."""

    @abstractmethod
    def close(self) -> None:
        """Release files and memory; files stay."""


class LoadingState(TableState):
    """A state that takes changes as a run in a file at once, for a population past the log.

    load_run ─► loading, loaded ─► end_load, and in a replay reload ─► loaded ─► end_load

    Until `end_load` the runs are no part of the state.  They have no part in `sync`: the caller
    makes the files that `loading` names durable.  `keep` deletes them where no saved state, the
    record's among them, names them.
    """

    @abstractmethod
    def load_run(self, rows: Batch, weights: Weights, whole: bool) -> None:
        """Write these changes into a file.  Where `loaded` is to give the `whole`, those that
        nothing finds, since their key has a null, go into a file apart, which `end_load` leaves
        out.

        Raises OverflowError as `apply`, and OSError where there is no room; nothing is changed
        then.
        """

    @abstractmethod
    def loading(self) -> list[dict[str, Any]]:
        """The files written, as the entries of `files` in `save`."""

    @abstractmethod
    def reload(self, named: Sequence[Mapping[str, Any]]) -> None:
        """Read the files that `loading` has returned.  Raises StoreCorrupt as `load`, and OSError
        where there is no room for a merge that is due; nothing is changed then."""

    @abstractmethod
    def loaded(self) -> tuple[Batch, Weights]:
        """The changes in these files, in their order; valid until the next call."""

    @abstractmethod
    def end_load(self) -> None:
        """Make them a part of the state."""


TABLES: Registry[type[TableState]] = Registry("edged.tables", "edged.tables", "table state")
_State = TypeVar("_State", bound=type[TableState])


def table_state(name: str) -> Callable[[_State], _State]:
    """Class decorator: register a TableState under its name."""

    def register(member: _State) -> _State:
        TABLES.register(name, member, member.__module__)
        member.name = name
        return member

    return register
