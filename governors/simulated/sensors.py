"""The power sensors of a simulated board: what their chips would hold.

    ina3221    a register a channel, renewed every refresh with the mean over it; bus voltage in
               steps of 8 mV, current in steps of 40 uV over the shunt
    ina3221x   a conversion when it is asked for: the power at one moment since the last conversion
               (the mean since then where noise is off)
    rapl       counters of micro-joules that wrap at max_energy_range_uj

kernel Documentation/hwmon/ina3221.rst; drivers/staging/iio/meter/ina3221.c of linux-tegra-4.9.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from governors.profile import BoardProfile, Channel
from governors.simulated.kernel import SimulatedSysfs
from governors.simulated.layout import RAPL_RANGE_UJ, channel_path

BUS_STEP_MV = 8
SHUNT_STEP_UV = 40


class Sensors:
    """All channels of a board."""

    def __init__(
        self, profile: BoardProfile, sysfs: SimulatedSysfs, watts: Mapping[str, float], now_us: int,
        seed: int, noise: bool,
    ) -> None:  # fmt: skip
        """`watts`: what the rails draw before anything happens."""
        self.joules = dict.fromkeys(watts, 0.0)
        """What each rail took, without any sensor between."""
        self.frozen: set[str] = set()
        """Devices whose registers are no longer renewed."""
        self.gone: set[str] = set()
        """Devices without a driver."""
        self.moved: dict[str, str] = {}
        """Device -> directory, where that is no longer the one it was built with."""
        self.offset_uj: dict[str, int] = {}
        """What RAPL's counters had counted before, by rail."""
        self._profile, self._sysfs, self._noise = profile, sysfs, noise
        self._random = random.Random(seed)
        self._refresh_us = 0
        if profile.sensor.meter == "ina3221":
            self._refresh_us = int((profile.sensor.refresh_ms or 0) * 1000)
        if profile.sensor.meter == "rapl":  # counters go on where a former process left them
            for channel in profile.sensor.channels:
                counted = sysfs.peek_int(f"{self.place(channel)}/energy_uj")
                self.offset_uj[channel.rail] = counted
        self._told = dict(watts)
        self._window = dict.fromkeys(watts, 0.0)
        self._window_us = 0
        self._show()

    def place(self, channel: Channel) -> str:
        """Where the channel's files are now."""
        return self.moved.get(channel.device) or channel_path(self._profile, channel)

    def spend(self, us: int, watts: Mapping[str, float]) -> None:
        """So much time at constant power."""
        while us > 0:
            step = min(us, self._refresh_us - self._window_us) if self._refresh_us else us
            for rail, power in watts.items():
                self.joules[rail] += power * step / 1e6
                self._window[rail] += power * step / 1e6
            self._window_us += step
            us -= step
            if self._refresh_us:
                if self._window_us >= self._refresh_us:
                    self._latch()
            elif self._noise and self._random.random() * self._window_us < step:
                self._told = dict(watts)  # every moment since the last conversion alike

    def renew(self) -> None:
        """Let the files tell what the chips hold."""
        if not self._refresh_us:
            if self._noise:
                self._window = dict.fromkeys(self._window, 0.0)
                self._window_us = 0
            elif self._window_us:
                self._latch()
            self._show()
        elif self._latched:
            self._show()

    def _latch(self) -> None:
        """The mean of the window is what the chip tells until the next one is over."""
        self._told = {rail: j * 1e6 / self._window_us for rail, j in self._window.items()}
        self._window = dict.fromkeys(self._window, 0.0)
        self._window_us = 0
        self._latched = True

    def _show(self) -> None:
        self._latched = False
        for channel in self._profile.sensor.channels:
            if channel.device in self.frozen or channel.device in self.gone:
                continue
            at, n = self.place(channel), channel.index
            if self._profile.sensor.meter == "rapl":
                counted = int(self.joules[channel.rail] * 1e6)
                counted += self.offset_uj.get(channel.rail, 0)
                self._sysfs.store(f"{at}/energy_uj", counted % RAPL_RANGE_UJ)
                continue
            mv, ma = self._convert(channel, self._told[channel.rail])
            if self._profile.sensor.meter == "ina3221x":
                shown = {
                    f"in_voltage{n}_input": mv, f"in_current{n}_input": ma,
                    f"in_power{n}_input": mv * ma // 1000, f"ui_input_{n}": f"{mv} {ma}",
                }  # fmt: skip
            else:
                shunt_uv = ma * (channel.shunt_uohm or 0) // 1000
                shown = {f"in{n}_input": mv, f"curr{n}_input": ma, f"in{n + 3}_input": shunt_uv}
            for name, value in shown.items():
                self._sysfs.store(f"{at}/{name}", value)

    def _convert(self, channel: Channel, watts: float) -> tuple[int, int]:
        """Bus voltage (mV) and current (mA), quantised."""
        if self._noise:
            watts += self._random.gauss(0.0, (self._profile.sensor.noise_mw or 0.0) / 1000)
        mv = round((channel.volts or 0.0) * 1000 / BUS_STEP_MV) * BUS_STEP_MV
        step_ma = SHUNT_STEP_UV * 1000 / (channel.shunt_uohm or 1)
        return mv, round(round(watts * 1e6 / mv / step_ma) * step_ma)
