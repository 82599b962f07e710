"""`energy_budget`: a limit of joules per day, or a battery that must last until a time.

    joules_per_day = "200kJ"       # from midnight to midnight, local time
    until = "06:00"                # alternatively: the battery's charge must last until then
    battery = "50Wh"               # with until: a battery without a fuel gauge
    reserve = 0.05                 # share that is never spent: of the budget, or of the largest
                                   # charge since the last end
    burst_s = 60.0                 # how far a busy period may run ahead of the pace
    stop_volts = 10.8              # below this no race starts
    resume_volts = 11.4            # above this races start again

With `battery` no charge is read: the battery counts as full when the policy begins (also after a
restart) and at each `until`, and what the input draws since then is subtracted.

The energy left after idling until the end is available for work.  The pace is that energy over the
remaining time.  A race takes at most `burst_s` of saved pace and at most all that is left.  So the
budget holds for any arrivals, as long as idling alone does not exceed it; if it does, no race
starts, and the forecast says when the budget runs out.  Energy of other processes counts too.

Days follow the wall clock.  When that is set (NTP after a boot without a clock, summer time) the
end moves with it, the energy spent stays spent, and the budget covers the time from its beginning
to the new end, a day's at most.

Within the pace the policy behaves like `race_to_idle`. Beyond it, units wait, and backpressure
slows the senders.  A voltage must stay beyond its threshold for HOLD_US; the two thresholds differ
(hysteresis).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from governors.cost import CostModel
from governors.policies.account import EnergyAccount
from governors.policies.base import (
    BATTERY,
    HOLD_SHARE,
    RELEASE,
    VOLTS,
    Budget,
    Decision,
    Observation,
    Policy,
    PolicyError,
    PolicySettings,
    policy,
)
from governors.policies.declared import TIME_OF_DAY, DeclaredSetting
from governors.policies.race_to_idle import Uploads, raced
from governors.quantities import ENERGY, SECONDS, SHARE, VOLTAGE

DAY_US = 86_400_000_000
HOLD_US = 5_000_000
"""Time for which a voltage must stay beyond its threshold."""
RETRY_US = 10_000
CLOCK_US = 5_000_000
"""A larger step of the wall clock is a setting, not drift."""


class Undervoltage:
    """Stops below one voltage and resumes above a higher one, each after HOLD_US."""

    def __init__(self, stop_volts: float, resume_volts: float) -> None:
        self.stop_volts, self.resume_volts = stop_volts, resume_volts
        self.stopped = False
        self._since_us: int | None = None

    def update(self, at_us: int, volts: float) -> bool:
        """Add a voltage reading; returns whether races are stopped."""
        beyond = volts >= self.resume_volts if self.stopped else volts < self.stop_volts
        if not beyond:
            self._since_us = None
        elif self._since_us is None:
            self._since_us = at_us
        elif at_us - self._since_us >= HOLD_US:
            self.stopped, self._since_us = not self.stopped, None
        return self.stopped


@policy
class EnergyBudget(Policy):
    """Spends at a pace that lasts until the end of the budget."""

    name = "energy_budget"
    declared: ClassVar[Mapping[str, DeclaredSetting]] = {
        "joules_per_day": DeclaredSetting(
            ENERGY, None, "Budget from midnight to midnight, local time; this or `until`."
        ),
        "until": DeclaredSetting(
            TIME_OF_DAY, None, "Time until which the battery must last; this or `joules_per_day`."
        ),
        "battery": DeclaredSetting(
            ENERGY, None, "With `until`: energy of the full battery where no gauge reports its"
            " charge. It counts as full when the policy begins and at each `until`.",
        ),
        "reserve": DeclaredSetting(
            replace(SHARE, zero=True), 0.05,
            "Share that is never spent: of the budget, or of the battery's largest charge; at most"
            " 1.",
        ),
        "burst_s": DeclaredSetting(
            SECONDS, 60.0, "How far a busy period may run ahead of the pace."
        ),
        "stop_volts": DeclaredSetting(VOLTAGE, None, "Voltage below which no race starts."),
        "resume_volts": DeclaredSetting(
            VOLTAGE, None, "Voltage above which races start again; else 1.05 times `stop_volts`."
        ),
    }  # fmt: skip

    def __init__(self, settings: PolicySettings, model: CostModel, account: EnergyAccount) -> None:
        super().__init__(settings, model, account)
        given = self.settings
        if (given["joules_per_day"] is None) == (given["until"] is None):
            raise PolicyError("policy energy_budget: give either joules_per_day or until")
        self._daily: float | None = given["joules_per_day"]
        self._battery_j: float | None = given["battery"]
        if self._battery_j is not None and given["until"] is None:
            raise PolicyError("policy energy_budget: battery needs until, the time of its end")
        self._end_of_day_us: int = given["until"] or 0
        self._reserve: float = min(1.0, given["reserve"])
        self._burst_us: float = 1e6 * given["burst_s"]
        self._volts = _undervoltage(given["stop_volts"], given["resume_volts"])
        gauged = self._daily is None and self._battery_j is None
        self.needs = (BATTERY,) * gauged + (VOLTS,) * (self._volts is not None)
        self.uploads = Uploads()
        self._saved_j = 0.0
        self._last: tuple[int, float] | None = None
        self._end_us = -1
        self._begun_us, self._start_j = 0, 0.0
        self._grant_j: float | None = None
        """Joules from the beginning to the end; None: what the battery reports."""
        self._most_j = 0.0
        """Largest battery charge since the last end."""

    def race(self, observed: Observation) -> Decision:
        """Admit what the pace covers, at the least energy that is in time."""
        room = self._update(observed)
        if self._volts is not None and self._volts.stopped:
            return Decision(
                f"below {self._volts.stop_volts:g} V: races are stopped until"
                f" {self._volts.resume_volts:g} V",
                admit_share=0.0, not_before_us=observed.at_us + HOLD_US,
            )  # fmt: skip
        if self._grant_j is None and observed.battery is None:
            return Decision(
                "the battery cannot be read: races are stopped until it can",
                admit_share=0.0, not_before_us=observed.at_us + HOLD_US,
            )  # fmt: skip
        options = self.options(observed)
        left_us = observed.deadline_us - observed.at_us
        room -= self.model.overhead_j(observed.work)
        fit = self.model.fit(options, observed.work, left_us, room, observed.write_j)
        if fit.share >= 1.0:
            return raced(observed, fit, options[0])
        pace = max(0.0, self._pace_watts(observed))
        least_j = min(w.most_joules(observed.work.units, observed.write_j) for w in options)
        goal_j = min(least_j, HOLD_SHARE * pace * self._burst_us / 1e6)
        if room < goal_j or fit.share * observed.work.units < 1.0:
            need_j = 1.05 * goal_j + 2 * self.model.tariff.wake_j  # includes the wake of the retry
            wait_us = 1e6 * max(0.0, need_j - room) / pace if pace else self._burst_us
            return Decision(
                f"over the pace: {self.forecast(observed)}",
                admit_share=0.0,
                not_before_us=observed.at_us + int(min(self._burst_us, max(RETRY_US, wait_us))),
            )
        decision = raced(observed, fit, options[0])
        reason = f"{decision.reason}; the pace covers {fit.share:.0%}"
        return replace(decision, reason=reason)

    def idle(self, observed: Observation) -> Decision:
        """Release the clocks; plan wait, sleeps and uplink for the least power."""
        self._update(observed)
        plan = self.model.plan(observed.work, observed.dials, observed.write_j, observed.write_us)
        return Decision(
            self.forecast(observed),
            dict.fromkeys((d.name for d in observed.dials), RELEASE),
            wait_share=plan.share,
            race_us=plan.race_us,
            sleep=plan.sleeps,
            upload=self.uploads.after_beat(observed, plan),
        )

    def left_j(self, observed: Observation) -> float:
        """Joules available for work after idling until the end; may be negative."""
        idle_j = self.model.tariff.idle_watts * self._left_us(observed) / 1e6
        return self._funds_j(observed) - idle_j

    def forecast(self, observed: Observation) -> str:
        """The rest at the end at the recent mean power, or the time at which the budget runs
        out."""
        watts, left_us, funds = self._mean_watts(), self._left_us(observed), self._funds_j(observed)
        rest = funds - watts * left_us / 1e6
        end = _clock(observed.day_us + left_us)
        if rest >= 0 or watts <= 0:
            return f"at {watts:.2f} W, {rest:.0f} J are left at {end}"
        out = _clock(observed.day_us + max(0.0, 1e6 * funds / watts))
        return f"at {watts:.2f} W it runs out at {out}, before {end}"

    def budget(self, observed: Observation) -> Budget | None:
        """The forecast as figures; None before the first race of a day, and while the battery
        cannot be read."""
        if self._end_us <= observed.at_us or (self._grant_j is None and observed.battery is None):
            return None
        left_us, funds = self._left_us(observed), self._funds_j(observed)
        return Budget(funds, left_us, funds - self._mean_watts() * left_us / 1e6)

    def _mean_watts(self) -> float:
        mean = self.account.watts(int(self._burst_us))
        return self.model.tariff.idle_watts if mean is None else mean

    def _update(self, observed: Observation) -> float:
        """Save pace, subtract the energy spent; returns the joules above idle that a race may
        take."""
        self._update_end(observed)
        battery = observed.battery
        if battery is not None:
            self._most_j = max(self._most_j, battery.joules)
        if self._volts is not None and battery is not None and battery.volts is not None:
            self._volts.update(observed.at_us, battery.volts)
        left = self.left_j(observed)
        pace = max(0.0, self._pace_watts(observed))
        if self._last is not None:
            past_us, past_j = self._last
            span_s = (observed.at_us - past_us) / 1e6
            worked_j = observed.joules - past_j - self.model.tariff.idle_watts * span_s
            self._saved_j += pace * span_s - max(0.0, worked_j)
        self._last = (observed.at_us, observed.joules)
        self._saved_j = min(self._saved_j, pace * self._burst_us / 1e6)
        return min(self._saved_j, left)

    def _update_end(self, observed: Observation) -> None:
        """Start a new day or a new battery period, and follow settings of the wall clock."""
        to_go = (self._end_of_day_us - observed.day_us) % DAY_US or DAY_US
        shift = (observed.at_us + to_go - self._end_us + DAY_US // 2) % DAY_US - DAY_US // 2
        was_set = abs(shift) > CLOCK_US
        if self._end_us <= observed.at_us or (was_set and self._end_us + shift <= observed.at_us):
            self._begun_us, self._start_j, self._most_j = observed.at_us, observed.joules, 0.0
        elif not was_set:
            return
        self._end_us = observed.at_us + to_go
        if self._daily is not None:
            self._grant_j = self._daily * min(1.0, (self._end_us - self._begun_us) / DAY_US)
        else:
            self._grant_j = self._battery_j

    def _left_us(self, observed: Observation) -> int:
        return max(1, self._end_us - observed.at_us)

    def _pace_watts(self, observed: Observation) -> float:
        return 1e6 * self.left_j(observed) / self._left_us(observed)

    def _funds_j(self, observed: Observation) -> float:
        if self._grant_j is not None:
            return self._grant_j * (1 - self._reserve) - (observed.joules - self._start_j)
        if observed.battery is None:
            return 0.0
        return observed.battery.joules - self._reserve * max(self._most_j, observed.battery.joules)


def _undervoltage(stop: float | None, resume: float | None) -> Undervoltage | None:
    if stop is None:
        return None
    resume = stop * 1.05 if resume is None else resume
    if resume <= stop:
        raise PolicyError(f"policy energy_budget: resume_volts {resume:g} must be above {stop:g}")
    return Undervoltage(stop, resume)


def _clock(day_us: float) -> str:
    minutes = int(day_us // 60_000_000) % (24 * 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
