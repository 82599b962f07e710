"""The configurations that `edged bench shuffle` measures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from edged.pages.shuffle import MEMBERS, GeneratedInput, ShufflePlan

PARTITIONS = (2, 16, 64, 256, 1024, 4096)
TUPLE_BYTES = (4, 16, 64, 256, 0)
PAGE_BYTES = (64 << 10, 1 << 20, 5 << 20)
THREADS = (1, 2, 4)
KEYS = ("uniform", "zipf")
LAYOUTS = ("slotted", "dense")
BUFFERS = (256, 1024, 4096, 16384)
MORSELS = (256, 1024, 8192, 32768)
UNITS = (1, 2, 4)
ZIPF_EXPONENT = 1.0
TUPLEWISE = tuple(m for m in MEMBERS if m.startswith("on_demand/") or m in ("radix", "hybrid"))
"""Members that insert tuple by tuple: ten times slower than the rest."""
FAST = tuple(m for m in MEMBERS if m not in TUPLEWISE)
FEW = ("on_demand_buffered/lock_minimal", "ranges", "merge")
"""Members that stand for the family where an axis is measured alone."""
_UNIT_MEMBERS = tuple(m for m in MEMBERS if m.startswith("units/"))


@dataclass(frozen=True)
class ShuffleCell:
    """What a member is measured with; members of a cell compare."""

    threads: int = 1
    partitions: int = 64
    tuple_bytes: int = 64
    """Bytes of key and data; 0: from 4 to 124."""
    page_bytes: int = 1 << 20
    keys: str = "uniform"
    layout: str = "slotted"
    buffer_bytes: int = 0
    """0: by rule, like `morsel`."""
    morsel: int = 0
    units: int = 1

    def source(self, tuples: int, fresh: bool) -> GeneratedInput:
        """The input."""
        return GeneratedInput(
            tuples, self.tuple_bytes, layout=self.layout, batch=self.morsel, fresh=fresh,
            zipf=ZIPF_EXPONENT if self.keys == "zipf" else 0.0,
        )  # fmt: skip

    def plan(self, member: str, **settings: Any) -> ShufflePlan:
        """The plan of a member."""
        return ShufflePlan(
            member, self.partitions, threads=self.threads, page_bytes=self.page_bytes,
            buffer_bytes=self.buffer_bytes,
            units=self.units if member.startswith("units/") else 1, **settings,
        )  # fmt: skip

    def open_bytes(self, member: str) -> int:
        """Memory of the pages that may be open at once."""
        owners = self.partitions
        if member == "merge":
            owners *= self.threads
        if member.startswith("hybrid"):
            owners *= 1 + self.threads
        return owners * self.page_bytes


Pair = tuple[str, ShuffleCell]


def chosen_part() -> list[Pair]:
    """The default run: all members at the centre, the faster ones along each axis."""
    base, both = ShuffleCell(), THREADS[:2]
    found: dict[Pair, None] = {}

    def add(members: Iterable[str], cells: Iterable[ShuffleCell]) -> None:
        found.update(dict.fromkeys((m, c) for c in cells for m in members))

    add(MEMBERS, (ShuffleCell(t, p, b) for b, p, t in product((16, 64, 0), (16, 1024), both)))
    add(FAST, (ShuffleCell(t, p, 64) for p, t in product(PARTITIONS[:-1], both)))
    add(FEW, (ShuffleCell(t, PARTITIONS[-1], 64) for t in both))
    add(FAST, (ShuffleCell(t, 64, b) for b, t in product(TUPLE_BYTES, both)))
    add(FAST, (replace(base, threads=t, page_bytes=s) for s, t in product(PAGE_BYTES, both)))
    add(FAST, (ShuffleCell(t, 64, b, keys="zipf") for b, t in product((64, 0), both)))
    add(FAST, (ShuffleCell(t, p, b, layout="dense")
               for b, p, t in product((16, 64, 256), (64, 1024), both)))  # fmt: skip
    add(FAST, [replace(base, threads=4)])
    add(FEW, (replace(base, buffer_bytes=b) for b in BUFFERS))
    add(FEW, (replace(base, morsel=n) for n in MORSELS))
    add(_UNIT_MEMBERS, (replace(base, threads=4, units=u) for u in UNITS))
    return list(found)


def whole_grid() -> list[Pair]:
    """All values of all dimensions crossed; buffer, morsel and units on axes of their own."""
    found: dict[Pair, None] = {}
    for layout, keys, page, size, partitions, threads in product(
        LAYOUTS, KEYS, PAGE_BYTES, TUPLE_BYTES, PARTITIONS, THREADS
    ):
        if layout == "slotted" or size:
            cell = ShuffleCell(threads, partitions, size, page, keys, layout)
            found.update(dict.fromkeys((m, cell) for m in MEMBERS))
    for threads, size, partitions in product(THREADS, (16, 64, 0), (16, 64, 1024)):
        cell = ShuffleCell(threads, partitions, size)
        for axis, values, members in (
            ("buffer_bytes", BUFFERS, FAST), ("morsel", MORSELS, MEMBERS),
            ("units", [u for u in UNITS if u <= threads], _UNIT_MEMBERS),
        ):  # fmt: skip
            for v in values:
                changed: dict[str, Any] = {axis: v}
                found.update(dict.fromkeys((m, replace(cell, **changed)) for m in members))
    return list(found)


def smoke() -> list[Pair]:
    """All members on one small cell."""
    return [(m, ShuffleCell(2, 16, 16, 64 << 10)) for m in MEMBERS]
