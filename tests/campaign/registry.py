"""The classes of faults: each module registers its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.campaign.rig import Outcome


@dataclass
class Run:
    """One run of a class.  `runs` is how many faults to make; `outcome` is filled on the way."""

    directory: Path
    seed: int
    runs: int
    outcome: Outcome
    tell: Callable[[], None]

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def counted(self, runs: int = 1) -> None:
        """`runs` more faults were made."""
        self.outcome.runs += runs
        self.tell()


@dataclass(frozen=True)
class FaultClass:
    """A class of faults."""

    name: str
    runs: int
    """Faults of a whole campaign."""
    make: Callable[[Run], None]
    computes: bool = False
    """It needs the campaign's own process for itself, instead of waiting for others."""


CLASSES: dict[str, FaultClass] = {}


def fault_class(name: str, runs: int, computes: bool = False):
    """Register a function as the class `name`."""

    def register(make: Callable[[Run], None]) -> Callable[[Run], None]:
        CLASSES[name] = FaultClass(name, runs, make, computes)
        return make

    return register
