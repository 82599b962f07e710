"""Heat of a simulated board: its thermal network and its throttling, in the caller's time."""

from __future__ import annotations

import math

from governors.profile import BoardProfile
from governors.simulated.throttle import ThermalThrottle
from governors.thermal import ThermalNetwork


class BoardHeat:
    """Temperatures and throttling, advanced at a given power."""

    def __init__(self, profile: BoardProfile, ambient_celsius: float, watts: float) -> None:
        """Begins settled at `watts`.  The profile has a thermal model."""
        assert profile.thermal is not None, "the caller looks first"
        self.network = ThermalNetwork(profile.thermal.nodes, ambient_celsius, watts)
        choices = max((c.choices_hz for c in profile.clusters), key=len)
        self.throttle = ThermalThrottle(profile.thermal.throttle, choices)
        self.trip_celsius = profile.thermal.throttle.celsius
        self.critical_celsius = profile.tree.trips_celsius.get("critical", math.inf)
        self.is_off = False
        """Whether the chip has reached the critical trip point: the kernel switches the board
        off."""
        self.throttled_us = 0.0
        """Time with throttling at work."""
        self.celsius_max = self.network.chip_celsius
        """The highest temperature of the chip so far."""
        self.until_look_us = self.throttle.look_us
        """Time until the next look: no throttling begins or ends before."""

    @property
    def celsius(self) -> float:
        """Temperature of the chip."""
        return self.network.chip_celsius

    def pass_time(self, us: float, watts: float) -> None:
        """Let `us` pass at `watts`, with all looks at the temperature that fall into it."""
        while us > 0:
            step_us = min(us, self.until_look_us)
            self.network.pass_time(step_us, watts)
            self.celsius_max = max(self.celsius_max, self.celsius)
            self.is_off |= self.celsius >= self.critical_celsius
            if self.throttle.state:
                self.throttled_us += step_us
            us -= step_us
            self.until_look_us -= step_us
            if self.until_look_us <= 0:
                self.throttle.look(self.celsius)
                self.until_look_us = self.throttle.look_us
