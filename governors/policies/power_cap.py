"""`power_cap`: keeps the mean input power over a window at or below a cap.

    watts = 5.0
    window_s = 10.0      # length of the sliding mean
    comfort = 0.5        # share of the latency tolerance that is used while power allows

A race may take the window's rest above idle: `room = watts x window − joules of the last window`.
Time that leaves the window drew at least idle power, so the mean stays at or below the cap during
the race and after it.  Nothing is assumed about arrivals.

**Under pressure.** First latency is spent (longer waits, larger beats, the cheapest clock that is
in time), then throughput: a race takes what the room covers, the rest waits, and backpressure slows
the senders.  Nothing is dropped.  A cap below idle power, or a window too short for one beat,
cannot be kept; then no race starts and the reason says so.

**Uncertainty.** The cap holds from the first window on: time before the first sample counts as
drawn at the cap.  A race is taken to need DOUBT times the model's upper bound until races have
shown their real need (`Caution`). If that would allow no race although a whole window is free, the
model is trusted.  The first race is small (FIRST_SHARE) and later ones grow by GROWTH. The number
of waiting units is an estimate, so a race gets a limit of units.  If more joules are spent than
predicted (model error, other processes), the room shrinks by as much.  Beats that only commit need
no permission: their room is reserved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from governors.cost import SHARES, CostModel, RaceFit
from governors.policies.account import EnergyAccount
from governors.policies.base import (
    HOLD_SHARE,
    RELEASE,
    Decision,
    Observation,
    Policy,
    PolicySettings,
    policy,
)
from governors.policies.declared import DeclaredSetting
from governors.policies.race_to_idle import Uploads, raced
from governors.quantities import POWER, SECONDS, SHARE

DOUBT = 2.0
"""Factor on the model's upper bound before the first race: cycles scaled from another machine have
errors of half (`edged.simulate.work`), and first races run cold."""
FIRST_SHARE = 1 / 16
"""Share of the room that the modelled first race may use; on a cold machine of a quarter of the
speed, the real race took 14 times the model."""
GROWTH = 2.0
"""A race has at most this many times the units of the largest race before."""
FORGET = 0.3
"""Weight of a race below the current factor."""
TIGHT = 0.95
"""Below this part of the cap a plan is comfortable; back again below TIGHT squared (hysteresis)."""
RETRY_US = 1_000
"""Shortest wait for room."""
ALL = 0.98
"""Share of a window's energy from which on the window counts as free."""
SPARE = 0.05
"""Additional room, relative to the goal, before a waiting race starts."""


class Caution:
    """Ratio of measured to modelled energy of past races."""

    def __init__(self) -> None:
        self.factor = DOUBT
        """Expected factor on the modelled energy: rises at once, falls slowly, at least 1."""
        self.largest = 0.0
        """Units of the largest race."""
        self._begun: tuple[Observation, float, Callable[[float], float]] | None = None

    def race(self, observed: Observation, units: float, most_j: Callable[[float], float]) -> None:
        """A race of about `units` starts; `most_j`: the model's upper bound above idle for a number
        of units."""
        self._begun = (observed, units, most_j)

    def none(self) -> None:
        """No race starts."""
        self._begun = None

    def idle(self, observed: Observation, idle_watts: float) -> None:
        """The race is over."""
        if self._begun is None:
            return
        before, expected, most_j = self._begun
        units = expected if observed.raced is None else observed.raced
        self.largest, modelled_j = max(self.largest, units), most_j(units)
        idle_j = idle_watts * (observed.at_us - before.at_us) / 1e6
        if modelled_j > 0:
            ratio = (observed.joules - before.joules - idle_j) / modelled_j
            self.factor = max(1.0, ratio, (1 - FORGET) * self.factor + FORGET * ratio)
        self._begun = None


@policy
class PowerCap(Policy):
    """Limits the energy of a sliding window."""

    name = "power_cap"
    cap_watts: float
    declared: ClassVar[Mapping[str, DeclaredSetting]] = {
        "watts": DeclaredSetting(
            POWER, None, "Cap of the mean power of the whole input.", required=True
        ),
        "window_s": DeclaredSetting(SECONDS, 10.0, "Length of the sliding mean."),
        "comfort": DeclaredSetting(
            SHARE, 0.5, "Share of the latency tolerance that is used while power allows; at most 1."
        ),
    }

    def __init__(self, settings: PolicySettings, model: CostModel, account: EnergyAccount) -> None:
        super().__init__(settings, model, account)
        self.cap_watts = float(self.settings["watts"])
        self.window_us: int = round(1e6 * self.settings["window_s"])
        self.comfort: float = min(1.0, self.settings["comfort"])
        self.uploads = Uploads()
        self.caution = Caution()
        self._tight = False

    def room_j(self) -> float:
        """Joules above idle that a race may take now, at most those of a whole window: joules that
        were counted early (`edged.energy.metering`) leave windows without any."""
        used = self.account.within(self.window_us, self.cap_watts)
        return min(self.cap_watts * self.window_us / 1e6 - used, max(0.0, self._all_j()))

    def race(self, observed: Observation) -> Decision:
        """Admit what the room covers, at the least energy that is in time."""
        all_j = self._all_j()
        free = self.room_j() >= ALL * all_j > 0
        admitted = self._admitted(observed, self.caution.factor, free)
        if admitted is None and free:
            admitted = self._admitted(observed, 1.0, free)
        if admitted is not None:
            return admitted
        if all_j <= 0 or free:
            idle = self.model.tariff.idle_watts
            what = f"idle takes {idle:.2f} W" if all_j <= 0 else f"a beat takes over {all_j:.2g} J"
            reason = f"{what}: {self.cap_watts:g} W over {self.window_us / 1e6:g} s cannot be kept"
            hold_us = observed.at_us + self.window_us
        else:
            reason, hold_us = "no room for a race yet", self._room_at_us(observed)
        return Decision(reason, admit_share=0.0, not_before_us=hold_us)

    def _all_j(self) -> float:
        """Energy above idle of a whole window; not above 0 where the cap is not above idle."""
        return (self.cap_watts - self.model.tariff.idle_watts) * self.window_us / 1e6

    def _goal_j(self, observed: Observation, factor: float) -> float:
        """Room that must be free before a race of a part of the waiting units."""
        options = self.options(observed)
        least_j = min(w.most_joules(observed.work.units, observed.write_j) for w in options)
        return min(least_j, HOLD_SHARE * self._all_j() / factor)

    def _admitted(self, observed: Observation, factor: float, free: bool) -> Decision | None:
        """The race that the room covers, each taking `factor` times the modelled energy; None
        without room."""
        options = self.options(observed)
        room = self.room_j() / factor - self.model.overhead_j(observed.work)
        left_us = observed.deadline_us - observed.at_us
        fit = self.model.fit(options, observed.work, left_us, room, observed.write_j)
        units = fit.share * observed.work.units
        enough = units >= 1.0 and (free or room >= self._goal_j(observed, factor))
        if fit.share < 1.0 and not enough:
            self.caution.none()
            return None
        fit = self._growing(fit, units, room)
        beside_j = self.model.beside_j(observed.work)
        self.caution.race(
            observed, min(units, fit.units_max),
            lambda raced: fit.option.most_joules(raced, observed.write_j) + beside_j,
        )  # fmt: skip
        decision = raced(observed, fit, options[0])
        if fit.share >= 1.0:
            return decision
        reason = f"{decision.reason}; room for {fit.share:.0%} of what waits"
        return replace(decision, reason=reason)

    def _growing(self, fit: RaceFit, units: float, room_j: float) -> RaceFit:
        """The same race, limited by the units of past races."""
        each_j = fit.option.most_j_per_unit
        first = FIRST_SHARE * room_j / each_j if each_j > 0 else math.inf
        most = max(1.0, first, GROWTH * self.caution.largest)
        share = fit.share * min(1.0, most / units) if units else fit.share
        return replace(fit, share=share, units_max=min(most, fit.units_max))

    def _room_at_us(self, observed: Observation) -> int:
        """The time at which there will be room if the board idles until then."""
        tariff, factor = self.model.tariff, self.caution.factor
        goal_j = self._goal_j(observed, factor)
        goal_j += SPARE * goal_j + 2 * tariff.wake_j  # includes the wake of the retry
        need_j = min(factor * (goal_j + self.model.overhead_j(observed.work)), ALL * self._all_j())
        used_j = self.cap_watts * self.window_us / 1e6 - need_j
        until_us = self.account.falls_to(self.window_us, used_j, tariff.idle_watts, self.cap_watts)
        return max(observed.at_us + RETRY_US, until_us)

    def idle(self, observed: Observation) -> Decision:
        """Release the clocks; wait as short as the cap allows."""
        self.caution.idle(observed, self.model.tariff.idle_watts)
        comfortable = [s for s in SHARES if s <= self.comfort] or [self.comfort]
        plan = self.model.plan(
            observed.work, observed.dials, observed.write_j, observed.write_us, comfortable
        )
        limit = self.cap_watts * (TIGHT * TIGHT if self._tight else TIGHT)
        self._tight = plan.watts > limit or not plan.in_time
        if self._tight:
            plan = self.model.plan(
                observed.work, observed.dials, observed.write_j, observed.write_us, (1.0,)
            )
        return Decision(
            f"{plan.watts:.3f} W expected of {self.cap_watts:g} W",
            dict.fromkeys((d.name for d in observed.dials), RELEASE),
            wait_share=1.0 if self._tight else plan.share,
            race_us=plan.race_us,
            sleep=plan.sleeps,
            upload=self.uploads.after_beat(observed, plan),
        )

    def forecast(self, observed: Observation) -> str:
        """The mean of the window so far."""
        mean = self.account.watts(self.window_us)
        return "" if mean is None else f"{mean:.2f} W of {self.cap_watts:g} W"
