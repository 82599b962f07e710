"""What a meter is: something that tells what rails draw, on its own schedule.

A meter gives, for each of its rails, one `Reading` each time that it is read:

    watts only            power now, or averaged by the sensor; `totals` integrates trapezoids
    joules                a counter (J) since the meter was opened, already unwrapped
    joules and a problem  the counter starts anew here: what passed since the last reading is lost
    neither               not read, `problem` says why: a gap, never a zero

A failing sensor is never an exception.  Watts are as read: an INA3221's offset makes small powers
negative, and only the energy made from them is clamped.

One self-registering file a meter: `@opener("name")` on a function that looks for it on a board.
`survey` asks them all, and says as well what is missing and what would give it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from governors.energy import Provenance, Rail
from governors.meters.settings import MeterSettings
from governors.registry import Registry
from governors.sysfs import KernelRefused, Sysfs, SysfsError

COUNTER_SPAN_US = 600_000_000
"""A counter that cannot wrap tells afterwards what was missed, but after so long without a reading
the time becomes a gap: accounts wait no longer."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one rail said at one time (monotonic µs); see the module for its four forms."""

    rail: Rail
    at_us: int
    watts: float | None
    joules: float | None
    problem: str = ""


class Meter(Protocol):
    """Reads one kind of sensor of a board."""

    @property
    def name(self) -> str:
        """The module's name; several meters of a kind add what tells them apart."""

    @property
    def provenance(self) -> Provenance:
        """Of all its readings."""

    @property
    def rails(self) -> tuple[Rail, ...]:
        """What it tells; every `read` answers for each of them."""

    @property
    def interval_us(self) -> int:
        """How often a read says something new."""

    @property
    def span_us(self) -> int | None:
        """Counters: readings further apart than this may hide a wrap.  None: it tells watts."""

    @property
    def steps_w(self) -> Mapping[str, float]:
        """The smallest step (W) that a rail's watts can make, by its name, of rails that each busy
        core moves and that are new at each read; no other is ever called frozen."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """What speaks against believing its readings, in words."""

    @property
    def rank(self) -> int:
        """Nearness to the plug: of two meters of the whole input the lower rank is used."""

    @property
    def covers(self) -> Mapping[str, str]:
        """What an input rail covers, by the rail's name."""

    @property
    def sums(self) -> tuple[tuple[frozenset[str], str], ...]:
        """Sets of rails that add up to the whole input, each with what the sum covers; an empty
        set stands for all rails that are part of no other."""

    def read(self, now_us: int) -> list[Reading]:
        """One reading a rail.  Never raises on a failing sensor."""

    def close(self) -> None:
        """Release what it holds."""


class PlainMeter:
    """The defaults of a meter."""

    rank: int = 60
    covers: Mapping[str, str] = MappingProxyType({})
    sums: tuple[tuple[frozenset[str], str], ...] = ()

    @property
    def steps_w(self) -> Mapping[str, float]:
        """None is known."""
        return {}

    @property
    def doubts(self) -> tuple[str, ...]:
        """None."""
        return ()

    def close(self) -> None:
        """It holds nothing."""


class BoardLike(Protocol):
    """What meters want to know of a board; `detect.Board` has it."""

    @property
    def name(self) -> str:
        """The board in words."""

    @property
    def profile_name(self) -> str | None:
        """Its profile, if there is one."""

    @property
    def soc(self) -> str:
        """Its processor."""

    @property
    def release(self) -> str:
        """The vendor's release."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A meter, or a part of one, that could be there and is not."""

    meter: str
    what: str
    remedy: str
    """What to do for it; empty where nothing helps."""

    def __str__(self) -> str:
        return f"{self.meter}: {self.what}" + (f": {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Found:
    """What was found on a board."""

    meters: tuple[Meter, ...] = ()
    missing: tuple[Missing, ...] = ()


Opener = Callable[[Sysfs, BoardLike, MeterSettings], Found]
OPENERS: Registry[Opener] = Registry("edged.meters", "governors.meters", "meter")


def opener(name: str) -> Callable[[Opener], Opener]:
    """Register the function that looks for a meter."""

    def register(function: Opener) -> Opener:
        OPENERS.register(name, function, function.__module__)
        return function

    return register


def survey(sysfs: Sysfs, board: BoardLike, settings: MeterSettings | None = None) -> Found:
    """Every meter of the board, and what is missing."""
    OPENERS.load()
    asked = settings or MeterSettings()
    found = [OPENERS[name](sysfs, board, asked) for name in sorted(OPENERS)]
    meters = tuple(meter for part in found for meter in part.meters)
    missing = [missing for part in found for missing in part.missing]
    missing += [Missing(f.name, str(f), "see edged plugins") for f in OPENERS.failures.values()]
    return Found(meters, tuple(missing))


def open_meters(
    sysfs: Sysfs, board: BoardLike, settings: MeterSettings | None = None
) -> list[Meter]:
    """Every meter of the board."""
    return list(survey(sysfs, board, settings).meters)


WATTS_MAX = 10_000.0
"""No board that this runs on draws more: what reads more is garbled."""
INTEGER_MAX = 1 << 63


def failed(rail: Rail, at_us: int, problem: object) -> Reading:
    """A reading that is none."""
    return Reading(rail, at_us, None, None, str(problem) or "not read")


def told(rail: Rail, at_us: int, watts: float) -> Reading:
    """A reading of watts, unless they cannot be."""
    if abs(watts) <= WATTS_MAX:
        return Reading(rail, at_us, watts, None)
    return failed(rail, at_us, f"{watts:g} W cannot be")


def read_integer(sysfs: Sysfs, path: str) -> int:
    """An integer as the kernel has them, of 64 bits.  Raises SysfsError."""
    value = sysfs.read_int(path)
    if abs(value) > INTEGER_MAX:
        raise KernelRefused(path, OSError(errno.EINVAL, "holds more than 64 bits"))
    return value


def get_integer(sysfs: Sysfs, path: str) -> int | None:
    """The same, or None where there is none."""
    try:
        return read_integer(sysfs, path)
    except SysfsError:
        return None
