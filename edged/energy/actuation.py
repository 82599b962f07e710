"""Applies the decisions of the running policy before and after each beat.

Clocks and sleeps go to the owned limits, waits and intake to the heart as a `Steer`, upload windows
to the upload coalescer.  If a decision meets a limit that another process has changed, the policy
decides once more, inside the new limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from edged.beat.hysteresis import Hysteresis
from edged.energy.limits import OwnedLimits
from edged.energy.policies import Policies
from governors.actuators.ownership import ForeignChange
from governors.base import Steer
from governors.policies.base import Decision, Observation
from governors.policies.running import BUSY_CORES

EASED_US = 60_000_000
"""Time without a held race after which the limit of the temperature counts as eased."""
HOLD_US_MIN = 2_000
"""Shortest time until the policy is asked again about a race that may take nothing; prevents a busy
loop."""


class Windows(Protocol):
    """Pages that wait for an upload window (`edged.uplink.upload_coalescer.UploadCoalescer`)."""

    offered_bytes: int
    passed_us: int
    """When pages were last given to the uplink, monotonic; 0: never."""

    @property
    def within_us(self) -> int:
        """Longest wait allowed."""

    def release_soon(self) -> None:
        """Send the pages with those of the beat."""


class Actuation:
    """Applies decisions of the running policy."""

    def __init__(self, policies: Policies, limits: OwnedLimits) -> None:
        self.steer = Steer()
        self.reason = ""
        """Reason of the last decision before a race."""
        self.held: Windows | None = None
        """Pages that wait for the uplink."""
        self._policies, self._limits = policies, limits
        self._holding = Hysteresis(EASED_US)
        limits.taken = self._taken

    def lift(self) -> None:
        """Cancel delays of the previous policy, also in the `Steer` that the heart still holds."""
        self.steer.not_before_us = 0
        self.steer, self.reason = Steer(), ""

    def end_heat_hold(self) -> None:
        """Publish that races are no longer held, where they were."""
        if self._holding.active:
            self._holding = Hysteresis(EASED_US)
            self._publish_eased()

    def before(self, at_us: int, look: Callable[[], Observation]) -> None:
        """A race is about to start; `look` returns the observation under the current limits."""
        running = self._policies.running
        self._limits.sleeps.leave(at_us)
        for change in self._limits.watch(at_us):
            running.lost(change.name)
        observed = look()
        decision = running.race(observed)
        if self._set(decision, at_us):
            decision = running.race(look())
            self._set(decision, at_us)
        self.reason = decision.reason
        self._publish_heat(at_us)
        if decision.admit_share < 1.0:
            self.steer.units_max = int(decision.admit_share * observed.work.units)
            if self.steer.units_max == 0:
                self.steer.not_before_us = max(decision.not_before_us, at_us + HOLD_US_MIN)
        elif decision.units_max < math.inf:
            self.steer.units_max = max(1, int(decision.units_max))

    def before_commit(self, observed: Observation) -> None:
        """A beat that only commits is about to start."""
        self._set(self._policies.running.commit(observed), observed.at_us)

    def after(self, observed: Observation, others_cores: float) -> None:
        """The race is over; `others_cores`: cores kept busy by other processes."""
        running = self._policies.running
        decision = running.idle(observed)
        self._set(decision, observed.at_us)
        self.steer.wait_share, self.steer.race_us = decision.wait_share, decision.race_us
        self.steer.not_before_us = decision.not_before_us
        if others_cores < BUSY_CORES:
            self._limits.sleeps.enter(decision.sleep, observed.at_us)
        if self.held is not None and decision.upload and running.policy.plans:
            self.held.release_soon()

    def _publish_heat(self, at_us: int) -> None:
        """Publish when the limit of the temperature begins and ceases to hold races."""
        state, held = self._policies.heat.state, self._holding.active
        self._holding.observe(at_us, state.holds)
        if self._holding.active == held:
            return
        if held:
            self._publish_eased()
            return
        facts = {"celsius": state.celsius, "max_celsius": state.limit_celsius}
        text = (
            f"races are held at {state.celsius or 0.0:.1f} °C of {state.limit_celsius or 0.0:g} °C:"
            " results are late"
        )
        self._policies.publish("heat.holds", "warning", text, facts)

    def _publish_eased(self) -> None:
        state = self._policies.heat.state
        facts = {"celsius": state.celsius, "max_celsius": state.limit_celsius}
        self._policies.publish("heat.eased", "info", "races are no longer held", facts)

    def _set(self, decision: Decision, at_us: int) -> bool:
        """Apply a decision's clocks; returns whether to decide again inside other limits."""
        if not decision.clocks:
            return False
        lost, again = self._limits.apply(decision.clocks, at_us)
        for dial in lost:
            self._policies.running.lost(dial)
        return again

    def _taken(self, change: ForeignChange) -> None:
        """Another process changed an owned limit."""
        text = f"{change.text}; planning goes on inside it"
        self._policies.publish("limits.taken_over", "warning", text, {"name": change.name})
