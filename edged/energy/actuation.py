"""Carrying out: the policy is asked before a race and after it, and what it decides is set.

Clocks and sleeps go to the limits that are owned, waits and intake to the heart by way of a
`Steer`, the uplink's windows to what holds pages back.  A decision that met a limit which somebody
else had changed meanwhile is made once more, inside of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from edged.energy.limits import OwnedLimits
from edged.energy.policies import Policies
from governors.actuators.ownership import ForeignChange
from governors.base import Steer
from governors.policies.base import Decision, Observation
from governors.policies.running import BUSY_CORES

HOLD_US_MIN = 2_000
"""A race that may take nothing is not asked about again before: never a busy loop."""


class Windows(Protocol):
    """Pages that wait for an upload window (`edged.uplink.upload_coalescer.UploadCoalescer`)."""

    offered_bytes: int

    @property
    def within_us(self) -> int:
        """How long they may."""

    def release_soon(self) -> None:
        """Send them with the beat's."""


class Actuation:
    """Sets what the policy that runs decides."""

    def __init__(self, policies: Policies, limits: OwnedLimits) -> None:
        self.steer = Steer()
        self.reason = ""
        """Of the last decision before a race."""
        self.held: Windows | None = None
        """Pages that wait for the uplink."""
        self._policies, self._limits = policies, limits
        limits.taken = self._taken

    def lift(self) -> None:
        """End what the policy before has held back: the heart waits by the steer it was given."""
        self.steer.not_before_us = 0
        self.steer, self.reason = Steer(), ""

    def before(self, at_us: int, look: Callable[[], Observation]) -> None:
        """A race is about to start; `look` tells what is seen, with the limits of that moment."""
        running = self._policies.running
        self._limits.sleeps.leave(at_us)
        for change in self._limits.watch(at_us):
            running.lost(change.name)
        seen = look()
        decision = running.race(seen)
        if self._set(decision, at_us):
            decision = running.race(look())
            self._set(decision, at_us)
        self.reason = decision.reason
        if decision.admit_share < 1.0:
            self.steer.units_max = int(decision.admit_share * seen.work.units)
            if self.steer.units_max == 0:
                self.steer.not_before_us = max(decision.not_before_us, at_us + HOLD_US_MIN)
        elif decision.units_max < math.inf:
            self.steer.units_max = max(1, int(decision.units_max))

    def after(self, seen: Observation, others_cores: float) -> None:
        """The race is over; `others_cores`: those that other processes keep busy."""
        running = self._policies.running
        decision = running.idle(seen)
        self._set(decision, seen.at_us)
        self.steer.wait_share, self.steer.race_us = decision.wait_share, decision.race_us
        self.steer.not_before_us = decision.not_before_us
        if others_cores < BUSY_CORES:
            self._limits.sleeps.enter(decision.sleep, seen.at_us)
        if self.held is not None and decision.upload and running.policy.plans:
            self.held.release_soon()

    def _set(self, decision: Decision, at_us: int) -> bool:
        """Set a decision's clocks; whether to decide again, inside other limits."""
        if not decision.clocks:
            return False
        lost, again = self._limits.apply(decision.clocks, at_us)
        for dial in lost:
            self._policies.running.lost(dial)
        return again

    def _taken(self, change: ForeignChange) -> None:
        """Somebody else has changed a limit that was ours."""
        text = f"{change.text}; planning goes on inside it"
        self._policies.tell("limits.taken_over", "warning", text, {"name": change.name})
