"""Battery meter: energy that the board draws from its batteries, from /sys/class/power_supply.

Units: µV, µA, µW, µWh and µAh (kernel Documentation/ABI/testing/sysfs-class-power;
docs/hardware.md). The sign of a current differs between drivers, so `status` gives the direction.
A battery's output equals the board's input only while it discharges; at other times the reading is
a gap with that reason.

Joules are the decrease of `energy_now`, or of `charge_now` at the mean of the two voltages (at the
momentary voltage each voltage dip would count as energy). Gauges count in coarse steps (10 mWh are
36 J). A battery with neither file gives watts: `power_now`, or current times voltage.

Entries of USB ports (`ucsi-source-psy-*`, `tcpm-*`) are negotiated contracts, not measurements, and
are skipped.  So is a peripheral's battery (`scope` is Device: a mouse).
"""

from __future__ import annotations

from dataclasses import dataclass

from governors.energy import Provenance, Rail
from governors.meters.base import (
    COUNTER_SPAN_US,
    BoardLike,
    Found,
    PlainMeter,
    Reading,
    failed,
    get_integer,
    opener,
    power_reading,
    read_integer,
)
from governors.meters.settings import MeterSettings
from governors.sysfs import Sysfs, SysfsError

SUPPLIES = "/sys/class/power_supply"
CONTRACTS = ("ucsi-source-psy-", "tcpm-")
INTERVAL_US = 10_000_000
"""No source documents the refresh interval of gauges; their steps take many seconds."""
J_PER_UWH = 3600e-6


@dataclass(frozen=True, slots=True)
class BatteryState:
    """State of a battery; None for values that it does not report."""

    name: str
    status: str
    """Charging, Discharging, Full, Not charging, Unknown."""
    remaining_j: float | None
    full_j: float | None
    capacity: float | None
    """Share of the full charge, 0 to 1."""
    volts: float | None
    watts: float | None
    """Absolute value; in or out."""


def batteries(sysfs: Sysfs) -> list[str]:
    """Names of the batteries that feed the board."""
    found = []
    for name in sysfs.list(SUPPLIES):
        place = f"{SUPPLIES}/{name}"
        is_battery = sysfs.get(f"{place}/type") == "Battery"
        own = sysfs.get(f"{place}/scope") != "Device"
        if is_battery and own and not name.startswith(CONTRACTS):
            found.append(name)
    return found


def state(sysfs: Sysfs, name: str) -> BatteryState:
    """Current state of a battery."""
    place = f"{SUPPLIES}/{name}"

    def micro(key: str) -> float | None:
        value = get_integer(sysfs, f"{place}/{key}")
        return None if value is None else value / 1e6

    volts, percent = micro("voltage_now"), get_integer(sysfs, f"{place}/capacity")
    watts = micro("power_now")
    current = micro("current_now")
    if watts is None and current is not None and volts is not None:
        watts = current * volts
    joules = [_joules(micro(f"energy_{w}"), micro(f"charge_{w}"), volts) for w in ("now", "full")]
    return BatteryState(
        name,
        sysfs.get(f"{place}/status") or "Unknown",
        joules[0],
        joules[1],
        None if percent is None else percent / 100,
        volts,
        None if watts is None else abs(watts),
    )


def _joules(
    watt_hours: float | None, ampere_hours: float | None, volts: float | None
) -> float | None:
    if watt_hours is not None:
        return watt_hours * 3600
    if ampere_hours is not None and volts is not None:
        return ampere_hours * volts * 3600
    return None


@dataclass(slots=True)
class _Gauge:
    """Counts the energy of one battery from reading to reading."""

    sysfs: Sysfs
    place: str
    key: str | None
    """energy_now, charge_now or None."""
    joules: float = 0.0
    last: tuple[int, float] | None = None
    """Gauge (µWh or µAh) and voltage (V) at the previous reading."""

    def take(self) -> str:
        """Add the energy since the previous reading; returns why it is unknown, else an empty text.
        Raises SysfsError."""
        value = read_integer(self.sysfs, f"{self.place}/{self.key}")
        volts = read_integer(self.sysfs, f"{self.place}/voltage_now") / 1e6
        before, self.last = self.last, (value, volts)
        if before is None:
            return "counted from here on"
        used = before[0] - value
        if used < 0:
            return "the gauge rose while discharging: recalibrated by the battery"
        mean_volts = 1.0 if self.key == "energy_now" else (before[1] + volts) / 2
        self.joules += used * mean_volts * J_PER_UWH
        return ""

    def watts(self) -> float:
        """Current power.  Raises SysfsError."""
        if self.sysfs.get_int(f"{self.place}/power_now") is not None:
            return abs(read_integer(self.sysfs, f"{self.place}/power_now")) / 1e6
        microamperes = read_integer(self.sysfs, f"{self.place}/current_now")
        return abs(microamperes) * read_integer(self.sysfs, f"{self.place}/voltage_now") / 1e12


class BatteryMeter(PlainMeter):
    """All batteries of the board as one rail."""

    name = "battery"
    rank = 50  # no figure while charging
    interval_us = INTERVAL_US

    def __init__(self, sysfs: Sysfs, names: list[str], provenance: Provenance) -> None:
        self.provenance = provenance
        self.rails: tuple[Rail, ...] = (Rail(" + ".join(names), ("input",)),)
        self._sysfs = sysfs
        self._gauges = [_gauge(sysfs, f"{SUPPLIES}/{name}") for name in names]
        counted = all(gauge.key for gauge in self._gauges)
        self.span_us: int | None = COUNTER_SPAN_US if counted else None

    def read(self, now_us: int) -> list[Reading]:
        """Joules since the meter was opened, or watts."""
        rail = self.rails[0]
        try:
            statuses = [self._sysfs.read(f"{g.place}/status") for g in self._gauges]
            if "Discharging" not in statuses or "Charging" in statuses:
                for gauge in self._gauges:
                    gauge.last = None
                statuses_text = ", ".join(statuses).lower()
                return [failed(rail, now_us, f"{statuses_text}: the board's input is unknown")]
            giving = [g for g, s in zip(self._gauges, statuses, strict=True) if s == "Discharging"]
            if self.span_us is None:
                return [power_reading(rail, now_us, sum(g.watts() for g in giving))]
            lost = "; ".join(text for g in self._gauges if (text := g.take()))
        except SysfsError as problem:
            return [failed(rail, now_us, problem)]
        return [Reading(rail, now_us, None, sum(g.joules for g in self._gauges), lost)]


def _gauge(sysfs: Sysfs, place: str) -> _Gauge:
    keys = ("energy_now", "charge_now")
    there = [key for key in keys if sysfs.get_int(f"{place}/{key}") is not None]
    return _Gauge(sysfs, place, there[0] if there else None)


@opener("battery")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The batteries that feed the board."""
    names = batteries(sysfs)
    return Found((BatteryMeter(sysfs, names, settings.provenance),)) if names else Found()
