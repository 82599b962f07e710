"""Power sensors of a simulated board: the contents of their chips' registers.

    ina3221    one register per channel, updated every refresh with the mean over it; bus voltage in
               steps of 8 mV, current in steps of 40 uV over the shunt
    ina3221x   a conversion per read: the power at a random moment since the last conversion
               (the mean since then without noise)
    rapl       counters of micro-joules that wrap at max_energy_range_uj

Sources: kernel Documentation/hwmon/ina3221.rst; drivers/staging/iio/meter/ina3221.c of
linux-tegra-4.9.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from governors.profile import BoardProfile, Channel
from governors.simulated.kernel import SimulatedSysfs
from governors.simulated.layout import RAPL_RANGE_UJ, channel_path
from governors.sysfs import INA3221_SHUNT_STEP_UV

BUS_STEP_MV = 8


class Sensors:
    """All channels of a board."""

    def __init__(
        self, profile: BoardProfile, sysfs: SimulatedSysfs, watts: Mapping[str, float], now_us: int,
        seed: int, noise: bool,
    ) -> None:  # fmt: skip
        """`watts`: initial power of the rails."""
        self.joules = dict.fromkeys(watts, 0.0)
        """Exact joules of each rail."""
        self.frozen: set[str] = set()
        """Devices whose registers are not updated."""
        self.gone: set[str] = set()
        """Devices without a driver."""
        self.moved: dict[str, str] = {}
        """Device -> current directory, where it has changed."""
        self.offset_uj: dict[str, int] = {}
        """Initial values of RAPL's counters, by rail."""
        self._profile, self._sysfs, self._noise = profile, sysfs, noise
        self._random = random.Random(seed)
        self._refresh_us = 0
        if profile.sensor.meter == "ina3221":
            self._refresh_us = int((profile.sensor.refresh_ms or 0) * 1000)
        if profile.sensor.meter == "rapl":  # counters continue from a previous process
            for channel in profile.sensor.channels:
                counted = sysfs.peek_int(f"{self.place(channel)}/energy_uj")
                self.offset_uj[channel.rail] = counted
        self._register_watts = dict(watts)
        self._window = dict.fromkeys(watts, 0.0)
        self._window_us = 0
        self._show()

    def place(self, channel: Channel) -> str:
        """Current directory of a channel's files."""
        return self.moved.get(channel.device) or channel_path(self._profile, channel)

    def spend(self, us: int, watts: Mapping[str, float]) -> None:
        """Advance `us` at constant power."""
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
                self._register_watts = dict(
                    watts
                )  # uniform over the time since the last conversion

    def convert(self) -> None:
        """End a step of the board: what the next conversion shows is of the time from here on.  A
        sensor with a window of its own converts when that ends."""
        if self._refresh_us:
            return
        if self._noise:
            self._window = dict.fromkeys(self._window, 0.0)
            self._window_us = 0
        elif self._window_us:
            self._latch()

    def renew(self) -> None:
        """Update the files from the registers."""
        if not self._refresh_us or self._latched:
            self._show()

    def _latch(self) -> None:
        """Store the mean of the window as the register content until the next window ends."""
        self._register_watts = {rail: j * 1e6 / self._window_us for rail, j in self._window.items()}
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
            mv, ma = self._convert(channel, self._register_watts[channel.rail])
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
        step_ma = INA3221_SHUNT_STEP_UV * 1000 / (channel.shunt_uohm or 1)
        return mv, round(round(watts * 1e6 / mv / step_ma) * step_ma)
