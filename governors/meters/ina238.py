"""INA238: monitor of a whole carrier board (AGX Thor, `VIN`), through its hwmon driver.

`/sys/class/hwmon/hwmonN/` with `name` ina238 and `power1_input` in µW (docs/hardware.md). N changes
between boots; the chip is searched for again when its files are gone.
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
    power_reading,
    read_integer,
)
from governors.meters.rail_labels import COVERS, SUMS, rail
from governors.meters.settings import MeterSettings
from governors.sysfs import Absent, Denied, Sysfs, SysfsError

RAIL = "VIN"
INTERVAL_US = 500_000
"""As for INA3221."""
STEP_W = 0.02
"""4 W divided by the shunt in µΩ (drivers/hwmon/ina238.c). The driver does not report the shunt;
200 µΩ is the smallest plausible for a whole board."""


def chips(sysfs: Sysfs) -> list[str]:
    """Directories of INA238 chips."""
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
        """VIN includes every core."""
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
        return [power_reading(self.rails[0], now_us, watts)]

    def _watts(self) -> float:
        return read_integer(self._sysfs, f"{self._place}/power1_input") / 1e6


@opener("ina238")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The first chip; no known board has two."""
    for place in chips(sysfs):
        try:
            sysfs.read(f"{place}/power1_input")
        except Denied as problem:
            return Found(missing=(Missing("ina238", str(problem), "make it readable"),))
        except SysfsError:
            pass
        return Found((Ina238(sysfs, place, settings.provenance),))
    return Found()
