"""Temperatures, throttling and GPU load of a board (docs/hardware.md 1.2, 1.5, 1.8, 1.10).

    thermal zones      name, °C, the lowest trip point of each kind
    throttling         by cause: whether it acts now, whether it has acted since boot, how often
    GPU load           share of time, 0 to 1: devfreq's device, or NVML

What a board does not have is absent; what cannot be read now (a zone whose part is powered off) is
None.  Reads are a few dozen small files; the caller decides how often (`look`), and nothing is read
in between: counters of events count since boot, so none is missed.

Causes of throttling

    under_voltage, over_current_average, over_current_peak   Jetson: events of soctherm
    core_thermal, package_thermal                            x86: events, all cores and packages
    under_voltage, frequency_capped, throttled, soft_temperature   Raspberry Pi: now and since boot
    cooling:KIND                                             a cooling device that is no fan
    clock_below_limit                                        a CPU clock below its lower limit
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from governors.actuators.base import Knob
from governors.meters.nvml import gpu_loads, tegra_gpu
from governors.sysfs import CPU, DEVFREQ, Sysfs
from governors.vcgencmd import FirmwareError, Vcgencmd

THERMAL = "/sys/class/thermal"
FAKE_ZONES = ("PMIC-Die",)
"""Always read 50 or 100 °C (hardware.md 1.5)."""
MILLI_C = (-40_000, 150_000)
"""Plausible temperatures."""
LOOK_US = 2_000_000
"""Younger figures are not read again."""
FIND_US = 60_000_000
"""Interval of looking for new files: a GPU may appear late."""
ASK_US = 10_000_000
"""Interval of asking a Raspberry Pi's firmware, which takes a process."""
SOCTHERM = "/sys/devices/platform/soctherm-oc-event/hwmon/hwmon*/oc?_event_cnt"
OVER_CURRENT = {
    "oc1": "under_voltage", "oc2": "over_current_average", "oc3": "over_current_peak",
}  # fmt: skip
FIRMWARE = "/sys/devices/platform/soc*/soc*:firmware/get_throttled"
PI_BITS = ("under_voltage", "frequency_capped", "throttled", "soft_temperature")
"""Bits 0 to 3 say what acts now, bits 16 to 19 what has acted since boot."""
BELOW = 0.98
"""A clock below this part of its lower limit is throttled."""
FAN = "fan"
FAN_TRIP = "active"
"""Kind of the trip points that start a fan."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A thermal zone."""

    name: str
    celsius: float | None
    """None: cannot be read now."""
    trips: tuple[tuple[str, float], ...]
    """Kind (passive, hot, critical) and the lowest °C of that kind."""


@dataclass(frozen=True, slots=True)
class Throttling:
    """A cause of throttling; None where the board does not tell."""

    cause: str
    now: bool | None = None
    since_boot: bool | None = None
    events: int | None = None
    """Since boot."""
    seen_s: float | None = None
    """Time for which it was seen at work; None where the board does not tell.  It counts from one
    look to the next where both find it at work."""


@dataclass(frozen=True, slots=True)
class Health:
    """All figures of one look."""

    zones: tuple[Zone, ...] = ()
    throttling: tuple[Throttling, ...] = ()
    gpu_load: tuple[tuple[str, float | None], ...] = ()
    """Name and load; None: cannot be read now."""

    @property
    def hottest(self) -> Zone | None:
        """The zone with the highest temperature."""
        known = [zone for zone in self.zones if zone.celsius is not None]
        return max(known, key=lambda zone: zone.celsius or 0.0, default=None)


class HealthReader:
    """Reads one board's figures when it is asked.  One thread."""

    def __init__(self, sysfs: Sysfs, knobs: Sequence[Knob], simulated: bool) -> None:
        self._sysfs, self._simulated = sysfs, simulated
        self._clocks = [k for k in knobs if k.kind == "cpu" and k.min_path and k.current_path]
        self._looked: tuple[int, Health] | None = None
        self._seen_us: dict[str, int] = {}
        """Time for which each cause was seen at work."""
        self._found_us: int | None = None
        self._zones: list[tuple[str, str, tuple[tuple[str, float], ...]]] = []
        """Directory, name and trip points."""
        self._events: dict[str, list[str]] = {}
        self._cooling: dict[str, list[str]] = {}
        self._bits: str | None = None
        self._gpus: list[tuple[str, Callable[[], float | None]]] = []
        self._firmware = None if simulated else Vcgencmd.find(sysfs)
        self._pi: tuple[int, list[Throttling]] | None = None

    def look(self, now_us: int) -> Health:
        """The figures at `now_us` (monotonic), at most LOOK_US old."""
        if self._looked is not None and now_us - self._looked[0] < LOOK_US:
            return self._looked[1]
        if self._found_us is None or now_us - self._found_us >= FIND_US:
            self._find()
            self._found_us = now_us
        health = Health(
            tuple(Zone(name, celsius(self._sysfs, at), trips) for at, name, trips in self._zones),
            tuple(self._seen(now_us)),
            tuple((name, load()) for name, load in self._gpus),
        )
        self._looked = (now_us, health)
        return health

    # files -------------------------------------------------------------------------------------

    def _find(self) -> None:
        sysfs = self._sysfs
        self._zones = [(at, name, throttling_trips(sysfs, at)) for at, name in zones(sysfs)]
        self._gpus = list(devfreq_gpus(sysfs))
        if not self._simulated and not tegra_gpu(sysfs):
            self._gpus += gpu_loads(sysfs)
        self._events = {**_over_current(sysfs), **_thermal_events(sysfs)}
        self._cooling = _cooling(sysfs)
        self._bits = next(sysfs.glob(FIRMWARE), None)

    def _seen(self, now_us: int) -> Iterator[Throttling]:
        """All causes, with the time for which they were seen at work."""
        past_us, past = self._looked or (now_us, Health())
        before = {found.cause for found in past.throttling if found.now}
        for found in self._throttling(now_us):
            if found.now is None:
                yield found
                continue
            if found.now and found.cause in before:
                seen_us = self._seen_us.get(found.cause, 0) + now_us - past_us
                self._seen_us[found.cause] = seen_us
            yield replace(found, seen_s=self._seen_us.get(found.cause, 0) / 1e6)

    def _throttling(self, now_us: int) -> Iterator[Throttling]:
        for cause, paths in self._events.items():
            yield _counted(self._sysfs, cause, paths)
        for cause, paths in self._cooling.items():
            yield _cooled(self._sysfs, cause, paths)
        if self._clocks:
            yield _slowed(self._sysfs, self._clocks)
        yield from self._pi_bits(now_us)

    def _pi_bits(self, now_us: int) -> list[Throttling]:
        if self._bits is not None:
            return pi_throttling(f"throttled={self._sysfs.get(self._bits) or ''}")
        if self._firmware is None:
            return []
        if self._pi is None or now_us - self._pi[0] >= ASK_US:
            try:
                told = self._firmware.ask("get_throttled")
            except FirmwareError:
                told = ""
            self._pi = (now_us, pi_throttling(told))
        return self._pi[1]


def zones(sysfs: Sysfs) -> Iterator[tuple[str, str]]:
    """Directory and name of each zone that measures something.  A name that several zones share
    gets the number of its zone."""
    names = [name for name in sysfs.list(THERMAL) if re.fullmatch(r"thermal_zone\d+", name)]
    kinds = {name: sysfs.get(f"{THERMAL}/{name}/type") for name in names}
    for name in sorted(names, key=lambda name: int(name[12:])):
        kind = kinds[name]
        if kind and kind not in FAKE_ZONES:
            alone = list(kinds.values()).count(kind) == 1
            shown = kind if alone else f"{kind}.{name[12:]}"
            yield f"{THERMAL}/{name}", shown


def celsius(sysfs: Sysfs, zone: str) -> float | None:
    """Temperature of a zone, by its directory; None where it cannot be read or is implausible."""
    milli_c = sysfs.get_int(f"{zone}/temp")
    plausible = milli_c is not None and MILLI_C[0] < milli_c < MILLI_C[1]
    return milli_c / 1000 if milli_c is not None and plausible else None


def trip_points(sysfs: Sysfs, at: str) -> tuple[tuple[str, float], ...]:
    """The lowest trip point of each kind of a zone, by its directory, in °C."""
    lowest: dict[str, float] = {}
    for number in range(16):
        kind = sysfs.get(f"{at}/trip_point_{number}_type")
        if kind is None:
            break
        milli_c = sysfs.get_int(f"{at}/trip_point_{number}_temp")
        if milli_c is not None and 0 < milli_c < MILLI_C[1]:
            lowest[kind] = min(lowest.get(kind, milli_c / 1000), milli_c / 1000)
    return tuple(sorted(lowest.items()))


def throttling_trips(sysfs: Sysfs, at: str) -> tuple[tuple[str, float], ...]:
    """Those at which something slows down or ends: without the ones that start a fan."""
    return tuple((kind, c) for kind, c in trip_points(sysfs, at) if kind != FAN_TRIP)


def devfreq_gpus(sysfs: Sysfs) -> Iterator[tuple[str, Callable[[], float | None]]]:
    """GPUs whose devfreq device tells its load.  The read leaves a powered-off GPU off."""
    for node in sysfs.list(DEVFREQ):
        at = f"{DEVFREQ}/{node}/device"
        name = sysfs.get(f"{at}/of_node/name") or node
        if ("gpu" in name or name.startswith(("gv11b", "gp10b", "ga10b", "gb10b"))) and (
            sysfs.exists(f"{at}/load")
        ):
            yield node, partial(_load, sysfs, f"{at}/load")


def _load(sysfs: Sysfs, path: str) -> float | None:
    per_mille = sysfs.get_int(path)
    return per_mille / 1000 if per_mille is not None and 0 <= per_mille <= 1000 else None


def _over_current(sysfs: Sysfs) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sysfs.glob(SOCTHERM):
        cause = OVER_CURRENT.get(path.rpartition("/")[2][:3])
        if cause:
            found.setdefault(cause, []).append(path)
    return found


def _thermal_events(sysfs: Sysfs) -> dict[str, list[str]]:
    """x86: files by cause; one of each core, and one of each package."""
    cores: dict[object, str] = {}
    packages: dict[object, str] = {}
    for path in sysfs.glob(f"{CPU}/cpu[0-9]*/thermal_throttle"):
        topology = f"{path.rpartition('/')[0]}/topology"
        package = sysfs.get_int(f"{topology}/physical_package_id")
        core = sysfs.get_int(f"{topology}/core_id")
        cores.setdefault((package, path if core is None else core), f"{path}/core_throttle_count")
        packages.setdefault(package, f"{path}/package_throttle_count")
    found = {"core_thermal": [*cores.values()], "package_thermal": [*packages.values()]}
    return {cause: paths for cause, paths in found.items() if paths}


def _counted(sysfs: Sysfs, cause: str, paths: Sequence[str]) -> Throttling:
    counts = [sysfs.get_int(path) for path in paths]
    known = [count for count in counts if count is not None and count >= 0]
    events = sum(known) if known else None
    return Throttling(cause, None, None if events is None else events > 0, events)


def _cooling(sysfs: Sysfs) -> dict[str, list[str]]:
    """Files of cooling devices that slow something down, by cause."""
    found: dict[str, list[str]] = {}
    for name in sysfs.list(THERMAL):
        at = f"{THERMAL}/{name}"
        kind = sysfs.get(f"{at}/type") if name.startswith("cooling_device") else None
        if kind and FAN not in kind.lower():
            found.setdefault(f"cooling:{kind}", []).append(f"{at}/cur_state")
    return found


def _cooled(sysfs: Sysfs, cause: str, paths: Sequence[str]) -> Throttling:
    states = [state for path in paths if (state := sysfs.get_int(path)) is not None]
    return Throttling(cause, any(state > 0 for state in states) if states else None)


def _slowed(sysfs: Sysfs, knobs: Sequence[Knob]) -> Throttling:
    """Whether a clock is below its lower limit, which the kernel was asked to keep."""
    pairs = ((sysfs.get_int(k.min_path), sysfs.get_int(k.current_path)) for k in knobs)
    known = [now < BELOW * low for low, now in pairs if low and now]
    return Throttling("clock_below_limit", any(known) if known else None)


def pi_throttling(text: str) -> list[Throttling]:
    """The causes of `throttled=0x50005`; empty where the text is no such answer."""
    found = re.fullmatch(r"\s*throttled=(?:0x)?([0-9a-fA-F]{1,8})\s*", text)
    if not found:
        return []
    bits = int(found[1], 16)
    return [
        Throttling(cause, bool(bits >> at & 1), bool(bits >> (16 + at) & 1))
        for at, cause in enumerate(PI_BITS)
    ]
