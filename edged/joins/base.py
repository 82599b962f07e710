"""The family of window joins: one interface, one order of results, a registry.

A member finds the pairs of rows of two windows with equal keys and
`-before <= right.time - left.time <= after`.  It knows no columns: a row is a *record* of 16 bytes,
and a pair is two row numbers of the sides' stores.

    int64 time (us) | uint32 tag (32 bits of the key's hash) | uint32 row (its number mod 2^32)

A side's records of a beat lie partition by partition (64, by the tag's top 6 bits), in arrival
order within a partition.  Where 32 bits of hash do not decide, `Beat.keys` names the columns to
compare (`kernels.cpu.keys.same_key`).

Every member guarantees:

1. Pairs.  In a beat the left records are matched with the right window as it stood before, then
   join the left window; the right records are matched with that, then join theirs.  Each pair is
   found once.  A window holds the records that were pushed and have not left.
2. Eviction.  After the beat, rows of a side whose time is below its `bounds_us`, or all rows if
   `everything` is set, *may* leave, at any time; rows at or above it stay.  A member may match a
   row that may have left.  Nothing else may differ between members, so members that the daemon runs
   evict oldest first, as `kernels.cpu.evict.evict` does.
3. Order, for `ordered` members: (partition, side, probing record, partner newest arrival first),
   whatever the batch size, the number of workers and the device.  Others answer in any order.

A member is one file that registers itself; no other file names it.
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
from kernels.cpu.partition import PARTITIONS

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Records:
    """A batch of one side: `data` is int64[2 * (rows + rings.AHEAD)], readable to its end; `counts`
    (int64[64]) the records of each partition.

    Kernels take both by addresses, which are looked up once: after a beat through much memory,
    Python's objects are in no cache.  Raises ValueError for arrays of another type or layout.
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
    """The terms of a beat's join; pairs are (left, right)."""

    bases: tuple[int, int]
    """The row number (mod 2^32) of row 0 of each side's store."""
    bounds_us: tuple[int, int]
    """The time below which each side's rows may leave after this beat; never falls."""
    everything: tuple[bool, bool] = (False, False)
    """Whether all of a side's rows may leave after this beat."""
    keys: Int64s = field(default_factory=no_keys)
    """int64[columns, 5], as in `kernels.cpu.keys`: the columns that decide whether keys are equal;
    none where equal tags do.  Immutable: another table is another array."""


def marked(
    name: str, rows: int, scratch: Scratch, mark: Callable[[Hashes, npt.NDArray[np.uint8]], object]
) -> tuple[Int64s, Hashes]:
    """The store rows that `mark` marks as alive, ascending, and the hashes that it gives them."""
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
    """Whether the member chooses the number of threads itself."""
    about: ClassVar[str] = ""
    """The memory of a row, for `edged explain`."""
    reference: ClassVar[str] = "tests.naive.joins.join"
    """The plain-Python reference of all members."""

    def __init__(self, before_us: int, after_us: int, start: int = 0) -> None:
        """Empty windows.  `start` is the number of the first entry, where a member counts entries
        in 32 bits: tests begin near the limit."""
        self.before_us, self.after_us = before_us, after_us

    def buffer(self, side: int, rows: int) -> Int64s:
        """Memory for a batch's `Records.data` (side 0 left, 1 right), valid until the next call for
        that side.  Members on a GPU give memory that the GPU can read."""
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
        pair by pair, valid until the next call.  `workers` None: on the calling thread."""

    @abstractmethod
    def restore(self, side: int, records: Records) -> None:
        """Put records into a side's window without matching them."""

    @abstractmethod
    def live(self, side: int, base: int, rows: int, scratch: Scratch) -> tuple[Int64s, Hashes]:
        """The store rows (of `rows`, row 0 numbered `base`) that are held, ascending, and for each
        its tag with its partition in the top 6 bits: what `restore` needs.  They may lie in
        `scratch`, under names of that side."""

    @abstractmethod
    def oldest(self, side: int, base: int, rows: int) -> int:
        """A store row before which no row is held, the first held row where that is cheap to find;
        `rows` where none is held."""

    @abstractmethod
    def held(self, side: int) -> int:
        """The rows of a side that are in memory."""

    @abstractmethod
    def nbytes(self) -> int:
        """The bytes of both windows."""

    def close(self) -> None:
        """Release threads and device memory."""
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
    if that file exists."""
    module = name.replace("-", "_")
    with contextlib.suppress(ModuleNotFoundError):
        if module.isidentifier() and not module.startswith("_"):
            importlib.import_module(f"edged.joins.{module}")
    return JOINS.get(name) or load_joins().get(name)


def load_joins() -> dict[str, type[WindowJoin]]:
    """All members, by name.  Members of a device are listed everywhere; making one raises an error
    that says what is missing."""
    package = importlib.import_module("edged.joins")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"edged.joins.{module.name}")
    return dict(sorted(JOINS.items()))
