"""Interface of a power meter.

A meter returns one `Reading` per rail each time it is read:

    watts only            current power, or the sensor's average; `totals` integrates trapezoids
    joules                a counter (J) since the meter was opened, unwrapped
    joules and a problem  the counter restarts here: the time since the last reading is a gap
    neither               no reading, `problem` has the reason: a gap, never a zero

A failing sensor never raises.  Watts are as read: an INA3221's offset makes small powers negative,
and only the energy computed from them is clamped.

One module per kind of meter: `@opener("name")` registers a function that looks for it on a board.
`survey` calls all of them, and reports what is missing with its remedy.
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
"""A counter that cannot wrap covers missed readings; after this time without a reading the time
becomes a gap nevertheless."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A rail's figures at one time (monotonic µs); the module lists the four forms."""

    rail: Rail
    at_us: int
    watts: float | None
    joules: float | None
    problem: str = ""


class Meter(Protocol):
    """Reads one kind of sensor of a board."""

    @property
    def name(self) -> str:
        """The module's name, with a suffix where a board has several of the kind."""

    @property
    def provenance(self) -> Provenance:
        """Provenance of all its readings."""

    @property
    def rails(self) -> tuple[Rail, ...]:
        """Rails; every `read` returns a reading for each."""

    @property
    def interval_us(self) -> int:
        """Interval of new values."""

    @property
    def span_us(self) -> int | None:
        """For counters: readings further apart may hide a wrap.  None: it reads watts."""

    @property
    def steps_w(self) -> Mapping[str, float]:
        """Smallest step (W) by rail, for rails whose power depends on every busy core and that are
        new at each read.  Only these are checked for frozen sensors."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons to doubt its readings, as text."""

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
        """One reading per rail.  Never raises on a failing sensor."""

    def close(self) -> None:
        """Release resources."""


class PlainMeter:
    """Defaults of the optional members of `Meter`."""

    rank: int = 60
    covers: Mapping[str, str] = MappingProxyType({})
    sums: tuple[tuple[frozenset[str], str], ...] = ()

    @property
    def steps_w(self) -> Mapping[str, float]:
        """No rail."""
        return {}

    @property
    def doubts(self) -> tuple[str, ...]:
        """None."""
        return ()

    def close(self) -> None:
        """Nothing to release."""


class BoardLike(Protocol):
    """What meters need of a board; `detect.DetectedBoard` implements it."""

    @property
    def name(self) -> str:
        """Name of the board."""

    @property
    def profile_name(self) -> str | None:
        """Name of its profile, if there is one."""

    @property
    def soc(self) -> str:
        """Its processor."""

    @property
    def release(self) -> str:
        """Release of the vendor's system."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A meter, or part of one, that is not available."""

    meter: str
    what: str
    remedy: str
    """What makes it available; empty where nothing does."""

    def __str__(self) -> str:
        return f"{self.meter}: {self.what}" + (f": {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Found:
    """Meters of a board, and what is missing."""

    meters: tuple[Meter, ...] = ()
    missing: tuple[Missing, ...] = ()


Opener = Callable[[Sysfs, BoardLike, MeterSettings], Found]
OPENERS: Registry[Opener] = Registry("edged.meters", "governors.meters", "meter")


def opener(name: str) -> Callable[[Opener], Opener]:
    """Decorator: register a function that looks for a meter."""

    def register(function: Opener) -> Opener:
        OPENERS.register(name, function, function.__module__)
        return function

    return register


def survey(sysfs: Sysfs, board: BoardLike, settings: MeterSettings | None = None) -> Found:
    """All meters of the board, and what is missing."""
    OPENERS.load()
    asked = settings or MeterSettings()
    found = [OPENERS[name](sysfs, board, asked) for name in sorted(OPENERS)]
    meters = tuple(meter for part in found for meter in part.meters)
    missing = [missing for part in found for missing in part.missing]
    missing += [Missing(f.name, str(f), "see edged plugins") for f in OPENERS.failures.values()]
    return Found(meters, tuple(missing))


WATTS_MAX = 10_000.0
"""Upper bound of a board's power; a higher value is garbled."""
INTEGER_MAX = 1 << 63


def failed(rail: Rail, at_us: int, problem: object) -> Reading:
    """A reading without figures."""
    return Reading(rail, at_us, None, None, str(problem) or "not read")


def power_reading(rail: Rail, at_us: int, watts: float) -> Reading:
    """A reading of watts; a failed one beyond WATTS_MAX."""
    if abs(watts) <= WATTS_MAX:
        return Reading(rail, at_us, watts, None)
    return failed(rail, at_us, f"{watts:g} W is impossible")


def read_integer(sysfs: Sysfs, path: str) -> int:
    """A 64-bit integer.  Raises SysfsError."""
    value = sysfs.read_int(path)
    if abs(value) > INTEGER_MAX:
        raise KernelRefused(path, OSError(errno.EINVAL, "holds more than 64 bits"))
    return value


def get_integer(sysfs: Sysfs, path: str) -> int | None:
    """A 64-bit integer, or None where it cannot be read."""
    try:
        return read_integer(sysfs, path)
    except SysfsError:
        return None
