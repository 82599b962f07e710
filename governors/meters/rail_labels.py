"""Rail labels of Jetson boards: what each rail feeds, which rail it is part of, and which rails sum
up to the whole input (docs/hardware.md 1.4).

    Orin Nano, NX; Xavier NX   VDD_IN is the module; VDD_CPU_GPU_CV is joint, a part of it
    Jetson Nano                POM_5V_IN is the module; POM_5V_GPU and POM_5V_CPU are parts
    AGX Orin                   no input rail: the sum of three; VDDQ_VDD2_1V8AO is in VIN_SYS_5V0
    AGX Thor                   VIN (ina238) is the carrier with the module; the rest are parts
    AGX Xavier                 no input rail: the sum of six (unverified)

A label that is not listed is shown and added to nothing.  The power model's rails have the names of
the board's rails, so both meters share these tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from governors.energy import Rail

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

SUMS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"}), "without the carrier board"),
    (
        frozenset({"GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"}),
        "without the carrier board; that these six are all is not verified",
    ),
)

COVERS: Mapping[str, str] = MappingProxyType(
    {
        "VIN": "the carrier board with the module",
        "VDD_IN": "the module, without the carrier board",
        "POM_5V_IN": "the module, without the carrier board",
    }
)


def rail(label: str, present: Collection[str]) -> Rail:
    """The rail of a label on a board whose rails are `present`."""
    feeds, part_of = _KNOWN.get(label, ((), None))
    return Rail(label, feeds, part_of if part_of in present else None)
