"""Builds the observation of a policy: work, dials, joules, other load, battery."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from edged.energy.accounts import Accounts
from edged.energy.actuation import Windows
from edged.energy.board import BoardSite
from edged.energy.limits import OwnedLimits
from edged.energy.metering import Metering
from governors.base import Forecast
from governors.health import FIND_US, celsius, throttling_trips, zones
from governors.meters.battery import batteries, state
from governors.policies.base import Battery, Observation
from governors.sysfs import Sysfs
from governors.work import Work

BATTERY_US = 5_000_000
"""Interval of reading the battery."""
HEAT_US = 250_000
"""Shortest interval of reading the zones where a limit of the temperature is in force; on Tegra a
reading asks another processor."""


class ZoneReader:
    """The hottest zone, and the lowest trip point of any."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._found_us = self._read_us = -FIND_US
        self._zones: list[str] = []
        self._hottest: float | None = None
        self._trip: float | None = None

    def hottest(self, now_us: int) -> tuple[float | None, float | None]:
        """Temperature and trip point, °C; None where they are not known."""
        if now_us - self._found_us >= FIND_US:
            self._found_us = now_us
            self._zones = [at for at, _ in zones(self._sysfs)]
            points = [c for at in self._zones for _, c in throttling_trips(self._sysfs, at)]
            self._trip = min(points, default=None)
        if now_us - self._read_us >= HEAT_US:
            self._read_us = now_us
            read = (celsius(self._sysfs, at) for at in self._zones)
            self._hottest = max((c for c in read if c is not None), default=None)
        return self._hottest, self._trip


class ObservationBuilder:
    """Builds an `Observation` from the daemon's parts."""

    def __init__(
        self, site: BoardSite, watch: Metering, limits: OwnedLimits, accounts: Accounts,
        asks_heat: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """`asks_heat`: whether a limit of the temperature is in force."""
        self._site, self._watch, self._limits, self._accounts = site, watch, limits, accounts
        self._asks_heat = asks_heat
        self._zones = ZoneReader(site.sysfs)
        self._battery: tuple[int, Battery | None] = (-BATTERY_US, None)

    def build(self, forecast: Forecast, now_us: int, held: Windows | None) -> Observation:
        """The observation at `now_us`; `held`: pages that wait for an upload window."""
        watch, limits = self._watch, self._limits
        heat, trip = self._zones.hottest(now_us) if self._asks_heat() else (None, None)
        return Observation(
            now_us, self.work(forecast, now_us, held), forecast.deadline_us - forecast.commit_us,
            watch.joules(now_us), watch.provenance, limits.dials, watch.others_cores,
            self.battery(now_us), _time_of_day_us(), limits.write_us, limits.write_j,
            celsius=heat, trip_celsius=trip,
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
