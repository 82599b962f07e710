"""INA3221: three-channel power monitors of Jetson boards, through either of two drivers.

hwmon (JetPack 5 and later), `/sys/bus/i2c/drivers/ina3221/<bus>-<addr>/hwmon/hwmonN/`, channels
from 1: `inN_label`, `inN_enable`, `inN_input` mV, `currN_input` mA; power is their product, from
two reads.  in4 to in6 are shunt voltages in µV and in7 is their sum; they are not read.  N of
hwmonN changes between boots and when the driver is rebound.

iio (JetPack 4, driver ina3221x), `.../ina3221x/<bus>-<addr>/iio:device*/`, channels from 0:
`rail_name_N`, and `ui_input_N`, "mV mA" of one conversion; where that is missing, `in_powerN_input`
mW. Each read makes one unaveraged conversion and returns EAGAIN after ten polls.  That reading is a
gap; the next is made when it is due, without a retry.

A channel is skipped as unconnected if it is disabled, has no name, is named NC, or returns EIO or
ENODATA when the meter is opened.  Sources: docs/hardware.md; kernel
Documentation/hwmon/ina3221.rst; drivers/staging/iio/meter/ina3221.c of linux-tegra-4.9.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field

from governors.energy import Provenance, Rail
from governors.meters.base import (
    BoardLike,
    Found,
    Meter,
    Missing,
    PlainMeter,
    Reading,
    failed,
    get_integer,
    opener,
    power_reading,
    read_integer,
)
from governors.meters.rail_labels import COVERS, SUMS, rail
from governors.meters.settings import MeterSettings
from governors.sysfs import INA3221_SHUNT_STEP_UV, Absent, Denied, KernelRefused, Sysfs, SysfsError

INTERVAL_US_MIN = 500_000
"""Chips can refresh every few ms, but watts over seconds are enough and each read wakes a core."""
SHUNT_MICRO_OHM = 5000
BUS_MILLIVOLTS = 5000
INTERVAL_US_MAX = 60_000_000
"""1024 samples of three channels at 2 x 8.2 ms take 50 s; a longer interval is a garbled value."""
DOUBT_READINGS = 3
"""Consecutive readings with parts above their whole before a doubt is reported.  Channels are read
one after another, so a single one may be a load change between two reads."""
DOUBT_WATTS = 0.1
"""Tolerance of that comparison: two steps of 39 mW (5 mΩ shunt, 8 mV, 40 µV)."""


def _step_w(micro_ohm: int, millivolts: int) -> float:
    """Watts of one step of the shunt voltage; typical values replace a reported 0."""
    shunt = micro_ohm if micro_ohm > 0 else SHUNT_MICRO_OHM
    return INA3221_SHUNT_STEP_UV / shunt * (millivolts if millivolts > 0 else BUS_MILLIVOLTS) / 1e3


class HwmonChip:
    """A chip under the driver of kernels since 5.4."""

    DRIVER = "/sys/bus/i2c/drivers/ina3221"
    CHANNELS = (1, 2, 3)

    def __init__(self, sysfs: Sysfs, address: str) -> None:
        self.address, self._sysfs = address, sysfs
        self.find()

    def find(self) -> None:
        """Locate hwmonN."""
        here = f"{self.DRIVER}/{self.address}/hwmon"
        names = [n for n in self._sysfs.list(here) if n.startswith("hwmon")]
        self.place = f"{here}/{names[0]}" if names else here

    def labels(self) -> dict[int, str]:
        """Names of the enabled channels."""
        named = {}
        for n in self.CHANNELS:
            if self._sysfs.get_int(f"{self.place}/in{n}_enable") != 0:
                named[n] = self._sysfs.get(f"{self.place}/in{n}_label") or ""
        return named

    def watts(self, channel: int) -> float:
        """Power from two reads; the current, which changes faster, is read last."""
        millivolts = read_integer(self._sysfs, f"{self.place}/in{channel}_input")
        return millivolts * read_integer(self._sysfs, f"{self.place}/curr{channel}_input") / 1e6

    def step_w(self, channel: int) -> float:
        """Smallest step of its power: one step of the shunt voltage at the current bus voltage."""
        micro_ohm = get_integer(self._sysfs, f"{self.place}/shunt{channel}_resistor") or 0
        millivolts = get_integer(self._sysfs, f"{self.place}/in{channel}_input") or 0
        return _step_w(micro_ohm, millivolts)

    def refresh_us(self) -> int:
        """Refresh interval of the chip; 0 where it is not reported."""
        return 1000 * (get_integer(self._sysfs, f"{self.place}/update_interval") or 0)


class IioChip:
    """A chip under NVIDIA's driver of JetPack 4."""

    DRIVER = "/sys/bus/i2c/drivers/ina3221x"
    CHANNELS = (0, 1, 2)

    def __init__(self, sysfs: Sysfs, address: str) -> None:
        self.address, self._sysfs = address, sysfs
        self.find()

    def find(self) -> None:
        """Locate the device; old images have only an alias."""
        here = f"{self.DRIVER}/{self.address}"
        names = self._sysfs.list(here)
        found = [n for n in names if n.startswith("iio:device")] or [
            n for n in names if n == "iio_device"
        ]
        self.place = f"{here}/{found[0]}" if found else f"{here}/iio:device"

    def labels(self) -> dict[int, str]:
        """Names of the channels."""
        names = {n: self._sysfs.get(f"{self.place}/rail_name_{n}") for n in self.CHANNELS}
        return {n: name for n, name in names.items() if name is not None}

    def watts(self, channel: int) -> float:
        """Power from one conversion where the driver supports it."""
        path = f"{self.place}/ui_input_{channel}"
        try:
            text = self._sysfs.read(path)
        except Absent:
            return read_integer(self._sysfs, f"{self.place}/in_power{channel}_input") / 1e3
        try:
            millivolts, milliamperes = (int(word) for word in text.split())
        except ValueError:
            raise KernelRefused(
                path, OSError(errno.EINVAL, f"holds {text[:40]!r}, not two integers")
            ) from None
        return millivolts * milliamperes / 1e6

    def step_w(self, channel: int) -> float:
        """For the shunt of NVIDIA's boards; the driver does not report it."""
        return _step_w(SHUNT_MICRO_OHM, BUS_MILLIVOLTS)

    def refresh_us(self) -> int:
        """0: each read makes a conversion."""
        return 0


@dataclass(frozen=True, slots=True)
class _Channel:
    chip: HwmonChip | IioChip
    number: int
    rail: Rail


@dataclass
class Ina3221(PlainMeter):
    """All chips of a board as one meter."""

    channels: list[_Channel]
    provenance: Provenance
    interval_us: int
    name: str = "ina3221"
    rank = 30
    covers = COVERS
    sums = SUMS
    span_us: int | None = None
    _suspicions: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By the whole's name: consecutive readings with larger parts, and the last as text."""

    @property
    def rails(self) -> tuple[Rail, ...]:
        """In the order of chips and channels."""
        return tuple(c.rail for c in self.channels)

    @property
    def steps_w(self) -> dict[str, float]:
        """Steps of rails that feed cores; a GPU's reading may be constant for hours."""
        rails = [c for c in self.channels if {"cpu", "input"} & set(c.rail.feeds)]
        return {c.rail.name: c.chip.step_w(c.number) for c in rails}

    @property
    def doubts(self) -> tuple[str, ...]:
        """Wholes that are less than their parts."""
        return tuple(text for n, text in self._suspicions.values() if n >= DOUBT_READINGS)

    def read(self, now_us: int) -> list[Reading]:
        """One reading per channel.  A chip whose files are gone is located again once."""
        readings = [self._read(c, now_us) for c in self.channels]
        self._suspect(readings)
        return readings

    def _read(self, channel: _Channel, now_us: int) -> Reading:
        chip = channel.chip
        try:
            try:
                watts = chip.watts(channel.number)
            except Absent:
                chip.find()
                watts = chip.watts(channel.number)
        except Absent as problem:
            bind = f"echo {chip.address} > {chip.DRIVER}/bind (as root)"
            return failed(channel.rail, now_us, f"{problem}; the driver is no longer bound: {bind}")
        except SysfsError as problem:
            return failed(channel.rail, now_us, problem)
        return power_reading(channel.rail, now_us, watts)

    def _suspect(self, readings: list[Reading]) -> None:
        """Compare wholes with their parts: a carrier's device tree may name channels wrongly."""
        watts = {r.rail.name: r.watts for r in readings}
        for whole, read in watts.items():
            parts = [r for r in readings if r.rail.part_of == whole and r.watts is not None]
            if read is None or not parts:
                continue
            total = sum(r.watts or 0.0 for r in parts)
            if total <= read + DOUBT_WATTS:
                self._suspicions.pop(whole, None)
                continue
            names = " + ".join(r.rail.name for r in parts)
            text = (
                f"{names} read {total:.2f} W, more than {whole} with {read:.2f} W: the carrier's "
                "device tree may name the channels wrongly; correct them in meters.labels"
            )
            self._suspicions[whole] = (self._suspicions.get(whole, (0, ""))[0] + 1, text)


@opener("ina3221")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The chips that are bound to a driver."""
    chips: list[HwmonChip | IioChip] = []
    for kind in (HwmonChip, IioChip):
        chips += [kind(sysfs, name) for name in sysfs.list(kind.DRIVER) if _is_address(name)]
    named, missing = _labels(chips, settings)
    if not chips and any(sysfs.exists(kind.DRIVER) for kind in (HwmonChip, IioChip)):
        remedy = "echo <bus>-<address> > bind in the driver's directory (as root)"
        missing.append(Missing("ina3221", "the driver is loaded but bound to no chip", remedy))
    if not named:
        return Found((), tuple(missing))
    present = {label for _, _, label in named} | _elsewhere(sysfs)
    channels = [_Channel(chip, n, rail(label, present)) for chip, n, label in named]
    slowest_us = max(chip.refresh_us() for chip in chips)
    interval_us = min(max(INTERVAL_US_MIN, slowest_us), INTERVAL_US_MAX)
    meter: Meter = Ina3221(channels, settings.provenance, interval_us)
    return Found((meter,), tuple(missing))


def _is_address(name: str) -> bool:
    """Whether a name is `<bus>-<address>` (i2c): 1-0040."""
    bus, _, address = name.partition("-")
    return bus.isdecimal() and len(address) == 4 and all(c in "0123456789abcdef" for c in address)


def _elsewhere(sysfs: Sysfs) -> set[str]:
    """Rails of other chips that may include rails of this one."""
    from governors.meters.ina238 import RAIL, chips

    return {RAIL} if chips(sysfs) else set()


def _labels(
    chips: list[HwmonChip | IioChip], settings: MeterSettings
) -> tuple[list[tuple[HwmonChip | IioChip, int, str]], list[Missing]]:
    """Connected channels with their configured names, made unique."""
    named: list[tuple[HwmonChip | IioChip, int, str]] = []
    missing: list[Missing] = []
    for chip in chips:
        for n, said in chip.labels().items():
            label = settings.labels.get(f"{chip.address}/{n}", said).strip()
            if label in ("", "NC"):
                continue
            try:
                chip.watts(n)
            except Denied as problem:
                missing.append(Missing("ina3221", f"{label}: {problem}", "make it readable"))
                continue
            except KernelRefused:
                continue
            except SysfsError:
                pass  # EAGAIN, or just unbound: the meter reports it
            taken = any(label == other for _, _, other in named)
            named.append((chip, n, f"{label}@{chip.address}/{n}" if taken else label))
    return named, missing
