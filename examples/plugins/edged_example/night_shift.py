"""`night_shift`: sets no clock, and lets the uplink send within one hour of the local day."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from edged.plugin import NUMBER, Decision, DeclaredSetting, Observation, Policy, policy

HOUR_US = 3_600_000_000


@policy
class NightShift(Policy):
    """Uploads within one hour."""

    name = "night_shift"
    needs_model = False
    plans = False
    declared: ClassVar[Mapping[str, DeclaredSetting]] = {
        "hour": DeclaredSetting(NUMBER, 2, "The hour of uploads, 0 to 23."),
    }

    def race(self, seen: Observation) -> Decision:
        """Uploads wait for the hour."""
        hour = int(self.settings["hour"])
        open_now = seen.day_us // HOUR_US == hour
        return Decision(f"uploads from {hour}:00 to {hour}:59", upload=open_now)

    def idle(self, seen: Observation) -> Decision:
        """The same between races."""
        return self.race(seen)
