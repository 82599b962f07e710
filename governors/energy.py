"""What energy figures are made of: where they come from, which rail they are of, what is missing.

Every figure carries its `Provenance`.  A rail says what it feeds and which other rail it is a part
of: a part is never added to its whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Feed = Literal["input", "cpu", "gpu", "cv", "soc", "memory", "system", "radio"]
"""Part of a board that a rail supplies; `input` is all that the board draws."""


class Provenance(str, Enum):
    """Where a figure comes from."""

    MEASURED = "measured"
    """By a named sensor."""
    MODELLED = "modelled"
    """By a calibrated model of a device that is there."""
    SIMULATED = "simulated"
    """Of a device that is not there."""


@dataclass(frozen=True, slots=True)
class Rail:
    """A supply whose power can be told."""

    name: str
    """As the board calls it: VDD_IN, package-0."""
    feeds: tuple[str, ...]
    """Of `input` (all that the board draws), cpu, gpu, cv, soc, memory, system, radio.  More than
    one is a joint rail: what each of them draws is not known."""
    part_of: str | None = None
    """The rail that this one is measured in as well; never add the two."""


@dataclass(frozen=True, slots=True)
class RailEnergy:
    """What one rail took between two times (monotonic µs)."""

    rail: Rail
    joules: float
    provenance: Provenance
    since_us: int
    until_us: int
    gap_us: int = 0
    """Time of it in which nothing was read: `joules` are of the rest only."""
