"""INA238: the monitor of a whole carrier board (AGX Thor, `VIN`), through its hwmon driver.

`/sys/class/hwmon/hwmonN/` with `name` ina238 and `power1_input` in µW (hardware.md 1.4).  N changes
between boots; the chip is looked for anew when its files are gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from governors.energy import Provenance, Rail
from governors.meters.base import (
    BoardLike,
    Found,
    Missing,
    PlainMeter,
    Reading,
    failed,
    opener,
    read_integer,
    told,
)
from governors.meters.rail_labels import COVERS, SUMS, rail
from governors.meters.settings import MeterSettings
from governors.sysfs import Absent, Denied, Sysfs, SysfsError

RAIL = "VIN"
INTERVAL_US = 500_000
"""As for INA3221: watts over seconds are asked for."""
STEP_W = 0.02
"""4 W over the shunt in µΩ (drivers/hwmon/ina238.c), which the driver does not tell: of 200 µΩ, the
smallest that makes sense in front of a whole board."""


def chips(sysfs: Sysfs) -> list[str]:
    """Directories of such chips."""
    places = [f"/sys/class/hwmon/{name}" for name in sysfs.list("/sys/class/hwmon")]
    return [place for place in places if sysfs.get(f"{place}/name") == "ina238"]


class Ina238(PlainMeter):
    """Reads VIN."""

    name = "ina238"
    rank = 20
    covers = COVERS
    sums = SUMS
    interval_us = INTERVAL_US
    span_us: int | None = None

    def __init__(self, sysfs: Sysfs, place: str, provenance: Provenance) -> None:
        self.provenance = provenance
        self.rails: tuple[Rail, ...] = (rail(RAIL, {RAIL}),)
        self._sysfs, self._place = sysfs, place

    @property
    def steps_w(self) -> Mapping[str, float]:
        """Of the whole board, and so of every core."""
        return {RAIL: STEP_W}

    def read(self, now_us: int) -> list[Reading]:
        """One reading."""
        try:
            try:
                watts = self._watts()
            except Absent:
                self._place = next(iter(chips(self._sysfs)), self._place)
                watts = self._watts()
        except SysfsError as problem:
            return [failed(self.rails[0], now_us, problem)]
        return [told(self.rails[0], now_us, watts)]

    def _watts(self) -> float:
        return read_integer(self._sysfs, f"{self._place}/power1_input") / 1e6


@opener("ina238")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The first such chip; boards with a second one are not known."""
    for place in chips(sysfs):
        try:
            sysfs.read(f"{place}/power1_input")
        except Denied as problem:
            return Found(missing=(Missing("ina238", str(problem), "make it readable"),))
        except SysfsError:
            pass
        return Found((Ina238(sysfs, place, settings.provenance),))
    return Found()
