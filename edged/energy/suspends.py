"""Suspends the machine between beats: `[energy] suspend = "mem"` or `"freeze"`.

    EventLoop.before_wait ─► Suspends ─► SuspendPlanner      does it pay, does it end in time
                                      ─► Sleeper             this process, or the root helper
                                      ─► Metering            joules of the time asleep

It suspends where all of this holds: a wait is long enough (`governors.suspend`), every source of a
job that runs polls, the daemon is not stopping, no commit is in flight, and the uplink has nothing
to send.  For the last two it waits LINGER_US at most, and then suspends all the same, since nothing
is lost: a commit is durable or not acknowledged, and a page is sent again.  For AWAKE_US after its
start the daemon does not suspend, so that the machine can be reached after a boot.

Watts of the suspended board come, in this order, from a meter that counts through the suspend, from
`[energy] suspend_watts`, and from the board's profile.  Without the last two there is no suspend:
nothing says that it pays.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from edged.beat.runtime import JobRuntime
from edged.energy.board import BoardSite
from edged.energy.metering import Metering
from edged.energy.policies import Publish
from edged.energy.settings import EnergySettings
from edged.platform.clock import Clock, suspended_us
from edged.sources.base import Source
from governors.actuators._helper_client import suspend_through
from governors.actuators.suspend import Sleeper, cannot_suspend, suspend
from governors.board_tariffs import suspend_cost
from governors.suspend import LATE_US, Suspended, SuspendPlanner
from governors.tariff import Tariff

OFF = "off"
AWAKE_US = 60_000_000
LINGER_US = 10_000_000
LOOK_US = 200_000
"""Time between two looks at what is awaited, while lingering."""
UNKNOWN = (
    "the watts of this board while it is suspended are not known: measure its whole input, and"
    " set energy.suspend_watts"
)
MEASURED_US_MIN = 10_000_000
"""Shorter times asleep say nothing about watts: enter and leave are a part of them."""


class Suspends:
    """The suspends of one daemon; the event loop's thread only."""

    def __init__(
        self, settings: EnergySettings, site: BoardSite, tariff: Tariff | None, watch: Metering,
        clock: Clock, publish: Publish, read: Callable[[], None], *, sleeper: Sleeper | None = None,
        awake_us: int = AWAKE_US,
    ) -> None:  # fmt: skip
        """`read`: reads all meters, and books the time up to now."""
        self._read = read
        self.state = settings.suspend
        self.problem = ""
        """Why there are no suspends although they are asked for."""
        self.count = self.late = self.failed = 0
        self.asleep_us, self.joules = 0, 0.0
        """Of all suspends, with entering and leaving."""
        self._site, self._watch, self._clock, self._publish = site, watch, clock, publish
        self._awake_until_us = clock.monotonic_us() + awake_us
        self._sources: Sequence[Source] = ()
        self._jobs: Callable[[], Sequence[JobRuntime]] = tuple
        self._awaits: Callable[[], bool] = lambda: False
        self._resumed: Callable[[int], None] = lambda _: None
        self._linger_until_us: int | None = None
        self._not_before_us = 0
        """After a failure: the end of that wait."""
        hz = max((k.ceiling_hz for k in site.knobs if k.kind == "cpu"), default=0)
        cost = suspend_cost(tariff, site.profile, settings.suspend_watts, hz)
        self.planner = None if cost is None else SuspendPlanner(cost)
        self._sleeper = sleeper or self._choose(settings)
        if self.state != OFF:
            self.problem = cannot_suspend(site.sysfs, self.state)
            if not self.problem and cost is None:
                self.problem = UNKNOWN

    def connect(
        self, sources: Sequence[Source], jobs: Callable[[], Sequence[JobRuntime]],
        awaits: Callable[[], bool], resumed: Callable[[int], None],
    ) -> None:  # fmt: skip
        """`awaits`: whether a commit is in flight or the uplink has pages to send; `resumed` is
        called after a suspend of a simulated board, whose machine goes on."""
        self._sources, self._jobs = sources, jobs
        self._awaits, self._resumed = awaits, resumed

    def before_wait(self, deadline_us: int | None, muted: bool) -> int | None:
        """Suspend if this wait allows it; returns when the wait is to end.  `muted`: no source is
        read before the deadline."""
        if self.planner is None or self.state == OFF or self.problem:
            return deadline_us
        now = self._clock.monotonic_us()
        until = self._until(now, deadline_us, muted)
        if until is None or now < self._not_before_us or not self.planner.seconds(until - now):
            self._linger_until_us = None
            return deadline_us
        if now < self._awake_until_us:
            return min(until, self._awake_until_us)
        if self._awaits():
            if self._linger_until_us is None:
                self._linger_until_us = now + LINGER_US
            if now < self._linger_until_us:
                return min(until, now + LOOK_US)
        self._linger_until_us = None
        self._sleep(until, self.planner.seconds(until - now))
        return self._clock.monotonic_us()

    def describe(self) -> dict[str, Any]:
        """For the status."""
        cost = None if self.planner is None else self.planner.cost
        ended = "" if self.planner is None else self.planner.ended
        if self.state != OFF and not (self.problem or ended):
            ended = self._kept_awake()
        known = cost is not None and math.isfinite(cost.wait_us_min)
        return {
            "state": self.state, "problem": self.problem or ended, "count": self.count,
            "late": self.late, "failed": self.failed,
            "seconds": round(self.asleep_us / 1e6, 3), "joules": round(self.joules, 6),
            "watts": None if cost is None else cost.watts,
            "source": "" if cost is None else cost.source,
            "transition_s": None if cost is None else round(cost.transition_us / 1e6, 3),
            "wait_s_min": round(cost.wait_us_min / 1e6, 3) if cost is not None and known else None,
        }  # fmt: skip

    def _kept_awake(self) -> str:
        """Which streams keep the machine awake; empty: none."""
        found = [f"{job.plan.name}.{stream}" for job in self._jobs() if not job.dormant
                 for stream in deaf(job.plan.streams.values())]  # fmt: skip
        return f"{', '.join(found)} would miss input" if found else ""

    def _until(self, now: int, deadline_us: int | None, muted: bool) -> int | None:
        """The end of the longest suspend; None: this daemon must stay awake."""
        jobs = [job for job in self._jobs() if not job.dormant]
        if not jobs or any(job.draining or deaf(job.plan.streams.values()) for job in jobs):
            return None
        due = [now + min(job.plan.promises.latency_us for job in jobs)]
        due += [] if deadline_us is None else [deadline_us]
        if not muted:
            due += [at for source in self._sources if (at := source.due_us()) is not None]
        return min(due)

    def _sleep(self, until_us: int, seconds: int) -> None:
        """Suspend once and book it."""
        assert self.planner is not None
        self._read()
        began_us, before_us = self._clock.monotonic_us(), suspended_us()
        reply = self._sleeper(self.state, seconds)
        now_us = self._clock.monotonic_us()
        took_us, asleep_us = now_us - began_us, suspended_us() - before_us
        if self._site.simulated is not None:
            asleep_us = 0 if reply.problem else took_us
        one = Suspended(seconds, asleep_us, took_us, max(0, now_us - until_us), reply.problem)
        self._book(one)
        failure = self.planner.done(one)
        if failure:
            self._not_before_us = until_us
            self._report(one, failure)
        if self._site.simulated is not None and asleep_us:
            self._resumed(asleep_us)

    def _book(self, one: Suspended) -> None:
        assert self.planner is not None
        cost, awake_us = self.planner.cost, max(0, one.took_us - one.asleep_us)
        self.count += not one.problem
        self.asleep_us += one.asleep_us
        simulated = self._site.simulated
        if simulated is not None and one.asleep_us:
            simulated.board.suspend(self._clock.monotonic_us(), one.asleep_us, cost.watts)
        joules = cost.joules(one.asleep_us, awake_us)
        found = self._watch.resume(joules)
        self.joules += joules if found is None else found.joules
        if found is None or one.asleep_us < MEASURED_US_MIN:
            return
        watts = (found.joules - cost.transition_watts * awake_us / 1e6) / (one.asleep_us / 1e6)
        if 0.0 < watts < cost.idle_watts:
            source = f"{found.rail.name}, {found.provenance.value}"
            self.planner.measured(replace(cost, watts=watts, source=source))

    def _report(self, one: Suspended, failure: str) -> None:
        """Publish a suspend that failed."""
        assert self.planner is not None
        facts = {"seconds": one.asked_s, "asleep_us": one.asleep_us, "late_us": one.late_us,
                 "problem": failure, "failures": self.planner.failures}  # fmt: skip
        late = not one.problem and one.late_us > LATE_US
        self.late += late
        self.failed += not late
        kind = "suspend.late" if late else "suspend.failed"
        self._publish(kind, "warning", f"suspend: {failure}", facts)
        if self.planner.ended:
            text = f"no more suspends until the next start: {self.planner.ended}"
            self._publish("suspend.ended", "error", text, {"problem": self.planner.ended})

    def _choose(self, settings: EnergySettings) -> Sleeper:
        """This process where it may write the state, else the helper."""
        if self._site.simulated is not None or os.geteuid() == 0:
            return partial(suspend, self._site.sysfs)
        return partial(suspend_through, settings.helper)


def deaf(streams: Any) -> list[str]:
    """Streams whose source would miss input while the machine is suspended, with its kind."""
    return [f"{s.section}.{s.name}" for s in streams if not s.source.polls]
