"""Builds the observation of a policy: work, dials, joules, other load, battery."""

from __future__ import annotations

import time
from typing import Any

from edged.energy.accounts import Accounts
from edged.energy.actuation import Windows
from edged.energy.board import BoardSite
from edged.energy.limits import OwnedLimits
from edged.energy.metering import Metering
from governors.base import Forecast
from governors.meters.battery import batteries, state
from governors.policies.base import Battery, Observation
from governors.work import Work

BATTERY_US = 5_000_000
"""Interval of reading the battery."""


class ObservationBuilder:
    """Builds an `Observation` from the daemon's parts."""

    def __init__(
        self, site: BoardSite, watch: Metering, limits: OwnedLimits, accounts: Accounts
    ) -> None:
        self._site, self._watch, self._limits, self._accounts = site, watch, limits, accounts
        self._battery: tuple[int, Battery | None] = (-BATTERY_US, None)

    def build(self, forecast: Forecast, now_us: int, held: Windows | None) -> Observation:
        """The observation at `now_us`; `held`: pages that wait for an upload window."""
        watch, limits = self._watch, self._limits
        return Observation(
            now_us, self.work(forecast, now_us, held), forecast.deadline_us - forecast.commit_us,
            watch.joules(now_us), watch.provenance, limits.dials, watch.others_cores,
            self.battery(now_us), _time_of_day_us(), limits.write_us, limits.write_j,
        )  # fmt: skip

    def work(self, forecast: Forecast, now_us: int, held: Windows | None) -> Work:
        """Waiting work and rate of arrival."""
        return Work(
            self._accounts.waiting(forecast.staged, now_us), self._accounts.rate,
            self._accounts.cost(), forecast.latency_us, forecast.commit_us,
            period_us_max=forecast.period_us_max, commit_every_us=forecast.commit_every_us,
            **self._uploads(now_us, held),
        )  # fmt: skip

    def _uploads(self, now_us: int, held: Windows | None) -> dict[str, Any]:
        if held is None:
            return {}
        seconds = max(1.0, (now_us - self._watch.started_us) / 1e6)
        return {
            "upload_within_us": held.within_us,
            "upload_bytes_per_s": held.offered_bytes / seconds,
        }

    def battery(self, now_us: int) -> Battery | None:
        """The board's batteries together; None where none says its charge."""
        at, known = self._battery
        if now_us - at < BATTERY_US:
            return known
        left, volts, charging = 0.0, None, False
        for name in batteries(self._site.sysfs):
            battery = state(self._site.sysfs, name)
            left += battery.remaining_j or 0.0
            volts = battery.volts if volts is None else volts
            charging |= battery.status == "Charging"
        self._battery = (now_us, Battery(left, volts, charging) if left else None)
        return self._battery[1]


def _time_of_day_us() -> int:
    local = time.localtime()
    return (local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec) * 1_000_000
