"""`cool`: keeps the chip below a temperature at which no hardware throttles.

    max_celsius = 85          # by default BELOW_TRIP_C below the board's lowest trip point
    comfort = 0.5             # share of the latency tolerance that is used while the board is cool

Races run like those of `race_to_idle`, at the clock with the least energy: what takes the least
energy heats the least.  While the board is cool, beats use `comfort` of the tolerance; within
WIDEN_C of the limit they use all of it, so that fewer wakes and commits heat the board.  From there
on the limit acts (`governors.heat_limit`): clocks bend, then races wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from governors.cost import SHARES, CostModel
from governors.policies.account import EnergyAccount
from governors.policies.base import (
    RELEASE,
    ZONE,
    Decision,
    Observation,
    Policy,
    PolicySettings,
    policy,
)
from governors.policies.declared import DeclaredSetting
from governors.policies.race_to_idle import Uploads, raced
from governors.quantities import CELSIUS, SHARE

BELOW_TRIP_C = 3.0
USUAL_C = 75.0
"""Limit where the board names no trip point: a Raspberry Pi's firmware throttles from 80 °C."""
WIDEN_C = 10.0
SHORTEN_C = 12.0
"""Headroom from which on beats are short again."""


@policy
class Cool(Policy):
    """Least energy, short beats while the board is cool, long ones near the limit."""

    name = "cool"
    needs = (ZONE,)
    declared: ClassVar[Mapping[str, DeclaredSetting]] = {
        "max_celsius": DeclaredSetting(
            CELSIUS, None, "Highest temperature of any thermal zone; else 3 °C below the lowest"
            " trip point, or 75 °C where the board names none.",
        ),
        "comfort": DeclaredSetting(
            SHARE, 0.5, "Share of the latency tolerance that is used while the board is cool; at"
            " most 1.",
        ),
    }  # fmt: skip

    def __init__(self, settings: PolicySettings, model: CostModel, account: EnergyAccount) -> None:
        super().__init__(settings, model, account)
        comfort = min(1.0, self.settings["comfort"])
        self._short = [share for share in SHARES if share <= comfort] or [comfort]
        self._wide = False
        self.uploads = Uploads()

    def max_celsius(self, observed: Observation) -> float | None:
        """The setting, or a distance from the board's lowest trip point."""
        given: float | None = self.settings["max_celsius"]
        if given is not None:
            return given
        trip = observed.trip_celsius
        return USUAL_C if trip is None else trip - BELOW_TRIP_C

    def race(self, observed: Observation) -> Decision:
        """The option with the least energy among those in time."""
        options = self.options(observed)
        left_us = observed.deadline_us - observed.at_us
        fit = self.model.fit(options, observed.work, left_us, float("inf"), observed.write_j)
        return raced(observed, fit, options[0])

    def idle(self, observed: Observation) -> Decision:
        """Release the clocks; plan short beats, or long ones near the limit."""
        room = observed.headroom_celsius
        self._wide = room is not None and room < (SHORTEN_C if self._wide else WIDEN_C)
        shares = SHARES if self._wide else self._short
        plan = self.model.plan(
            observed.work, observed.dials, observed.write_j, observed.write_us, shares
        )
        if not plan.in_time and not self._wide:
            plan = self.model.plan(
                observed.work, observed.dials, observed.write_j, observed.write_us
            )
        return Decision(
            f"{plan.watts:.3f} W expected" + _text(observed),
            dict.fromkeys((d.name for d in observed.dials), RELEASE),
            wait_share=plan.share,
            race_us=plan.race_us,
            sleep=plan.sleeps,
            upload=self.uploads.after_beat(observed, plan),
        )

    def forecast(self, observed: Observation) -> str:
        """Temperature and headroom."""
        limit = self.max_celsius(observed)
        if observed.celsius is None or limit is None:
            return "the temperature is not known"
        room = limit - observed.celsius
        return _text(replace(observed, headroom_celsius=room)).removeprefix(", ")


def _text(observed: Observation) -> str:
    if observed.celsius is None or observed.headroom_celsius is None:
        return ""
    return f", {observed.celsius:.1f} °C, {observed.headroom_celsius:.1f} °C below the limit"
