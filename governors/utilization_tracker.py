"""What the kernel's governor remembers of the races so far.  Sans-IO.

A race that is left alone begins at a clock that follows from the races before it, not from its own
size: after long ones a short one begins at a high clock.  So the races that were run are put
through the same law as the kernel's (`governors.schedutil`), at the clock that was pinned or left
alone.  Beats that only commit are too short to count.
"""

from __future__ import annotations

from dataclasses import replace

from governors.operating_points import clocks_within
from governors.policies.base import Decision, Observation
from governors.schedutil import Schedutil, Utilisation


class UtilizationTracker:
    """The cores' utilisation, from race to race."""

    def __init__(self) -> None:
        self._used = Utilisation()
        self._at_us = 0
        """Up to when it was followed."""
        self._raced = False
        self._race: tuple[Observation, float] | None = None
        """The race that runs, and its units."""

    def before(self, seen: Observation) -> Observation:
        """A race is about to start: what is seen, with what is remembered, if anything is."""
        self._used.sleep(max(0, seen.at_us - self._at_us))
        self._at_us = seen.at_us
        return replace(seen, used=self._used.copy()) if self._raced else seen

    def runs(self, seen: Observation, decision: Decision) -> None:
        """The race is run as decided; not at all where nothing was admitted."""
        self._race = (seen, decision.admit_share * seen.work.units)
        if decision.admit_share <= 0.0 or "cpu" not in seen.work.costs:
            self._race = None

    def after(self, at_us: int, pinned_hz: int) -> None:
        """The race is over; `pinned_hz`: its clock where one was set, else 0."""
        if self._race is None:
            return
        (seen, units), self._race = self._race, None
        cost = seen.work.costs["cpu"]
        choices, capacity = clocks_within([d for d in seen.dials if d.kind == "cpu"])
        kernel = Schedutil(choices, capacity)
        if pinned_hz:
            kernel.held(pinned_hz, at_us - seen.at_us, self._used)
        else:
            stall_us = cost.stall_us + cost.stall_us_per_unit * units
            kernel.race(cost.cycles + cost.cycles_per_unit * units, stall_us, self._used)
        self._at_us, self._raced = at_us, True
