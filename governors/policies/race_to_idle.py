"""`race_to_idle`: race at the clock at which the beat costs least, then let go.

    lower_between = false     # whether the maximum may be lowered between beats
    sleep = false             # whether sleeps that must be asked for are used

Before a race the cost model finds the way with the least energy among those that end in time, the
kernel's own governor among them; for work that waits for memory it is not the highest clock.  It is
set only where it saves more than writing costs, so that *never* is an outcome.  On leaving the
beat the limits go back to what they were.

Where the memory clock may be capped (it is a dial only where that was asked for), caps are among
the ways.  Lowering the maximum between beats slows other processes down: it is opt-in, and refused
while they are busy.  Where idle cores are clock-gated it saves nothing, and is not done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from governors.cost import CostModel, RaceFit, RacePlan
from governors.operating_points import RaceOption
from governors.policies.account import EnergyAccount
from governors.policies.base import (
    RELEASE,
    Act,
    ClockSetting,
    Decision,
    Observation,
    Policy,
    PolicySettings,
    policy,
)
from governors.policies.running import BUSY_CORES


@policy
class RaceToIdle(Policy):
    """The least energy of those in time."""

    name = "race_to_idle"
    defaults: ClassVar[Mapping[str, Any]] = {"lower_between": False, "sleep": False}

    def __init__(self, settings: PolicySettings, model: CostModel, account: EnergyAccount) -> None:
        super().__init__(settings, model, account)
        self.uploads = Uploads()

    def race(self, observed: Observation) -> Decision:
        """Choose the way for what waits now."""
        ways = self.ways(observed)
        left_us = observed.deadline_us - observed.at_us
        fit = self.model.fit(ways, observed.work, left_us, float("inf"), observed.write_j)
        return raced(observed, fit, ways[0])

    def idle(self, observed: Observation) -> Decision:
        """Let go; plan the wait, the sleeps and the uplink."""
        plan = self.model.plan(observed.work, observed.dials, observed.write_j, observed.write_us)
        clocks = dict.fromkeys((d.name for d in observed.dials), RELEASE)
        if self.settings["lower_between"] and observed.others_cores < BUSY_CORES:
            clocks |= self._lowered(observed, plan.period_us - plan.race_us)
        return Decision(
            f"{plan.watts:.3f} W expected",
            clocks,
            wait_share=plan.share,
            race_us=plan.race_us,
            sleep=plan.sleeps if self.settings["sleep"] else (),
            upload=self.uploads.after_beat(observed, plan),
        )

    def _lowered(self, observed: Observation, idle_us: float) -> dict[str, ClockSetting]:
        """Lower maxima where the clock that is left standing costs more than the writes do."""
        cpus = [d for d in observed.dials if d.kind == "cpu" and d.choices_hz()]
        if not cpus:
            return {}
        saved_w = self.model.tariff.standing_watts(cpus[0].max_hz, cpus[0].choices_hz()[0])
        if saved_w * idle_us / 1e6 <= observed.write_j:
            return {}
        return {d.name: ClockSetting(Act.CAP, d.choices_hz()[0]) for d in cpus}


class Uploads:
    """Knows when the uplink sent last."""

    def __init__(self) -> None:
        self._sent_us: int | None = None

    def after_beat(self, observed: Observation, plan: RacePlan) -> bool:
        """Whether the uplink may send after this beat: the next one would be too late."""
        if self._sent_us is None:
            self._sent_us = observed.at_us
        beat_us = min(plan.period_us, observed.work.period_us_max)
        if observed.at_us + beat_us < self._sent_us + max(plan.upload_us, beat_us):
            return False
        self._sent_us = observed.at_us
        return True


def raced(observed: Observation, fit: RaceFit, alone: RaceOption) -> Decision:
    """The decision that a fit is, said in words."""
    kinds = {d.name: d.kind for d in observed.dials}
    clocks = {
        name: ClockSetting(Act.CAP if kinds[name] == "memory" else Act.PIN, hz)
        for name, hz in fit.way.clocks
    }
    units = fit.share * observed.work.units
    left = alone.joules(units, 0.0)
    if clocks:
        saved = 1e3 * (left - fit.joules)
        reason = f"{fit.way.device} at {fit.way.hz / 1e6:.0f} MHz "
        reason += f"saves {saved:.2f} mJ" if saved >= 0 else f"takes {-saved:.2f} mJ more"
        if saved < 0 and alone.takes_us(units) > observed.deadline_us - observed.at_us:
            reason += ": left alone it would be late"
    else:
        reason = "left alone: no clock saves what writing it costs"
    if not fit.in_time:
        reason += "; none is in time, the fastest"
    return Decision(reason, clocks, admit_share=fit.share, units_max=fit.units_max)
