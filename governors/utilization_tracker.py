"""Tracks the kernel governor's utilisation over past races.  Sans-IO.

A race whose clock is not set begins at a clock that depends on the races before it, not on its own
size: after long races a short one begins at a high clock.  Each race is therefore replayed through
`governors.schedutil`, at the pinned clock or at the clocks that schedutil chooses.  Beats that only
commit are too short to matter and are left out.
"""

from __future__ import annotations

from dataclasses import replace

from governors.operating_points import clocks_within
from governors.policies.base import Decision, Observation
from governors.schedutil import Schedutil, Utilisation


class UtilizationTracker:
    """The cores' utilisation from race to race."""

    def __init__(self) -> None:
        self._used = Utilisation()
        self._at_us = 0
        """Time up to which the utilisation is known."""
        self._raced = False
        self._race: tuple[Observation, float] | None = None
        """The running race and its units."""

    def before(self, observed: Observation) -> Observation:
        """A race is about to start: the observation with the utilisation added, once a race was
        replayed."""
        self._used.sleep(max(0, observed.at_us - self._at_us))
        self._at_us = observed.at_us
        return replace(observed, used=self._used.copy()) if self._raced else observed

    def runs(self, observed: Observation, decision: Decision) -> None:
        """The race starts as decided; nothing runs where nothing was admitted."""
        self._race = (observed, decision.admit_share * observed.work.units)
        if decision.admit_share <= 0.0 or "cpu" not in observed.work.costs:
            self._race = None

    def after(self, at_us: int, pinned_hz: int) -> None:
        """The race is over.  `pinned_hz`: its clock where one was set, else 0."""
        if self._race is None:
            return
        (observed, units), self._race = self._race, None
        cost = observed.work.costs["cpu"]
        choices, capacity = clocks_within([d for d in observed.dials if d.kind == "cpu"])
        kernel = Schedutil(choices, capacity)
        if pinned_hz:
            kernel.held(pinned_hz, at_us - observed.at_us, self._used)
        else:
            stall_us = cost.stall_us + cost.stall_us_per_unit * units
            kernel.race(cost.cycles + cost.cycles_per_unit * units, stall_us, self._used)
        self._at_us, self._raced = at_us, True
