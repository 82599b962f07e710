"""Plans of a shuffle: the member, its settings, and the sizes that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from edged.pages.format import CAPACITY_MAX, CAPACITY_MIN, SLOT_BYTES
from edged.pages.header import HEADER_BYTES
from kernels.cpu.shuffle import members, memory

SHUFFLE_PARTITIONS_MAX = 4096
BUFFERS_BYTES_MAX = 4 << 20
"""What all buffers of a thread may take."""
BUFFER_BYTES_MAX = 4096
HYBRID_TUPLES, HYBRID_BYTES = 256, 8 << 20
"""Tuples for each partition of a batch that gets a histogram, and most bytes of its rows."""
CACHE_LINE = 64
LINE_ROW_BYTES = CACHE_LINE, CACHE_LINE // 2
"""Rows of so many bytes, and of a varying size with so many on average, need no buffer where one
thread writes a page."""
ROUNDED_SHARE = 256
"""A page leaves at most one in so many tuples unused, so that full buffers fill whole lines."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A member: an algorithm, a page manager, with buffers or without."""

    entry: Any
    manager: int
    buffered: bool = False

    @property
    def grouped(self) -> bool:
        """Whether threads share batches."""
        return self.entry is members.run_group

    @property
    def alone(self) -> bool:
        """Whether one thread at a time writes to a page."""
        return self.manager == memory.EXCLUSIVE and self.entry is not members.run_radix


def _recipes() -> dict[str, Recipe]:
    made = {}
    managers = {
        "lock": memory.LOCK, "lock_minimal": memory.LOCK_MINIMAL, "lock_free": memory.LOCK_FREE,
    }  # fmt: skip
    for suffix, buffered in (("", False), ("_buffered", True)):
        for name, manager in managers.items():
            made[f"on_demand{suffix}/{name}"] = Recipe(members.run_on_demand, manager, buffered)
        made[f"radix{suffix}"] = Recipe(members.run_radix, memory.EXCLUSIVE, buffered)
        made[f"hybrid{suffix}"] = Recipe(members.run_hybrid, memory.LOCK_MINIMAL, buffered)
    made["ranges"] = Recipe(members.run_group, memory.EXCLUSIVE, True)
    for name in ("lock_minimal", "lock_free"):
        made[f"units/{name}"] = Recipe(members.run_group, managers[name], True)
    made["merge"] = Recipe(members.run_merge, memory.EXCLUSIVE, True)
    return made


RECIPES = _recipes()
MEMBERS = tuple(RECIPES)


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """What is to run, and how; ValueError for settings that contradict each other."""

    member: str
    partitions: int
    threads: int = 1
    page_bytes: int = 1 << 20
    """Capacity of a page, header included."""
    buffer_bytes: int = 0
    """Rows of a software managed buffer, of one partition and thread; 0: by rule."""
    units: int = 1
    """Processing units of the members `units/…`."""
    function: str = "hash"
    """The partition: `hash`, of the page format, or `key`, the thesis's `key % partitions`."""
    mask: bool = True
    """Powers of two are partitioned by mask."""
    padded: bool = True
    """Each partition's lock and counters have cache lines of their own."""
    two_step: bool = True
    """A block's slots are written before its data."""
    batch_insert: bool = True
    """A buffer is inserted at once."""
    nontemporal: bool | None = None
    """Buffers are written past the caches; None: by rule."""
    pool_bytes: int = 0
    """Pages are handed on, and their memory is used again, first in first out, once so many bytes
    are in use; 0: all are kept."""
    yields: int = 0
    """Tests: a thread yields once in so many steps of the protocol."""
    flushes: int = 0
    """A thread flushes a partition once in so many batches, as a timer does."""

    def __post_init__(self) -> None:
        if self.member not in RECIPES:
            raise ValueError(f"no member {self.member!r}; there are {', '.join(MEMBERS)}")
        if not 1 <= self.partitions <= SHUFFLE_PARTITIONS_MAX:
            raise ValueError(
                f"partitions must be 1 to {SHUFFLE_PARTITIONS_MAX}, not {self.partitions}"
            )
        if not CAPACITY_MIN <= self.page_bytes <= CAPACITY_MAX:
            raise ValueError(f"pages have {CAPACITY_MIN} to {CAPACITY_MAX} bytes")
        if self.threads < 1 or not 1 <= self.units <= self.threads:
            raise ValueError("there is a thread at least, and one in each processing unit")
        if self.function not in ("hash", "key"):
            raise ValueError(f"no partitioning function {self.function!r}")

    @property
    def recipe(self) -> Recipe:
        """The member's parts."""
        return RECIPES[self.member]

    @property
    def masked(self) -> bool:
        """Whether partitions are found by mask."""
        return self.mask and self.partitions & (self.partitions - 1) == 0


@dataclass(frozen=True, slots=True)
class RowShape:
    """The rows of an input, as pages hold them."""

    slotted: bool
    width: int
    """Bytes of a row; 0: it varies."""
    row_bytes_max: int
    row_bytes_mean: int

    @property
    def stride(self) -> int:
        """Bytes of a slot, or of a dense row."""
        return SLOT_BYTES if self.slotted else self.width

    @property
    def tuple_bytes(self) -> int:
        """Bytes of a tuple of the mean size in a page."""
        return self.stride + self.row_bytes_mean * self.slotted

    @property
    def tuple_bytes_max(self) -> int:
        """Bytes of the largest tuple in a page."""
        return self.stride + self.row_bytes_max * self.slotted


@dataclass(frozen=True, slots=True)
class ShuffleSizes:
    """Sizes of pages and buffers."""

    fixed_max: int
    """Tuples of a full page; 0: rows vary, or are larger than a page."""
    end_at: int
    """Where data ends in a page."""
    buffer_tuples: int
    buffer_data: int
    buffer_stride: int
    lines: bool
    """Rows go straight to the pages; a partition has `LINE_BYTES` instead of a buffer."""
    nontemporal: bool
    batch: int
    """Tuples of a batch."""


def sizes_of(plan: ShufflePlan, shape: RowShape, batch: int, usual: int) -> ShuffleSizes:
    """The sizes for a plan, its input's rows, and the tuples of a batch; 0: the usual number, or
    with a histogram of each batch, so many that each partition gets some."""
    if not batch:
        batch = usual
        if plan.member.startswith("hybrid"):
            most = HYBRID_BYTES // shape.row_bytes_mean
            batch = max(batch, min(HYBRID_TUPLES * plan.partitions, most))
    tuples, data = _buffer(plan, shape)
    usable = plan.page_bytes - HEADER_BYTES
    fixed = usable // shape.tuple_bytes_max if shape.width else 0
    for unit in (tuples, 16, 4):
        if fixed % unit * ROUNDED_SHARE <= fixed:
            fixed -= fixed % unit
            break
    end = HEADER_BYTES + fixed * shape.tuple_bytes if fixed and shape.slotted else plan.page_bytes
    stride = data
    if shape.slotted:
        stride = memory.BUFFER_EXCESS + data + 4 * tuples * (1 if shape.width else 2)
    stride = -(-stride // CACHE_LINE) * CACHE_LINE
    stream = plan.nontemporal if plan.nontemporal is not None else plan.recipe.buffered
    whole = bool(fixed) if shape.width else shape.slotted
    lines = bool(
        whole and shape.row_bytes_mean >= LINE_ROW_BYTES[shape.width == 0] and stream
        and plan.recipe.alone and plan.two_step and plan.batch_insert and not plan.buffer_bytes
    )  # fmt: skip
    stride = memory.LINE_BYTES if lines else stride
    return ShuffleSizes(fixed, end, tuples, data, stride, lines, stream, batch)


def _buffer(plan: ShufflePlan, shape: RowShape) -> tuple[int, int]:
    """Tuples of a buffer, and bytes of its rows: whole cache lines where rows have one width."""
    wanted = plan.buffer_bytes or min(BUFFER_BYTES_MAX, BUFFERS_BYTES_MAX // plan.partitions)
    if not shape.width:
        data = max(CACHE_LINE * 4, wanted // CACHE_LINE * CACHE_LINE)
        return max(4, 2 * data // max(8, shape.row_bytes_mean)), data
    line = CACHE_LINE // math.gcd(CACHE_LINE, shape.width)
    if shape.slotted:
        line = max(line, 16)
    tuples = max(1, wanted // shape.width)
    if 2 * tuples >= line or not plan.buffer_bytes:
        tuples = max(line, tuples // line * line)
    return tuples, tuples * shape.width
