"""The whole input of a board: the rails that give it, and its joules.

A meter declares its input rails (`Rail.feeds` contains `input`), what they cover, the sums of rails
that make the input, and its rank (`governors.meters.base.Meter`). This module knows no meter by
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from governors.energy import Provenance, Rail, RailEnergy
from governors.meters.base import Meter

Key = tuple[str, str]
"""Names of meter and rail: one rail may be both measured and modelled."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Rails that together are the input, each counted once."""

    keys: tuple[Key, ...]
    name: str
    """`VDD_IN`, or `sum of A + B`."""
    covers: str
    """What the input includes and excludes."""
    provenance: Provenance


def wholes(meters: Sequence[Meter]) -> list[Whole]:
    """All ways to obtain the whole input, best first; empty without one."""
    found = []
    for meter in sorted(meters, key=lambda m: m.rank):
        found += _inputs(meter) or _sums(meter)
    return found


def _inputs(meter: Meter) -> list[Whole]:
    """Rails of one meter that each are the whole input."""
    rails = [r for r in meter.rails if "input" in r.feeds and r.part_of is None]
    covers = {r.name: meter.covers.get(r.name, "everything behind this meter") for r in rails}
    return [Whole(((meter.name, r.name),), r.name, covers[r.name], meter.provenance) for r in rails]


def _sums(meter: Meter) -> list[Whole]:
    """The first sum of one meter whose rails all exist."""
    by_name = {r.name: r for r in meter.rails}
    top = [r.name for r in meter.rails if r.part_of is None]
    for names, covers in meter.sums:
        chosen = [r.name for r in meter.rails if r.name in names] if names else top
        if chosen and names <= by_name.keys():
            return [_sum(meter, chosen, covers)]
    return []


def _sum(meter: Meter, names: Sequence[str], covers: str) -> Whole:
    name = names[0] if len(names) == 1 else "sum of " + " + ".join(names)
    return Whole(tuple((meter.name, n) for n in names), name, covers, meter.provenance)


def input_watts(whole: Whole, watts: Mapping[Key, float | None]) -> float | None:
    """Power (W) of the whole input from that of its rails; None where one is missing."""
    parts = [watts.get(key) for key in whole.keys]
    return sum(w for w in parts if w is not None) if None not in parts else None


def input_energy(found: Iterable[Whole], energies: Mapping[Key, RailEnergy]) -> RailEnergy | None:
    """Energy of the whole input, by the first of `found` with the least gap.

    Several rails are read one after another: the time is that of the first, the gap the largest.
    """
    known = [
        _added(w, [energies[k] for k in w.keys]) for w in found if set(w.keys) <= set(energies)
    ]
    return min(known, key=lambda e: (e.provenance is Provenance.MODELLED, e.gap_us), default=None)


def _added(whole: Whole, parts: list[RailEnergy]) -> RailEnergy:
    first = parts[0]
    rail = Rail(whole.name, ("input",))
    gap_us = max(p.gap_us for p in parts)
    joules = sum(p.joules for p in parts)
    return RailEnergy(rail, joules, whole.provenance, first.since_us, first.until_us, gap_us)
