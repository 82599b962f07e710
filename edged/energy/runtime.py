"""The governor of a running daemon: what the heart calls before a race, in it and after it.

    heart ─► Energy ─► Accounts   measures   CPU time, what races cost, the rate of arrival
                    ─► Sight      tells      the policy what is to be seen
                    ─► Policies   decide     which one runs, who chose it
                    ─► Acting     sets       clocks, sleeps, waits, intake, upload windows
                    ─► Watch      reports    meters on their own timer, joules, the ledger

Nothing here may end the daemon: any error leaves `hands_off`, with the reason in the status, and is
written to standard error once.  Under `hands_off` nothing is owned and nothing is asked: beats are
only counted.

Where the policy is about to race, a board's clocks are set for what is expected to wait: what is
staged, and what arrives at the rate of the last beats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from edged.beat.runtime import JobRuntime
from edged.energy.accounts import Accounts
from edged.energy.actuation import Actuation, Windows
from edged.energy.board import BoardSite
from edged.energy.limits import OwnedLimits
from edged.energy.metering import Metering
from edged.energy.observation import ObservationBuilder
from edged.energy.policies import (
    COMMAND,
    CONFIGURATION,
    DEFAULT,
    DOCUMENT,
    Policies,
    PolicyChoice,
    Tell,
    complain,
)
from edged.energy.policy_store import PolicyStore
from edged.energy.settings import HANDS_OFF, EnergySettings
from edged.energy.tariffs import board_tariff, prices
from edged.errors import ConfigError
from edged.platform.clock import Clock
from governors.base import Done, Forecast, Steer
from governors.errors import GovernorError
from governors.policies.base import Observation, PolicySettings
from governors.tariff import Tariff

__all__ = ["EnergyGovernor", "board_tariff", "chosen_by"]


class EnergyGovernor:
    """Implements `governors.base.Governor`.  Between beats and in its hooks only: one thread."""

    def __init__(
        self,
        settings: EnergySettings,
        site: BoardSite,
        tariff: Tariff | None,
        clock: Clock,
        workers: int,
    ) -> None:
        """Raises ConfigError where the policy or one of its settings does not exist."""
        self.settings, self.site, self.tariff = settings, site, tariff
        self.configured = _configured(settings.policy, settings.settings)
        """The daemon's policy as the configuration has it."""
        self.watch = Metering(site, tariff, clock)
        self.limits = OwnedLimits(site, tariff)
        self.policies = Policies(site, tariff, self.limits, self.configured)
        self.acting = Actuation(self.policies, self.limits)
        self.accounts = Accounts(
            site, self.watch, clock, workers, self.policies.pinned_hz, self.limits.clock_hz,
            lambda: self.wakes(),
        )  # fmt: skip
        self._sight = ObservationBuilder(site, self.watch, self.limits, self.accounts)
        self._forecast = Forecast(0, 0, 0, 1, 0)
        self._prices = prices(site, tariff, self.policies.running, self._placed)
        self.uplink_pid: Callable[[], int | None] = lambda: None
        self.wakes: Callable[[], int] = lambda: 0
        self.tasks: Callable[[], Sequence[int]] = tuple
        """Threads that race beside the one that calls the hooks."""
        if site.sleeps.clamps is not None:
            site.sleeps.clamps.tasks = lambda: self.tasks()
        self._clock = clock
        self._steer = self.acting.steer
        self._failed = False
        self._light = False
        """Whether hooks only count."""
        self._silent: set[tuple[str, str]] = set()
        """Rails whose meters tell nothing just now."""

    def attach(self, jobs: Sequence[JobRuntime]) -> None:
        """The jobs by whose operators' times joules are shared, and what they have chosen.  Call it
        again when either changes: a job that is gone has no say in the policy any more."""
        self.settle()
        self.accounts.attach(jobs)
        for placer in (placer for job in jobs for placer in job.placers.values()):
            placer.prices = self._prices
        if self.policies.of_jobs({job.plan.name: c for job in jobs if (c := chosen_by(job))}):
            self._entered()

    @property
    def held(self) -> Windows | None:
        """Pages that wait for the uplink."""
        return self.acting.held

    @held.setter
    def held(self, windows: Windows | None) -> None:
        self.acting.held = windows

    @property
    def tell(self) -> Tell:
        """Told of what people should know."""
        return self.policies.tell

    @tell.setter
    def tell(self, tell: Tell) -> None:
        self.policies.tell = tell

    def restore(self) -> list[str]:
        """Restore what a daemon that died has left, whatever policy is to run; what was done."""
        try:
            self.limits.restore()
        except GovernorError as problem:
            return [f"limits were not restored: {problem}"]
        return list(self.limits.restored)

    def recall(self, kept: PolicyStore) -> list[str]:
        """Before `start`: what a command chose in an earlier process counts, unless the
        configuration has changed since; lines for people where it does not."""
        try:
            choice, line = kept.load(self.configured)
        except OSError as problem:
            return [f"which policy a command chose is not known: {problem}"]
        if choice is None:
            return [line] if line else []
        try:
            self.policies.check(choice.policy, choice.settings)
        except ConfigError as problem:
            return [f"policy {choice.policy}, which a command chose, cannot run: {problem}"]
        self.policies.own = choice
        return []

    def start(self) -> None:
        """Begin with what was chosen; the default is nobody's choice, and jobs overrule it."""
        self.policies.begin()
        self._entered()

    def close(self) -> None:
        """Give back what is ours.  Never raises."""
        try:
            for line in self.limits.release():
                complain(line)
            self.site.writer.close()
            self.watch.close()
        except Exception as problem:  # the data is safe: say it, and go
            complain(f"giving back the board: {problem}")

    # the policy --------------------------------------------------------------------------------

    def check(self, name: str, settings: PolicySettings) -> None:
        """Raise ConfigError for a policy that somebody chooses and that cannot run here."""
        self.policies.admit(name, settings)

    def switch(self, name: str, settings: PolicySettings, origin: str = COMMAND) -> dict[str, Any]:
        """Go on with a policy; what runs then.  Raises ConfigError, and the old one goes on."""
        was = self.policies.running.policy.name
        self.settle()
        self.policies.switch(PolicyChoice(name, dict(settings), origin))
        self._entered()
        return {**self.policy(), "was": was}

    def configure(self, name: str, settings: PolicySettings) -> None:
        """The configuration has another policy now, which is the last word.  Raises ConfigError."""
        configured = _configured(name, settings)
        self.switch(name, settings, configured.origin)
        self.configured = configured

    def policy(self) -> dict[str, Any]:
        """What runs, why, what it foresees, and who chose what."""
        seen, runs = self._seen(self._clock.monotonic_us()), self.policies.running.policy
        budget = runs.budget(seen)
        return {
            **self.policies.told(),
            "reason": self.acting.reason,
            "forecast": runs.forecast(seen),
            "budget": None if budget is None else asdict(budget),
        }

    def settle(self) -> None:
        """Book what was only counted."""
        if self.accounts.settle():
            now_us = self._clock.monotonic_us()
            self.policies.running.account.add(now_us, self.watch.joules(now_us))

    def _entered(self) -> None:
        """Another policy may run."""
        self.acting.lift()
        self._steer = self.acting.steer
        self._light = not self.policies.sets and self.site.simulated is None

    def _retry(self, now_us: int) -> None:
        if self.policies.awaits and self.policies.retry(now_us):
            self._entered()

    def _fail(self, problem: Exception) -> None:
        """Whatever it was, the beats go on."""
        try:
            self.policies.fall_back(f"{type(problem).__name__}: {problem}")
        except Exception as second:  # even giving back has failed
            self.policies.problem = f"{problem}; then {second}"
        self._entered()
        if not self._failed:
            self._failed = True
            complain(self.policies.problem)

    # hooks -------------------------------------------------------------------------------------

    def race(self, forecast: Forecast) -> Steer:
        """A race is about to start."""
        self._forecast = forecast
        try:
            self._retry(forecast.at_us)
            if self._light:
                self.accounts.count_begun(forecast.at_us)
                return self._steer
            self.settle()
            self.accounts.pass_time(forecast.at_us)
            self._steer.units_max = None
            if self.policies.sets:
                self.acting.before(forecast.at_us, lambda: self._seen(forecast.at_us))
        except Exception as problem:  # a hook never raises
            self._fail(problem)
        self.accounts.begin()
        return self._steer

    def ingested(self) -> None:
        """What had arrived is taken in."""
        self.accounts.ingested(self._light)

    def idle(self, done: Done) -> Steer:
        """The race is over."""
        now_us = self._clock.monotonic_us()
        if self._light:
            self.accounts.count(done, now_us)
            return self._steer
        now_ns = time.process_time_ns()
        try:
            self._steer.units_max = None
            self.accounts.end(done, now_us, now_ns)
            if self.policies.sets:
                now_us = self._clock.monotonic_us()
                seen = replace(self._seen(now_us), raced=float(done.taken))
                self.acting.after(seen, self.watch.others_cores)
            else:
                self.policies.running.account.add(now_us, self.watch.joules(now_us))
            if self.site.simulated is not None:
                self.accounts.mark()  # what a simulated board takes here is no board's work
        except Exception as problem:  # a hook never raises
            self._fail(problem)
        return self._steer

    def read(self) -> None:
        """The timer's handler: a reading is due."""
        before_ns, read_us = time.thread_time_ns(), self.watch.sampler.cpu_us
        try:
            self._retry(self._clock.monotonic_us())
            self.settle()
            self.accounts.ship(self.uplink_pid())
            self.watch.read(self.accounts.spent())
            self.watch.arm()
            self._tell_silent()
        except Exception as problem:  # meters do not raise: what does is a bug, and no beat's
            self.watch.timer.disarm()
            self._fail(problem)
        own_ns = time.thread_time_ns() - before_ns
        if self.site.simulated is not None:
            self.accounts.leave_out(own_ns)
        else:
            self.watch.sampler.booked(own_ns / 1e3 - (self.watch.sampler.cpu_us - read_us))

    def _tell_silent(self) -> None:
        """Tell of rails whose meters tell nothing any more, and of those that do again."""
        problems = self.watch.sampler.problems()
        for meter, rail in problems.keys() - self._silent:
            text = f"{meter} tells nothing of {rail}: {problems[meter, rail]}"
            self.tell("meter.lost", "warning", text, {"meter": meter, "rail": rail})
        for meter, rail in self._silent - problems.keys():
            text = f"{meter} tells of {rail} again"
            self.tell("meter.back", "info", text, {"meter": meter, "rail": rail})
        self._silent = set(problems)

    def _placed(self) -> Observation:
        """What placement looks at, with the dials of a board that is left alone as well."""
        seen = self._seen(self._clock.monotonic_us())
        return replace(seen, dials=self.limits.standing())

    def _seen(self, now_us: int) -> Observation:
        return self._sight.seen(self._forecast, now_us, self.acting.held)


def chosen_by(job: JobRuntime) -> PolicyChoice | None:
    """A job's policy: the one that a command named last, else that of its document."""
    told, written = job.about.governor, job.plan.governor
    if told is not None:
        return PolicyChoice(told["policy"], told["settings"], COMMAND)
    return None if written is None else PolicyChoice(written.policy, written.settings, DOCUMENT)


def _configured(policy: str, settings: PolicySettings) -> PolicyChoice:
    return PolicyChoice(policy, dict(settings), DEFAULT if policy == HANDS_OFF else CONFIGURATION)
