"""What each optimisation of the shuffle is worth: a member with it and without it, in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from edged.bench.shuffle_grid import ShuffleCell
from edged.bench.shuffle_measure import ShuffleEffort, steady


@dataclass(frozen=True)
class Ablation:
    """An optimisation, the member that has it, and what is measured instead."""

    name: str
    member: str
    without: str = ""
    """Another member; empty: the same."""
    settings: dict[str, bool] = field(default_factory=dict)


LOCKED, MINIMAL = "on_demand_buffered/lock", "on_demand_buffered/lock_minimal"
ABLATIONS = (
    Ablation("padding", "on_demand/lock_minimal", settings={"padded": False}),
    Ablation("minimal locking", MINIMAL, LOCKED),
    Ablation("minimal locking, tuple by tuple", "on_demand/lock_minimal", "on_demand/lock"),
    Ablation("two-step write", MINIMAL, settings={"two_step": False}),
    Ablation("batch insert", MINIMAL, settings={"batch_insert": False}),
    Ablation("mask", MINIMAL, settings={"mask": False}),
    Ablation("buffers", MINIMAL, "on_demand/lock_minimal"),
    Ablation("non-temporal stores", MINIMAL, settings={"nontemporal": False}),
)
_CELLS = tuple(ShuffleCell(2, p, b) for b in (16, 64, 0) for p in (2, 64, 1024))


def ablations(
    effort: ShuffleEffort, whole: bool, tick: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Tuples/s with each optimisation and without: 16-byte tuples in 64 partitions on 2 threads, or
    with `whole` more sizes and partitions, named."""
    found = []
    for cell in _CELLS if whole else [ShuffleCell(2, 64, 16)]:
        place = f", {cell.tuple_bytes or 'any'} B, {cell.partitions} partitions" if whole else ""
        for a in ABLATIONS:
            tick(a.name + place)
            found.append({"name": a.name + place, **_compare(a, cell, effort)})
    return found


def _compare(a: Ablation, cell: ShuffleCell, effort: ShuffleEffort) -> dict[str, int]:
    """Both in turn; the medians."""
    turns: tuple[list[int], list[int]] = [], []
    part = replace(effort, seconds=effort.seconds / 3)
    for _ in range(3):
        turns[0].append(steady(a.member, cell, part)["tuples_per_s"])
        turns[1].append(steady(a.without or a.member, cell, part, **a.settings)["tuples_per_s"])
    return {"tuples_per_s_with": round(statistics.median(turns[0])),
            "tuples_per_s_without": round(statistics.median(turns[1]))}  # fmt: skip
