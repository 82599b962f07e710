"""Settings of a board: knobs (clocks with limits) and switches (files with a few values).

A knob is one clock domain.  Its minimum and maximum are two files, and the kernel requires min <=
max at every write (docs/hardware.md): to go up, the maximum is written first; to go down, the
minimum.  Pinning is min = max, which works under every governor.  Where one clock has several
policies (tegra194 on old kernels) all of them are written.  A cap (memory clock, NVML) is a knob
without a minimum.

Modules of this package register discovery functions with `finder`. The helper computes its
allow-list from the same findings as the daemon its knobs (`permits`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

from governors.detect import DetectedBoard
from governors.errors import ActuatorError
from governors.sysfs import Sysfs, SysfsError

DIGITS_MAX = 12
"""Digits of a clock in Hz at most."""


@dataclass(frozen=True, slots=True)
class ClockLimits:
    """Lowest and highest clock."""

    min_hz: int
    max_hz: int

    def clip(self, hz: int) -> int:
        """The nearest clock inside."""
        return min(max(hz, self.min_hz), self.max_hz)

    def __str__(self) -> str:
        return f"{self.min_hz / 1e6:g} to {self.max_hz / 1e6:g} MHz"


@dataclass(frozen=True, slots=True)
class Knob:
    """A clock domain with limits.  Paths have the form of a real board."""

    name: str
    """cpu.policy0, gpu, emc."""
    kind: str
    """cpu, gpu or memory."""
    unit_hz: int
    """Unit of the files: 1000 for kHz, 1 for Hz."""
    min_path: str
    """Empty for a cap, which has only a maximum."""
    max_path: str
    current_path: str
    """Empty where the clock cannot be read."""
    table_hz: tuple[int, ...]
    """Ascending; empty where the range is continuous."""
    floor_hz: int
    ceiling_hz: int
    """Range of the hardware."""
    cores: tuple[int, ...] = ()
    also: tuple[tuple[str, str], ...] = ()
    """(min, max) files of further policies of the same clock, written alike."""
    uncapped: str = ""
    """Content of a cap's file without a cap."""
    optional: bool = False
    """Set only where the configuration asks for it."""

    def files(self) -> dict[str, str]:
        """Path by part (`min`, `max`, `min1`, `max1`, ...)."""
        pairs = [(self.min_path, self.max_path), *self.also]
        named = ((f"{part}{n or ''}", path) for n, pair in enumerate(pairs)
                 for part, path in zip(("min", "max"), pair, strict=True))  # fmt: skip
        return {part: path for part, path in named if path}

    def snap(self, hz: int, within: ClockLimits) -> int:
        """The nearest clock of the hardware inside `within`, the higher of two."""
        clipped = ClockLimits(self.floor_hz, self.ceiling_hz).clip(within.clip(hz))
        inside = [entry for entry in self.table_hz if within.min_hz <= entry <= within.max_hz]
        if not inside:
            return clipped // self.unit_hz * self.unit_hz
        return min(inside, key=lambda entry: (abs(entry - clipped), -entry))

    def text(self, hz: int) -> str:
        """A clock as file content."""
        return str(hz // self.unit_hz)

    def hz(self, text: str) -> int:
        """Inverse of `text`; the ceiling for a cap that is not set.  Raises ActuatorError."""
        if self.uncapped and text == self.uncapped:
            return self.ceiling_hz
        if text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX:
            return int(text) * self.unit_hz
        raise ActuatorError(f"{self.name}: {text[:40]!r} is not a clock; check {self.max_path}")

    def permits(self, text: str) -> bool:
        """Whether an unprivileged client may have this value written."""
        if self.uncapped and text == self.uncapped:
            return True
        if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
            return False
        if text != str(int(text)):
            return False
        hz = int(text) * self.unit_hz
        if self.table_hz:
            return hz in self.table_hz or hz in (self.floor_hz, self.ceiling_hz)
        return self.floor_hz <= hz <= self.ceiling_hz

    def may_hold(self, text: str) -> bool:
        """Whether the file may have held this value before; original limits need not be in the
        table."""
        number = text.isascii() and text.isdecimal() and len(text) <= 12
        return self.permits(text) or (
            number and self.floor_hz <= int(text) * self.unit_hz <= self.ceiling_hz
        )


@dataclass(frozen=True, slots=True)
class Switch:
    """A file with a few values, written only where the configuration asks for it."""

    name: str
    """core.3, gpu.power, gpu.railgate_delay."""
    kind: str
    """core or gpu-power."""
    path: str
    values: tuple[str, ...]

    def files(self) -> dict[str, str]:
        """Path by part, as for a knob."""
        return {"value": self.path}

    def permits(self, text: str) -> bool:
        """Whether an unprivileged client may have this value written."""
        return text in self.values

    def may_hold(self, text: str) -> bool:
        """Whether the file may have held this value before; a delay may be any number."""
        return self.permits(text) or (
            all(value.isdecimal() for value in self.values)
            and len(self.values) > 2
            and text.isascii()
            and text.isdecimal()
            and len(text) <= 6
        )


Setting = Knob | Switch
Finder = Callable[[Sysfs, DetectedBoard], Iterable[Setting]]
FINDERS: list[Finder] = []


def finder(function: Finder) -> Finder:
    """Register a function that finds knobs or switches of a board."""
    FINDERS.append(function)
    return function


def findings(sysfs: Sysfs, board: DetectedBoard) -> list[Setting]:
    """Knobs and switches of the board, by name.  Not cached: a device node may appear late after
    boot (docs/hardware.md)."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
    found: dict[str, Setting] = {}
    for find in FINDERS:
        for setting in find(sysfs, board):
            found.setdefault(setting.name, setting)
    return [found[name] for name in sorted(found)]


def discover(sysfs: Sysfs, board: DetectedBoard) -> list[Knob]:
    """Knobs of the board, by name."""
    return [setting for setting in findings(sysfs, board) if isinstance(setting, Knob)]


def switches(sysfs: Sysfs, board: DetectedBoard) -> list[Switch]:
    """Switches of the board, by name."""
    return [setting for setting in findings(sysfs, board) if isinstance(setting, Switch)]


def limits_now(sysfs: Sysfs, knob: Knob) -> ClockLimits:
    """Current limits of a knob.  Raises ActuatorError where they cannot be read."""
    texts = {}
    for part, path in (("min", knob.min_path), ("max", knob.max_path)):
        if path and not readable(path):
            raise ActuatorError(f"{knob.name}: its setting cannot be read back")
        try:
            texts[part] = sysfs.read(path) if path else knob.text(knob.floor_hz)
        except SysfsError as problem:
            raise ActuatorError(f"{knob.name}: {problem}") from problem
    return ClockLimits(knob.hz(texts["min"]), knob.hz(texts["max"]))


def ordered(wanted: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Parts of a setting in the order that the kernel accepts: a minimum above the current maximum
    follows its maximum."""
    order: list[str] = []
    for part in sorted(wanted, key=lambda part: (part[3:], part.startswith("max"))):
        least = part.replace("max", "min")
        if part != least and least in order and int(wanted[least]) > int(now[part]):
            order.insert(order.index(least), part)
        else:
            order.append(part)
    return order


@dataclass(slots=True)
class WriteCost:
    """Measured cost of writes."""

    count: int = 0
    max_us: float = 0.0
    recent_us: deque[float] = field(default_factory=lambda: deque(maxlen=11))

    @property
    def usual_us(self) -> float:
        """Median of the last eleven, the lower of two.  The median resists outliers, which matters
        because a write that looks too expensive is not done and so not measured again."""
        return sorted(self.recent_us)[(len(self.recent_us) - 1) // 2] if self.recent_us else 0.0

    def note(self, spent_us: float) -> None:
        """Add a measurement."""
        self.count += 1
        self.recent_us.append(spent_us)
        self.max_us = max(self.max_us, spent_us)


SCHEMES: dict[str, ModuleType] = {}
"""Scheme -> module with `write(path, text)` and `refusal(path)`. Settings made by library calls
have paths such as `nvml:GPU-...`, which cannot be read back."""


def readable(path: str) -> bool:
    """Whether the path is a file that can be read."""
    return path.startswith("/")


def put(sysfs: Sysfs, path: str, text: str) -> None:
    """Write a file or a scheme's path.  Raises SysfsError."""
    if readable(path):
        sysfs.write(path, text)
    else:
        SCHEMES[path.partition(":")[0]].write(path, text)


def refusal(sysfs: Sysfs, path: str) -> str:
    """Why this process may not write the path; empty where it may."""
    if not readable(path):
        return str(SCHEMES[path.partition(":")[0]].refusal(path))
    if sysfs.writable(path):
        return ""
    if not sysfs.exists(path):
        return f"{path} does not exist"
    read_only = sysfs.read_only(path)
    return f"{path} is mounted read-only" if read_only else f"no right to write {path}"
