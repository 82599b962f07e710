"""`energy_budget`: joules per day, or a battery that must last.

    joules_per_day = 200_000       # from midnight to midnight, local time
    until = "06:00"                # or: what the battery holds must last until then
    reserve = 0.05                 # of the budget, or of the most that the battery has held since
                                   # the last end: what is not touched
    burst_s = 60.0                 # how far ahead of the pace a busy hour may run
    stop_volts = 10.8              # below: nothing is raced (a battery on its last legs)
    resume_volts = 11.4            # above: it goes on

What is left after idling until the end is what may be spent on work; the pace is that over the time
that is left, and a race takes no more than `burst_s` of pace that was saved up, nor more than all
that is left.  So the budget is not overspent whatever arrives, as long as idling alone does not
overspend it; where it does, nothing is raced, and the forecast says when it runs out.  What other
processes take is paid from the same budget.

Days end by the clock on the wall.  Where that is set while the policy runs (NTP after a boot
without a clock, summer time) the end moves with it, what was spent stays spent, and the budget is
that of the time from its beginning to the new end, a day's at most.

Within the pace it is `race_to_idle`; beyond it the rest waits, and the senders with it.  The
voltage must stay beyond a threshold for HOLD_US before anything changes, and the two lie apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from governors.cost import CostModel
from governors.policies.account import EnergyAccount
from governors.policies.base import (
    BATTERY,
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
from governors.policies.race_to_idle import Uploads, raced

DAY_US = 86_400_000_000
HOLD_US = 5_000_000
"""For so long a voltage must stay beyond its threshold."""
RETRY_US = 10_000
CLOCK_US = 5_000_000
"""By more than this the clock on the wall has not drifted: it was set."""
HOLD_SHARE = 0.5
"""Where not all that waits fits, a race waits for this part of a burst: small races cost more."""


class Undervoltage:
    """Stops below one voltage and resumes above a higher one, each held for HOLD_US."""

    def __init__(self, stop_volts: float, resume_volts: float) -> None:
        self.stop_volts, self.resume_volts = stop_volts, resume_volts
        self.stopped = False
        self._since_us: int | None = None

    def update(self, at_us: int, volts: float) -> bool:
        """A voltage; whether nothing may be raced."""
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
    """A pace that ends where the budget does."""

    name = "energy_budget"
    defaults: ClassVar[Mapping[str, Any]] = {
        "joules_per_day": None, "until": None, "reserve": 0.05, "burst_s": 60.0,
        "stop_volts": None, "resume_volts": None,
    }  # fmt: skip

    def __init__(self, settings: PolicySettings, model: CostModel, account: EnergyAccount) -> None:
        super().__init__(settings, model, account)
        given = self.settings
        if (given["joules_per_day"] is None) == (given["until"] is None):
            raise PolicyError("policy energy_budget: give either joules_per_day or until")
        self._daily = None if given["until"] is not None else self.number("joules_per_day")
        self._end_of_day_us = 0 if given["until"] is None else _time_of_day(given["until"])
        self._reserve = min(1.0, self.number("reserve", -1e-9))
        self._burst_us = 1e6 * self.number("burst_s")
        self._volts = _undervoltage(self)
        self.needs = (BATTERY,) * (self._daily is None) + (VOLTS,) * (self._volts is not None)
        self.uploads = Uploads()
        self._saved_j = 0.0
        self._last: tuple[int, float] | None = None
        self._end_us = -1
        self._begun_us, self._start_j = 0, 0.0
        self._day_j: float | None = None
        self._most_j = 0.0
        """That the battery has held since the last end."""

    def race(self, observed: Observation) -> Decision:
        """What the pace allows, as cheaply as is in time."""
        room = self._update(observed)
        if self._volts is not None and self._volts.stopped:
            return Decision(
                f"below {self._volts.stop_volts:g} V: nothing is raced until"
                f" {self._volts.resume_volts:g} V",
                admit_share=0.0, not_before_us=observed.at_us + HOLD_US,
            )  # fmt: skip
        if self._daily is None and observed.battery is None:
            return Decision(
                "no battery can be read: nothing is raced until one can",
                admit_share=0.0, not_before_us=observed.at_us + HOLD_US,
            )  # fmt: skip
        ways = self.ways(observed)
        left_us = observed.deadline_us - observed.at_us
        room -= self.model.overhead_j(observed.work)
        fit = self.model.fit(ways, observed.work, left_us, room, observed.write_j)
        if fit.share >= 1.0:
            return raced(observed, fit, ways[0])
        pace = max(0.0, self._pace_watts(observed))
        least_j = min(w.most_joules(observed.work.units, observed.write_j) for w in ways)
        goal_j = min(least_j, HOLD_SHARE * pace * self._burst_us / 1e6)
        if room < goal_j or fit.share * observed.work.units < 1.0:
            need_j = 1.05 * goal_j + 2 * self.model.tariff.wake_j  # the wake that asks again costs
            wait_us = 1e6 * max(0.0, need_j - room) / pace if pace else self._burst_us
            return Decision(
                f"the pace has no room: {self.forecast(observed)}",
                admit_share=0.0,
                not_before_us=observed.at_us + int(min(self._burst_us, max(RETRY_US, wait_us))),
            )
        decision = raced(observed, fit, ways[0])
        reason = f"{decision.reason}; the pace has room for {fit.share:.0%}"
        return replace(decision, reason=reason)

    def idle(self, observed: Observation) -> Decision:
        """Let go; plan the wait, the sleeps and the uplink for the least power."""
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
        """What may still be spent on work once idling until the end is paid; may be negative."""
        idle_j = self.model.tariff.idle_watts * self._left_us(observed) / 1e6
        return self._funds_j(observed) - idle_j

    def forecast(self, observed: Observation) -> str:
        """What is left at the end at the mean power of the last minutes, or when it runs out."""
        watts, left_us, funds = self._mean_watts(), self._left_us(observed), self._funds_j(observed)
        rest = funds - watts * left_us / 1e6
        end = _clock(observed.day_us + left_us)
        if rest >= 0 or watts <= 0:
            return f"at {watts:.2f} W, {rest:.0f} J are left at {end}"
        out = _clock(observed.day_us + max(0.0, 1e6 * funds / watts))
        return f"at {watts:.2f} W it runs out at {out}, before {end}"

    def budget(self, observed: Observation) -> Budget | None:
        """The same in figures; None before the first race of a day, and of a battery that nobody
        can read."""
        if self._end_us <= observed.at_us or (self._day_j is None and observed.battery is None):
            return None
        left_us, funds = self._left_us(observed), self._funds_j(observed)
        return Budget(funds, left_us, funds - self._mean_watts() * left_us / 1e6)

    def _mean_watts(self) -> float:
        mean = self.account.watts(int(self._burst_us))
        return self.model.tariff.idle_watts if mean is None else mean

    def _update(self, observed: Observation) -> float:
        """Save up pace, pay what was spent; what a race may take above idle."""
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
        """A new day, or a new time that the battery must last until; or the clock was set."""
        to_go = (self._end_of_day_us - observed.day_us) % DAY_US or DAY_US
        shift = (observed.at_us + to_go - self._end_us + DAY_US // 2) % DAY_US - DAY_US // 2
        was_set = abs(shift) > CLOCK_US
        if self._end_us <= observed.at_us or (was_set and self._end_us + shift <= observed.at_us):
            self._begun_us, self._start_j, self._most_j = observed.at_us, observed.joules, 0.0
        elif not was_set:
            return
        self._end_us = observed.at_us + to_go
        if self._daily is not None:
            self._day_j = self._daily * min(1.0, (self._end_us - self._begun_us) / DAY_US)

    def _left_us(self, observed: Observation) -> int:
        return max(1, self._end_us - observed.at_us)

    def _pace_watts(self, observed: Observation) -> float:
        return 1e6 * self.left_j(observed) / self._left_us(observed)

    def _funds_j(self, observed: Observation) -> float:
        if self._day_j is not None:
            return self._day_j * (1 - self._reserve) - (observed.joules - self._start_j)
        if observed.battery is None:
            return 0.0
        return observed.battery.joules - self._reserve * max(self._most_j, observed.battery.joules)


def _undervoltage(owner: Policy) -> Undervoltage | None:
    if owner.settings["stop_volts"] is None:
        return None
    stop = owner.number("stop_volts")
    resume = stop * 1.05 if owner.settings["resume_volts"] is None else owner.number("resume_volts")
    if resume <= stop:
        raise PolicyError(f"policy energy_budget: resume_volts {resume:g} must be above {stop:g}")
    return Undervoltage(stop, resume)


def _time_of_day(text: object) -> int:
    match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", str(text))
    if match is None:
        raise PolicyError(f"policy energy_budget: until = {text!r} is no time; write e.g. 06:00")
    return (int(match[1]) * 60 + int(match[2])) * 60_000_000


def _clock(day_us: float) -> str:
    minutes = int(day_us // 60_000_000) % (24 * 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
