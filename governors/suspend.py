"""When a suspend to memory pays, and when it must not be tried again.  Sans-IO.

A board that waits from one beat to the next draws `idle_watts`.  Suspended it draws `watts`, and
for `transition_us`, entering and leaving together, `transition_watts`.  A suspend saves energy
where the wait is longer than

    break-even = transition_us x (transition_watts - watts) / (idle_watts - watts)

and it must end before the wait does: the alarm of a real-time clock has whole seconds, so it is set
to the last second that leaves `LEAVE_MARGIN_US` and the time of leaving.

A suspend fails where the kernel refuses it, where it ends too late, or where the machine is back at
once.  FAILURES_MAX failures in a row end it until the next start.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

FAILURES_MAX = 3
LATE_US = 100_000
"""A wake later than this is late: `Heart` plans its waits with a smaller margin."""
AT_ONCE_US = 1_000_000
"""A suspend that ends sooner has failed: a wake source is active."""
LEAVE_MARGIN_US = 1_000_000
"""The clock's second, which may be over when the alarm is set."""
ASKED_S_MIN = 2
"""Shortest alarm: the one after the next second may be past before the machine sleeps."""
ASSUMED_TRANSITION_US = 4_000_000
"""Entering and leaving together, until one was timed."""
ASSUMED_LEAVE_US = 2_000_000
"""The part of it after the alarm."""
RECENT = 8
"""Suspends whose times count."""
FREEZE, MEM = "freeze", "mem"
STATES = (FREEZE, MEM)
"""Contents of /sys/power/state: suspend to idle, and to memory."""


@dataclass(frozen=True, slots=True)
class SuspendCost:
    """What a suspend draws and takes."""

    idle_watts: float
    watts: float
    source: str
    """Where `watts` comes from."""
    transition_watts: float
    transition_us: float = ASSUMED_TRANSITION_US
    leave_us: float = ASSUMED_LEAVE_US
    timed: bool = False
    """Whether the times were measured here; else they are assumed."""

    @property
    def break_even_us(self) -> float:
        """The shortest wait that a suspend makes cheaper; infinite where it never pays."""
        saved = self.idle_watts - self.watts
        if saved <= 0.0:
            return math.inf
        extra = max(0.0, self.transition_watts - self.watts)
        return max(self.transition_us, self.transition_us * extra / saved)

    @property
    def wait_us_min(self) -> float:
        """The shortest wait in which a suspend pays and ends in time."""
        return max(self.break_even_us, self.transition_us + AT_ONCE_US,
                   ASKED_S_MIN * 1e6) + self.leave_us + LEAVE_MARGIN_US  # fmt: skip

    def joules(self, asleep_us: float, transition_us: float) -> float:
        """Energy of one suspend."""
        return (self.watts * asleep_us + self.transition_watts * transition_us) / 1e6


@dataclass(frozen=True, slots=True)
class Suspended:
    """One suspend, as it came out."""

    asked_s: int
    asleep_us: int
    """How long the machine was suspended; 0 where it was refused."""
    took_us: int
    """From the request to the answer."""
    late_us: int
    """How much later than its wait's end the machine was back."""
    problem: str = ""
    """Why it did not suspend."""

    @property
    def failure(self) -> str:
        """Why it counts as failed; empty where it does not."""
        if self.problem:
            return self.problem
        if self.late_us > LATE_US:
            return f"the machine was back {self.late_us / 1e6:.1f} s late"
        if self.asleep_us < AT_ONCE_US:
            return f"the machine was back after {self.asleep_us / 1e6:.1f} of {self.asked_s} s"
        return ""


class SuspendPlanner:
    """Decides about suspends from what the last ones took."""

    def __init__(self, cost: SuspendCost) -> None:
        self._cost = cost
        self._transitions_us: deque[int] = deque(maxlen=RECENT)
        self._leaves_us: deque[int] = deque(maxlen=RECENT)
        self.failures = 0
        """In a row."""
        self.ended = ""
        """Why there are no more suspends; empty: there are."""

    def measured(self, cost: SuspendCost) -> None:
        """A meter has counted through a suspend: plan with its watts."""
        self._cost = cost

    @property
    def cost(self) -> SuspendCost:
        """The cost with the times of the last suspends: the longest, since a late wake breaks a
        promise."""
        if not self._transitions_us:
            return self._cost
        c = self._cost
        return SuspendCost(
            c.idle_watts, c.watts, c.source, c.transition_watts, max(self._transitions_us),
            max(self._leaves_us), True,
        )  # fmt: skip

    def seconds(self, wait_us: int) -> int:
        """The alarm for a wait, in seconds from now; 0: stay awake."""
        cost = self.cost
        if self.ended or wait_us < cost.wait_us_min:
            return 0
        return int((wait_us - cost.leave_us - LEAVE_MARGIN_US) // 1_000_000)

    def done(self, one: Suspended) -> str:
        """Learn from a suspend; returns why it failed, empty where it did not."""
        failure = one.failure
        if not one.problem:
            self._transitions_us.append(max(0, one.took_us - one.asleep_us))
            self._leaves_us.append(max(0, one.took_us - 1_000_000 * one.asked_s))
        self.failures = self.failures + 1 if failure else 0
        if self.failures >= FAILURES_MAX:
            self.ended = f"{FAILURES_MAX} suspends in a row failed, the last because {failure}"
        return failure
