"""`ups`: the output power that a UPS's driver writes to /run/ups/output_mw, in milliwatts."""

from __future__ import annotations

from edged.plugin import (
    BoardLike,
    Found,
    MeterSettings,
    PlainMeter,
    Provenance,
    Rail,
    Reading,
    Sysfs,
    SysfsError,
    opener,
)

PATH = "/run/ups/output_mw"


class Ups(PlainMeter):
    """One rail: all that the board draws."""

    name = "ups"
    provenance = Provenance.MEASURED
    rails = (Rail("UPS", ("input",)),)
    interval_us = 1_000_000
    span_us = None
    covers = {"UPS": "all that is plugged into the UPS"}  # noqa: RUF012

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs

    def read(self, now_us: int) -> list[Reading]:
        """Watts, or why there are none: a gap, never a zero."""
        try:
            watts = self._sysfs.read_int(PATH) / 1000
        except SysfsError as problem:
            return [Reading(self.rails[0], now_us, None, None, str(problem))]
        return [Reading(self.rails[0], now_us, watts, None)]


@opener("ups")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The meter where its file is; nothing elsewhere."""
    return Found((Ups(sysfs),)) if sysfs.get(PATH) is not None else Found()
