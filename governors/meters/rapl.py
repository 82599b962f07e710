"""RAPL: energy counters of x86 processors in /sys/class/powercap (µJ; docs/hardware.md).

**Wraps.** A counter wraps at `max_energy_range_uj` (262 kJ for a package: 44 minutes at 100 W). The
meter unwraps it.  Readings further apart than the range at WATTS_MAX may hide a wrap, so the meter
is due at least twice in that time.  A step larger than WATTS_MAX allows is a counter that restarted
(suspend to memory): the reading says so, and the time before it is a gap.

**Frozen counters.** A package always draws power, so a package counter without change for STILL_US
is frozen and its time a gap.  Counters of cores or graphics may stand still for hours.

**Rails.** core and uncore are parts of their package, and every zone is part of psys where that
exists.  A package visible in intel-rapl and intel-rapl-mmio is read once.

**Permissions.** Since kernel 5.10 only root may read the counters (CVE-2020-8694). Unreadable zones
are reported with the udev rule that grants access.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

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
    read_integer,
)
from governors.meters.settings import MeterSettings
from governors.sysfs import POWERCAP, Denied, Sysfs, SysfsError

INTERVAL_US = 1_000_000
WATTS_MAX = 1000.0
"""Upper bound of a zone's power; at this a package's 262 kJ last 262 s."""
SPAN_US_UNKNOWN = 60_000_000
"""Where the range is unreadable a wrap cannot be undone: a counter that fell counts as
restarted."""
SLACK_US = 10_000
"""Counters are updated about every millisecond."""
STILL_US = 100_000
RULE = (
    'SUBSYSTEM=="powercap", KERNEL=="intel-rapl*", '
    'RUN+="/usr/bin/chgrp edged /sys/%p/energy_uj /sys/%p/max_energy_range_uj", '
    'RUN+="/usr/bin/chmod g+r /sys/%p/energy_uj /sys/%p/max_energy_range_uj"'
)
REMEDY = (
    "as root write this line to /etc/udev/rules.d/70-edged-rapl.rules, then run "
    f"`udevadm control --reload` and `udevadm trigger -c add -s powercap`: {RULE}"
)
PACKAGE = ("cpu", "soc")
_FEEDS = {"core": ("cpu",), "uncore": ("soc",), "dram": ("memory",), "psys": ("input",)}


@dataclass(slots=True)
class _Zone:
    rail: Rail
    place: str
    range_uj: int | None
    last_uj: int | None = None
    last_us: int = 0
    total_uj: int = 0

    @property
    def is_top(self) -> bool:
        """Whether it counts at least a package and so never stands still."""
        return self.rail.feeds in (PACKAGE, _FEEDS["psys"])

    def take(self, raw_uj: int, now_us: int) -> str:
        """Add the energy since the previous reading; returns why it is unknown, else an empty
        text."""
        before, since_us = self.last_uj, self.last_us
        self.last_uj, self.last_us = raw_uj, now_us
        if before is None:
            return ""
        more = raw_uj - before
        if more < 0 and self.range_uj is not None:
            more += self.range_uj
        if more < 0:
            return "the counter fell and its range is unreadable: it wrapped or restarted"
        if more > WATTS_MAX * (now_us - since_us + SLACK_US):
            return f"the counter moved by {more / 1e6:.0f} J, more than possible: it restarted"
        if more == 0 and self.is_top and now_us - since_us >= STILL_US:
            return f"frozen: the counter has not changed for {(now_us - since_us) / 1e6:.1f} s"
        self.total_uj += more
        return ""


class Rapl(PlainMeter):
    """All readable zones."""

    name = "rapl"
    rank = 40
    covers = MappingProxyType(
        {"psys": "everything on the platform's sensor, by the maker's wiring"}
    )
    sums = ((frozenset(), "processors and their memory, nothing else of the machine"),)

    def __init__(self, sysfs: Sysfs, zones: list[_Zone], provenance: Provenance) -> None:
        self.provenance = provenance
        self.rails = tuple(zone.rail for zone in zones)
        spans = [int(zone.range_uj / WATTS_MAX) for zone in zones if zone.range_uj is not None]
        self.span_us: int | None = min(spans, default=SPAN_US_UNKNOWN)
        self.interval_us = min(INTERVAL_US, self.span_us // 2)
        self._sysfs, self._zones = sysfs, zones

    def read(self, now_us: int) -> list[Reading]:
        """Joules of each zone since the meter was opened."""
        return [self._read(zone, now_us) for zone in self._zones]

    def _read(self, zone: _Zone, now_us: int) -> Reading:
        try:
            raw_uj = read_integer(self._sysfs, f"{zone.place}/energy_uj")
        except SysfsError as problem:
            return failed(zone.rail, now_us, problem)
        lost = zone.take(raw_uj, now_us)
        return Reading(zone.rail, now_us, None, zone.total_uj / 1e6, lost)


@opener("rapl")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The readable zones."""
    missing: list[Missing] = []
    zones: list[_Zone] = []
    for zone in _named(sysfs):
        try:
            read_integer(sysfs, f"{zone.place}/energy_uj")
            zones.append(zone)
        except Denied:
            text = f"{zone.rail.name}: {zone.place}/energy_uj is readable by root only"
            missing.append(Missing("rapl", text, REMEDY))
        except SysfsError as problem:
            missing.append(Missing("rapl", f"{zone.rail.name}: {problem}", ""))
    if "psys" not in {zone.rail.name for zone in zones}:
        for zone in zones:
            if zone.rail.part_of == "psys":  # which may not be read
                zone.rail = replace(zone.rail, part_of=None)
    meters: tuple[Meter, ...] = (Rapl(sysfs, zones, settings.provenance),) if zones else ()
    return Found(meters, tuple(missing))


def _named(sysfs: Sysfs) -> list[_Zone]:
    """Every zone with its rail: top zones are part of psys, the others of their package."""
    places = [n for n in sysfs.list(POWERCAP) if n.startswith(("intel-rapl:", "intel-rapl-mmio:"))]
    names = {n: sysfs.get(f"{POWERCAP}/{n}/name") or n for n in places}
    psys = "psys" if "psys" in names.values() else None
    zones: dict[str, _Zone] = {}
    for place in sorted(places, key=lambda n: (n.startswith("intel-rapl-mmio"), n)):
        above = names.get(place.rpartition(":")[0]) if place.count(":") > 1 else None
        name = names[place] if above is None else f"{above}/{names[place]}"
        inside = above if names[place] in ("core", "uncore") else psys
        feeds = _FEEDS.get(names[place], PACKAGE)
        rail = Rail(name, feeds, inside if name != "psys" else None)
        where = f"{POWERCAP}/{place}"
        range_uj = get_integer(sysfs, f"{where}/max_energy_range_uj") or 0
        zones.setdefault(name, _Zone(rail, where, range_uj if range_uj > 0 else None))
    return list(zones.values())
