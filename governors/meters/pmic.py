"""PMIC meter: the rails of a Raspberry Pi 5, from `vcgencmd pmic_read_adc` (docs/hardware.md 1.8).

The answer has a line for each current and each voltage:

    VDD_CORE_A current(7)=0.56259000A
    VDD_CORE_V volt(15)=0.76798460V

A rail's power is the product of its two lines.  EXT5V_V, the input, and BATT_V have no current, so
they are no rails.  The sum of the rails is not the power at the plug: USB, the 5 V pins and the
losses of conversion are missing.  Two lines are not read at one moment.

There is no sysfs file, and each reading is a child process (`governors.vcgencmd`), so the interval
is long.
"""

from __future__ import annotations

import re

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
)
from governors.meters.settings import MeterSettings
from governors.sysfs import Sysfs
from governors.vcgencmd import FirmwareError, Vcgencmd

BOARD = "raspberry-pi-5"
INTERVAL_US = 5_000_000
COVERS = "rails of the PMIC; without USB, the 5 V pins and the losses of conversion"
_LINE = re.compile(
    r"\s*(\w{1,32})_([AV])\s+(current|volt)\(\d{1,3}\)=(-?\d{1,6}\.\d{1,12})([AV])\s*", re.A
)
_UNITS = {"A": "current", "V": "volt"}
_FEEDS = {"VDD_CORE": ("cpu",), "DDR_VDD2": ("memory",), "DDR_VDDQ": ("memory",)}
INSTALL = "install it (Raspberry Pi OS: raspi-utils)"
PERMIT = "the group video may use /dev/vcio: sudo usermod -aG video edged"


def parse(text: str) -> dict[str, float]:
    """Watts of each rail that has a current and a voltage.  Lines of another form, also cut ones,
    are skipped."""
    volts: dict[str, float] = {}
    amperes: dict[str, float] = {}
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found and found[2] == found[5] and _UNITS[found[2]] == found[3]:
            (amperes if found[2] == "A" else volts)[found[1]] = float(found[4])
    return {name: amperes[name] * volts[name] for name in amperes if name in volts}


class Pmic(PlainMeter):
    """All rails with current and voltage."""

    name = "pmic"
    rank = 45
    sums = ((frozenset(), COVERS),)
    interval_us = INTERVAL_US
    span_us: int | None = None

    def __init__(self, firmware: Vcgencmd, names: list[str], provenance: Provenance) -> None:
        self.provenance = provenance
        self.rails = tuple(Rail(name, _FEEDS.get(name, ("soc",))) for name in names)
        self._firmware = firmware

    def read(self, now_us: int) -> list[Reading]:
        """Watts of each rail."""
        try:
            watts = parse(self._firmware.ask("pmic_read_adc"))
        except FirmwareError as problem:
            return [failed(rail, now_us, problem) for rail in self.rails]
        return [self._reading(rail, watts.get(rail.name), now_us) for rail in self.rails]

    def _reading(self, rail: Rail, watts: float | None, now_us: int) -> Reading:
        if watts is None:
            return failed(rail, now_us, "not in the answer of vcgencmd pmic_read_adc")
        return power_reading(rail, now_us, watts)


@opener("pmic")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The rails that the PMIC of a Raspberry Pi 5 names now."""
    if board.name != BOARD or settings.provenance is Provenance.SIMULATED:
        return Found()
    firmware = Vcgencmd.find(sysfs)
    if firmware is None:
        return Found(missing=(Missing("pmic", "vcgencmd is not installed", INSTALL),))
    try:
        names = sorted(parse(firmware.ask("pmic_read_adc")))
    except FirmwareError as problem:
        return Found(missing=(Missing("pmic", str(problem), PERMIT),))
    if not names:
        text = "vcgencmd pmic_read_adc names no rail with current and voltage"
        return Found(missing=(Missing("pmic", text, ""),))
    return Found((Pmic(firmware, names, settings.provenance),))
