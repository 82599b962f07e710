"""The window join's family: one interface, one order of results, a registry.

A member finds the pairs of rows of two windows with equal keys and
`-before <= right.time - left.time <= after`.  It knows nothing of columns: a row is a *record* of
16 bytes, and what it answers are pairs of row numbers of the two sides' stores.

    int64 time (µs) | uint32 tag (32 bits of the key's hash) | uint32 row (its number mod 2^32)

A beat's records of one side lie partition by partition (64, by the tag's top 6 bits), within
a partition in arrival order.  Where 32 bits of hash do not decide, `Beat.keys` names the columns to
compare, as `kernels.cpu.keys.same_key` does.

The same for every member

1. Pairs.  In a beat the left's records are matched with the right's window as it stood before,
   then join the left's window; the right's are matched with that, then join theirs.  Each pair is
   found once.  A window holds what was pushed and has not been let go.
2. Letting go.  After the beat, rows of a side whose time is below its `bounds_us`, or all of them
   where `everything` says so, *may* go, at any time; rows at or above it stay.  A member may match
   a row that may have gone: whether a late row meets it is the only thing that may differ, so
   members that the daemon runs keep to the oldest-first rule of `kernels.cpu.chain.evict`.
3. Order, for `ordered` members: (partition, pass, probing record, partner newest arrival first),
   whatever the batch size, the number of workers and the device.  Others answer in any order.

A member is one file that registers itself; nothing else names it.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import address
from edged.data.gather import take_fixed
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from kernels.cpu import gather, rings

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
PARTITIONS = 64


@dataclass(frozen=True, slots=True)
class Records:
    """A batch of one side: `data` is int64[2 * (rows + rings.AHEAD)], readable to its end; `counts`
    (int64[64]) the records of each partition.

    Kernels take both by their addresses, which are looked up once: a beat that follows on much
    memory finds Python's objects in no cache, and each takes as long to reach as some records to
    join.  Raises ValueError where an array is not of that type, or not in one piece.
    """

    data: Int64s
    counts: Int64s
    data_at: int = field(init=False)
    counts_at: int = field(init=False)

    def __post_init__(self) -> None:
        for array in (self.data, self.counts):
            if array.dtype != np.int64 or not array.flags.c_contiguous:
                raise ValueError("records and their counts are int64 in one piece")
        if self.counts.size != PARTITIONS:
            raise ValueError(f"{self.counts.size} counts for {PARTITIONS} partitions")
        object.__setattr__(self, "data_at", address(self.data))
        object.__setattr__(self, "counts_at", address(self.counts))

    @property
    def rows(self) -> int:
        """Records of all partitions."""
        return int(self.counts.sum())


_NO_KEYS: Int64s = np.zeros((0, 5), np.int64)


def no_keys() -> Int64s:
    """The key table where equal tags are equal keys."""
    return _NO_KEYS


@dataclass(frozen=True, slots=True)
class Beat:
    """What a beat's join is about; pairs are (left, right)."""

    bases: tuple[int, int]
    """The row number (mod 2^32) of row 0 of each side's store."""
    bounds_us: tuple[int, int]
    """The time below which each side's rows may go after this beat; never falls."""
    everything: tuple[bool, bool] = (False, False)
    """Whether all of a side's rows may go after this beat."""
    keys: Int64s = field(default_factory=no_keys)
    """int64[columns, 5], as in `kernels.cpu.keys`: the columns that decide whether keys are equal;
    none where equal tags do.  Never changed: another table is another array."""


def marked(
    name: str, rows: int, scratch: Scratch, mark: Callable[[Hashes, npt.NDArray[np.uint8]], object]
) -> tuple[Int64s, Hashes]:
    """The rows of the store that `mark` marks as alive, ascending, and the hashes it gives them."""
    hashes = scratch.get(f"{name}.hashes", rows, np.uint64)
    alive = scratch.get(f"{name}.alive", rows, np.uint8)
    alive[:] = 0
    mark(hashes, alive)
    found = scratch.get(f"{name}.rows", rows, np.int64)
    found = found[: gather.flagged(alive, found)]
    kept = scratch.get(f"{name}.kept", found.size, np.uint64)
    take_fixed(hashes, found, kept)
    return found, kept


class WindowJoin(ABC):
    """Two windows, and the search for pairs between them.  Not thread-safe."""

    name: ClassVar[str]
    device: ClassVar[str]
    """"cpu" or "cuda"."""
    ordered: ClassVar[bool]
    """Whether the daemon may run it: its pairs come in the family's order."""
    deals: ClassVar[bool] = False
    """Whether it decides itself how many threads some rows are worth."""
    about: ClassVar[str] = ""
    """A few words for `edged explain`: what its windows take."""
    reference: ClassVar[str] = "tests.naive.joins.join"
    """The plain-Python reference of all members."""

    def __init__(self, before_us: int, after_us: int, start: int = 0) -> None:
        """Empty windows.  `start` numbers the first entry, where a member counts entries in 32
        bits: tests begin near the limit."""
        self.before_us, self.after_us = before_us, after_us

    def buffer(self, side: int, rows: int) -> Int64s:
        """Memory for a batch's `Records.data` (side 0 left, 1 right), good until the next call for
        that side.  Members on a GPU give memory that it can read."""
        held = self.__dict__.setdefault("_buffers", {})
        size = 2 * (rows + rings.AHEAD)
        if side not in held or held[side].size < size:
            held[side] = np.zeros(max(size, 2 * held[side].size if side in held else 0), np.int64)
        array: Int64s = held[side]
        return array

    @abstractmethod
    def join(
        self, left: Records, right: Records, beat: Beat, workers: Workers | None
    ) -> tuple[Int64s, Int64s]:
        """Push a batch of one side or of both; returns rows of the left store and of the right,
        pair by pair, good until the next call.  `workers` None: on the calling thread."""

    @abstractmethod
    def restore(self, side: int, records: Records) -> None:
        """Put records into a side's window without matching them."""

    @abstractmethod
    def live(self, side: int, base: int, rows: int, scratch: Scratch) -> tuple[Int64s, Hashes]:
        """The rows of the store (of `rows` rows, row 0 numbered `base`) that are held, ascending,
        and for each its tag with its partition in the top 6 bits: what `restore` needs.  They may
        live in `scratch`, under names of that side."""

    @abstractmethod
    def oldest(self, side: int, base: int, rows: int) -> int:
        """A row of the store before which none is held, the first held one where that is cheap to
        know; `rows` where none is."""

    @abstractmethod
    def held(self, side: int) -> int:
        """Rows of a side that are in memory."""

    @abstractmethod
    def nbytes(self) -> int:
        """Memory that the windows take."""

    def close(self) -> None:
        """Give up threads and device memory."""
        return


JOINS: dict[str, type[WindowJoin]] = {}
_Member = TypeVar("_Member", bound=type[WindowJoin])


def window_join(name: str, *, device: str, ordered: bool) -> Callable[[_Member], _Member]:
    """Register a member of the family."""

    def register(member: _Member) -> _Member:
        member.name, member.device, member.ordered = name, device, ordered
        JOINS[name] = member
        return member

    return register


def find_join(name: str) -> type[WindowJoin] | None:
    """The member of that name, `chain-cuda` in the file `chain_cuda.py`; no other file is imported
    where there is that one."""
    module = name.replace("-", "_")
    with contextlib.suppress(ModuleNotFoundError):
        if module.isidentifier() and not module.startswith("_"):
            importlib.import_module(f"edged.joins.{module}")
    return JOINS.get(name) or load_joins().get(name)


def load_joins() -> dict[str, type[WindowJoin]]:
    """All members, by name.  Those of a device are named everywhere, and say what is missing when
    one is made."""
    package = importlib.import_module("edged.joins")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"edged.joins.{module.name}")
    return dict(sorted(JOINS.items()))
