"""`power_cap`: the mean input power over a window stays at or below a cap.

    watts = 5.0
    window_s = 10.0      # the mean is taken over the last so many seconds
    comfort = 0.5        # of the latency tolerance, what is used while power allows

What a window has left, `room = watts x window − joules of the last window`, is what a race may take
above idle: while it runs, what drops out of the window drew at least idle power, so that the mean
stays at or below the cap within the race and after it.  Nothing is assumed of the arrivals.

What is spent when it gets tight, in this order: latency tolerance (longer waits, bigger beats, the
cheapest clock that is still in time), then throughput: a race takes only as much as the room
allows, the rest waits, and the senders are slowed down.  Nothing is dropped.  A cap below idle
power cannot be kept; then nothing is raced and the reason says so.

Time before the policy's first sample counts as if the cap had been drawn.  Where the joules run
ahead of what was foreseen (a model's error, other processes), the room shrinks with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from governors.cost import SHARES, CostModel
from governors.policies.account import Account
from governors.policies.base import RELEASE, Decision, Observation, Policy, Settings, policy
from governors.policies.race_to_idle import Uploads, raced

TIGHT = 0.95
"""A plan is comfortable below this part of the cap, and again below TIGHT squared (hysteresis)."""
RETRY_US = 1_000
"""Least wait for room."""
HOLD_SHARE = 0.5
"""Where not all that waits fits, a race waits for this part of what a window can hold above idle:
small races cost more."""
SPARE = 0.05
"""Room beyond that goal that is waited for."""


@policy
class PowerCap(Policy):
    """Room in a window."""

    name = "power_cap"
    defaults: ClassVar[Mapping[str, Any]] = {"watts": None, "window_s": 10.0, "comfort": 0.5}

    def __init__(self, settings: Settings, model: CostModel, account: Account) -> None:
        super().__init__(settings, model, account)
        self.cap_watts = self.number("watts")
        self.window_us = round(1e6 * self.number("window_s"))
        self.comfort = min(1.0, self.number("comfort"))
        self.uploads = Uploads()
        self._tight = False

    def room_j(self) -> float:
        """What a race may take above idle now."""
        used = self.account.within(self.window_us, self.cap_watts)
        return self.cap_watts * self.window_us / 1e6 - used

    def race(self, seen: Observation) -> Decision:
        """As much as there is room for, as cheaply as is in time."""
        room = self.room_j()
        idle = self.model.tariff.idle_watts
        ways = self.model.ways(seen.work, seen.dials, seen.write_us)
        left_us = seen.deadline_us - seen.at_us
        room -= self.model.overhead_j(seen.work)
        fit = self.model.fit(ways, seen.work, left_us, room, seen.write_j)
        if fit.share >= 1.0:
            return raced(seen, fit, ways[0])
        if idle >= self.cap_watts:
            reason = f"idle takes {idle:.2f} W: {self.cap_watts:g} W cannot be kept"
            hold_us = seen.at_us + self.window_us
            return Decision(reason, admit_share=0.0, not_before_us=hold_us)
        least_j = min(w.most_joules(seen.work.units, seen.write_j) for w in ways)
        goal_j = min(least_j, HOLD_SHARE * (self.cap_watts - idle) * self.window_us / 1e6)
        if room >= goal_j and fit.share * seen.work.units >= 1.0:
            decision = raced(seen, fit, ways[0])
            reason = f"{decision.reason}; room for {fit.share:.0%} of what waits"
            return replace(decision, reason=reason)
        spare_j = SPARE * goal_j + 2 * self.model.tariff.wake_j  # the wake that asks again costs
        used_j = self.cap_watts * self.window_us / 1e6 - goal_j - spare_j
        used_j -= self.model.overhead_j(seen.work)
        until_us = self.account.falls_to(self.window_us, used_j, idle, self.cap_watts)
        return Decision(
            "no room for a race yet",
            admit_share=0.0,
            not_before_us=max(seen.at_us + RETRY_US, until_us),
        )

    def idle(self, seen: Observation) -> Decision:
        """Let go, and wait for as little of the tolerance as the cap allows."""
        comfortable = [s for s in SHARES if s <= self.comfort] or [self.comfort]
        plan = self.model.plan(seen.work, seen.dials, seen.write_j, seen.write_us, comfortable)
        limit = self.cap_watts * (TIGHT * TIGHT if self._tight else TIGHT)
        self._tight = plan.watts > limit or not plan.in_time
        if self._tight:
            plan = self.model.plan(seen.work, seen.dials, seen.write_j, seen.write_us, (1.0,))
        return Decision(
            f"{plan.watts:.3f} W expected of {self.cap_watts:g} W",
            dict.fromkeys((d.name for d in seen.dials), RELEASE),
            wait_share=1.0 if self._tight else plan.share,
            race_us=plan.race_us,
            sleep=plan.sleeps,
            upload=self.uploads.after_beat(seen, plan),
        )

    def forecast(self, seen: Observation) -> str:
        """The mean of the window so far."""
        mean = self.account.watts(self.window_us)
        return "" if mean is None else f"{mean:.2f} W of {self.cap_watts:g} W"
