"""Which rails boards have, what each feeds, which is measured in which, and which make the input.

By label, from hardware.md section 1.4.  A label that is not here is kept with nothing known about
it: it is shown, and never added to anything.

    Orin Nano, NX; Xavier NX   VDD_IN is the module; VDD_CPU_GPU_CV is joint, a part of it
    Jetson Nano                POM_5V_IN is the module; POM_5V_GPU and POM_5V_CPU are parts
    AGX Orin                   no input rail: the sum of three; VDDQ_VDD2_1V8AO is in VIN_SYS_5V0
    AGX Thor                   VIN (ina238) is the carrier with the module; the rest are parts
    AGX Xavier                 no input rail: the sum of six (unverified)
    x86                        psys where there is one, else the packages and their memory

The model's rails have the names of the board's; what a rail is is the same for both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from governors.energy import Provenance, Rail, RailEnergy
from governors.meters.base import Meter

Key = tuple[str, str]
"""A meter's name and a rail's name: one rail may be measured and modelled."""

_KNOWN: dict[str, tuple[tuple[str, ...], str | None]] = {
    "VIN": (("input",), None),
    "VDD_IN": (("input",), None),
    "VDD_CPU_GPU_CV": (("cpu", "gpu", "cv"), "VDD_IN"),
    "VDD_SOC": (("soc",), "VDD_IN"),
    "POM_5V_IN": (("input",), None),
    "POM_5V_GPU": (("gpu",), "POM_5V_IN"),
    "POM_5V_CPU": (("cpu",), "POM_5V_IN"),
    "VDD_GPU_SOC": (("gpu", "soc"), None),
    "VDD_CPU_CV": (("cpu", "cv"), None),
    "VIN_SYS_5V0": (("system",), "VIN"),
    "VDDQ_VDD2_1V8AO": (("memory",), "VIN_SYS_5V0"),
    "VDD_GPU": (("gpu",), "VIN"),
    "VDD_CPU_SOC_MSS": (("cpu", "soc", "memory"), "VIN"),
    "GPU": (("gpu",), None),
    "CPU": (("cpu",), None),
    "SOC": (("soc",), None),
    "CV": (("cv",), None),
    "VDDRQ": (("memory",), None),
    "SYS5V": (("system",), None),
}

_SUMS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"}), "without the carrier board"),
    (
        frozenset({"GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"}),
        "without the carrier board; that these six are all is not verified",
    ),
)

_COVERS = {
    "VIN": "the carrier board with the module",
    "VDD_IN": "the module, without the carrier board",
    "POM_5V_IN": "the module, without the carrier board",
    "psys": "what the maker wired to the platform's sensor",
}

_ORDER = ("external", "ina238", "ina3221", "rapl", "battery", "model")
"""Of two that tell the whole, the one further towards the plug; but a battery tells nothing while
it is charged, and a model only where nothing is measured."""


def rail(label: str, present: Collection[str]) -> Rail:
    """The rail of a label on a board whose rails are `present`."""
    feeds, part_of = _KNOWN.get(label, ((), None))
    return Rail(label, feeds, part_of if part_of in present else None)


@dataclass(frozen=True, slots=True)
class Whole:
    """Rails that together are the input, each counted once."""

    keys: tuple[Key, ...]
    name: str
    """`VDD_IN`, or `sum of A + B`."""
    covers: str
    """What is in it, and what is not."""
    provenance: Provenance


def wholes(meters: Sequence[Meter]) -> list[Whole]:
    """Every way to tell the whole input, the best first; empty where there is none."""
    found = []
    for meter in sorted(meters, key=_rank):
        found += _inputs(meter) or _sums(meter)
    return found


def _rank(meter: Meter) -> int:
    kind = meter.name.partition(":")[0]
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def _inputs(meter: Meter) -> list[Whole]:
    """Rails of one meter that are the whole input."""
    rails = [r for r in meter.rails if "input" in r.feeds and r.part_of is None]
    covers = {r.name: _COVERS.get(r.name, "all that is behind this meter") for r in rails}
    return [Whole(((meter.name, r.name),), r.name, covers[r.name], meter.provenance) for r in rails]


def _sums(meter: Meter) -> list[Whole]:
    by_name = {r.name: r for r in meter.rails}
    for names, covers in _SUMS:
        if names <= by_name.keys():
            chosen = [r.name for r in meter.rails if r.name in names]
            return [_sum(meter, chosen, covers)]
    if meter.name == "rapl":
        chosen = [r.name for r in meter.rails if r.part_of is None]
        if not chosen:
            return []
        return [_sum(meter, chosen, "processors and their memory, nothing else of the machine")]
    return []


def _sum(meter: Meter, names: Sequence[str], covers: str) -> Whole:
    name = names[0] if len(names) == 1 else "sum of " + " + ".join(names)
    return Whole(tuple((meter.name, n) for n in names), name, covers, meter.provenance)


def input_watts(whole: Whole, watts: Mapping[Key, float | None]) -> float | None:
    """The whole input's power (W) by that of each rail; None where one of its rails told none."""
    told = [watts.get(key) for key in whole.keys]
    return sum(w for w in told if w is not None) if None not in told else None


def input_energy(found: Iterable[Whole], energies: Mapping[Key, RailEnergy]) -> RailEnergy | None:
    """What the whole input took, by the first of `found` that has the least gap.

    Several rails are read one after another: the time is that of the first, the gap the largest.
    """
    told = [_added(w, [energies[k] for k in w.keys]) for w in found if set(w.keys) <= set(energies)]
    return min(told, key=lambda e: (e.provenance is Provenance.MODELLED, e.gap_us), default=None)


def _added(whole: Whole, parts: list[RailEnergy]) -> RailEnergy:
    first = parts[0]
    rail = Rail(whole.name, ("input",))
    gap_us = max(p.gap_us for p in parts)
    joules = sum(p.joules for p in parts)
    return RailEnergy(rail, joules, whole.provenance, first.since_us, first.until_us, gap_us)
