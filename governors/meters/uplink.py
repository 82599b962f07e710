"""Uplink radio as a meter, modelled from its configuration: no board has a sensor for it.

    joules = watts_up x time that the link is up + joules_per_byte x bytes
             + tail_joules / tail_s x time awake after traffic, at most tail_s after each burst

Bytes and link state come from /sys/class/net/<interface> (`statistics/{rx,tx}_bytes`, `operstate`)
and include all programs.  The time of traffic within an interval is unknown; the middle is assumed,
so a tail is wrong by at most half an interval.
"""

from __future__ import annotations

from governors.energy import Provenance, Rail
from governors.meters.base import (
    COUNTER_SPAN_US,
    BoardLike,
    Found,
    Missing,
    PlainMeter,
    Reading,
    failed,
    opener,
    read_integer,
)
from governors.meters.settings import MeterSettings, RadioSettings
from governors.sysfs import Sysfs, SysfsError

INTERVAL_US = 1_000_000
NET = "/sys/class/net"


class RadioModel:
    """Computes a radio's joules from traffic.  Sans-IO."""

    def __init__(self, radio: RadioSettings) -> None:
        self.joules = 0.0
        self._radio = radio
        self._tail_us = int(radio.tail_s * 1e6)
        self._tail_watts = radio.tail_joules / radio.tail_s if radio.tail_s else 0.0
        self._awake_until_us = 0

    def passed(self, since_us: int, until_us: int, moved_bytes: int, up: bool) -> None:
        """Add an interval in which `moved_bytes` were sent and received."""
        awake_us = max(0, min(until_us, self._awake_until_us) - since_us)
        if moved_bytes:
            middle_us = (since_us + until_us) // 2
            before_us = max(0, min(middle_us, self._awake_until_us) - since_us)
            self._awake_until_us = middle_us + self._tail_us
            awake_us = before_us + min(until_us, self._awake_until_us) - middle_us
        self.joules += awake_us / 1e6 * self._tail_watts
        self.joules += moved_bytes * self._radio.joules_per_byte
        if up:
            self.joules += (until_us - since_us) / 1e6 * self._radio.watts_up


class UplinkMeter(PlainMeter):
    """One interface's radio as a meter."""

    name = "uplink"
    provenance = Provenance.MODELLED
    interval_us = INTERVAL_US

    def __init__(self, sysfs: Sysfs, radio: RadioSettings) -> None:
        self.rails: tuple[Rail, ...] = (Rail(f"radio-{radio.interface}", ("radio",)),)
        self.span_us: int | None = COUNTER_SPAN_US
        self._sysfs, self._place = sysfs, f"{NET}/{radio.interface}"
        self._model = RadioModel(radio)
        self._last: tuple[int, int] | None = None

    def read(self, now_us: int) -> list[Reading]:
        """Joules since the meter was opened."""
        rail = self.rails[0]
        try:
            counted = sum(
                read_integer(self._sysfs, f"{self._place}/statistics/{way}_bytes")
                for way in ("rx", "tx")
            )
            up = self._sysfs.read(f"{self._place}/operstate") in ("up", "unknown")
        except SysfsError as problem:
            return [failed(rail, now_us, problem)]
        before, self._last = self._last, (now_us, counted)
        if before is None:
            return [Reading(rail, now_us, None, self._model.joules, "counted from here on")]
        if counted < before[1]:
            lost = "the interface was recreated: its counters restarted at 0"
            return [Reading(rail, now_us, None, self._model.joules, lost)]
        self._model.passed(before[0], now_us, counted - before[1], up)
        return [Reading(rail, now_us, None, self._model.joules)]


@opener("uplink")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The configured radio."""
    if settings.radio is None:
        what = "the radio's energy is unknown"
        return Found(missing=(Missing("uplink", what, "configure it in [meters.radio]"),))
    return Found((UplinkMeter(sysfs, settings.radio),))
