"""Provenance, rails and joules: the value types of every energy figure.

Every figure carries its `Provenance`. A rail names what it feeds and the rail that it is a part of;
a part is never added to its whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Feed = Literal["input", "cpu", "gpu", "cv", "soc", "memory", "system", "radio"]
"""Part of a board that a rail supplies; `input` is all that the board draws."""


class Provenance(str, Enum):
    """Origin of a figure."""

    MEASURED = "measured"
    """Read from a named sensor."""
    MODELLED = "modelled"
    """Computed by a calibrated model of the device at hand."""
    SIMULATED = "simulated"
    """Of a simulated device."""


@dataclass(frozen=True, slots=True)
class Rail:
    """A supply line with a power figure."""

    name: str
    """The board's own name for it: VDD_IN, package-0."""
    feeds: tuple[str, ...]
    """Any of `input` (everything that the board draws), cpu, gpu, cv, soc, memory, system, radio.
    A rail with several is joint: the shares are unknown."""
    part_of: str | None = None
    """The rail that includes this one; the two are never added."""


@dataclass(frozen=True, slots=True)
class RailEnergy:
    """Joules of one rail between two times (monotonic µs)."""

    rail: Rail
    joules: float
    provenance: Provenance
    since_us: int
    until_us: int
    gap_us: int = 0
    """Time without readings in the interval; `joules` covers the rest only."""
