"""`race_to_idle`: races at the clock with the least energy per beat, then releases it.

    lower_between = false     # whether the maximum clock is lowered between beats
    sleep = false             # whether sleeps on request are used

Before a race the cost model picks the option with the least energy among those that end in time,
including the kernel's own governor.  For memory-bound work that is not the highest clock.  A clock
is set only where it saves more than the writes cost, so the policy may set none.  After the beat
the limits are restored.  A beat that only commits gets a clock in the same way.

Where the memory clock may be capped (a dial only if the configuration allows it), caps are among
the options.  Lowering the maximum between beats slows other processes: it is opt-in, and skipped
while other processes are busy.  Where idle cores are clock-gated it saves nothing and is not done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

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
from governors.policies.declared import FLAG, DeclaredSetting
from governors.policies.running import BUSY_CORES


@policy
class RaceToIdle(Policy):
    """Picks the least energy among the options in time."""

    name = "race_to_idle"
    declared: ClassVar[Mapping[str, DeclaredSetting]] = {
        "lower_between": DeclaredSetting(
            FLAG, False, "Lower the highest clock between beats; slows other processes too."
        ),
        "sleep": DeclaredSetting(FLAG, False, "Use the sleep states of `allow`."),
    }

    def __init__(self, settings: PolicySettings, model: CostModel, account: EnergyAccount) -> None:
        super().__init__(settings, model, account)
        self.uploads = Uploads()

    def race(self, observed: Observation) -> Decision:
        """Choose the option for the waiting units."""
        options = self.options(observed)
        left_us = observed.deadline_us - observed.at_us
        fit = self.model.fit(options, observed.work, left_us, float("inf"), observed.write_j)
        return raced(observed, fit, options[0])

    def commit(self, observed: Observation) -> Decision:
        """Choose the option for a beat that only commits."""
        work = observed.work
        if not work.commit_every_us or observed.others_cores >= BUSY_CORES:
            return super().commit(observed)
        fit = self.model.commit_fit(work, observed.dials, observed.write_j, observed.write_us)
        clocks = {name: ClockSetting(Act.PIN, hz) for name, hz in fit.option.clocks}
        return Decision(f"a commit takes {1e3 * fit.joules:.2f} mJ", clocks)

    def idle(self, observed: Observation) -> Decision:
        """Release the clocks; plan wait, sleeps and uplink."""
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
        """Lower maxima where the idle clock costs more than the writes."""
        cpus = [d for d in observed.dials if d.kind == "cpu" and d.choices_hz()]
        if not cpus:
            return {}
        saved_w = self.model.tariff.standing_watts(cpus[0].max_hz, cpus[0].choices_hz()[0])
        if saved_w * idle_us / 1e6 <= observed.write_j:
            return {}
        return {d.name: ClockSetting(Act.CAP, d.choices_hz()[0]) for d in cpus}


class Uploads:
    """Schedules uploads by the time of the last one."""

    def __init__(self) -> None:
        self._sent_us: int | None = None

    def after_beat(self, observed: Observation, plan: RacePlan) -> bool:
        """Whether the uplink may send after this beat, because the next beat would be too late."""
        if self._sent_us is None:
            self._sent_us = observed.at_us
        beat_us = min(plan.period_us, observed.work.period_us_max)
        if observed.at_us + beat_us < self._sent_us + max(plan.upload_us, beat_us):
            return False
        self._sent_us = observed.at_us
        return True


def raced(observed: Observation, fit: RaceFit, alone: RaceOption) -> Decision:
    """The decision for a choice, with its reason in words."""
    kinds = {d.name: d.kind for d in observed.dials}
    clocks = {
        name: ClockSetting(Act.CAP if kinds[name] == "memory" else Act.PIN, hz)
        for name, hz in fit.option.clocks
    }
    units = fit.share * observed.work.units
    left = alone.joules(units, 0.0)
    if clocks:
        saved = 1e3 * (left - fit.joules)
        reason = f"{fit.option.device} at {fit.option.hz / 1e6:.0f} MHz "
        reason += f"saves {saved:.2f} mJ" if saved >= 0 else f"takes {-saved:.2f} mJ more"
        if saved < 0 and alone.takes_us(units) > observed.deadline_us - observed.at_us:
            reason += ": without a set clock it would be late"
    else:
        reason = "no clock set: none saves more than the writes cost"
    if not fit.in_time:
        reason += "; none is in time: the fastest"
    return Decision(reason, clocks, admit_share=fit.share, units_max=fit.units_max)
