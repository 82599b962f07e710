"""Energy governor of a running daemon: the hooks that the heart calls around a race.

    heart ─► EnergyGovernor ─► Accounts             CPU time, cost of races, arrival rate
                            ─► ObservationBuilder   observation for the policy
                            ─► Policies             which policy runs, and its origin
                            ─► Actuation            clocks, sleeps, waits, intake, upload windows
                            ─► Metering             meters on their own timer, joules, the ledger

No error here ends the daemon: any exception switches to `hands_off` with the reason in the status,
and is written to standard error once.  Under `hands_off` nothing is owned and no policy is called:
beats are only counted.

Before a race, clocks are set for the expected number of waiting units: the staged ones, and
arrivals at the rate of the last beats.
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
from edged.energy.merge_prices import MergePrices
from edged.energy.metering import Metering
from edged.energy.observation import ObservationBuilder
from edged.energy.policies import (
    COMMAND,
    CONFIGURATION,
    DEFAULT,
    DOCUMENT,
    Policies,
    PolicyChoice,
    Publish,
    complain,
)
from edged.energy.policy_store import PolicyStore
from edged.energy.settings import EnergySettings
from edged.energy.suspends import Suspends
from edged.energy.tariffs import board_tariff, prices
from edged.energy.tenancy import GpuTenancy
from edged.errors import ConfigError
from edged.platform.clock import Clock
from edged.tables.costs import MergePricing
from governors.base import HANDS_OFF, Done, Forecast, Steer
from governors.errors import GovernorError
from governors.gpu_tenants import GpuTenants
from governors.health import HealthReader
from governors.policies.base import Observation, PolicySettings
from governors.tariff import Tariff

__all__ = ["EnergyGovernor", "board_tariff", "chosen_by"]


class EnergyGovernor:
    """Implements `governors.base.Governor`. One thread: in its hooks and between beats."""

    def __init__(
        self,
        settings: EnergySettings,
        site: BoardSite,
        tariff: Tariff | None,
        clock: Clock,
        workers: int,
        *,
        publish: Publish = lambda *_: None,
        wakes: Callable[[], int] = lambda: 0,
        tasks: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """`publish` publishes events, `wakes` counts the event loop's wakes, `tasks` returns the
        racing threads besides the one that calls the hooks.

        Raises ConfigError where the policy or one of its settings does not exist.
        """
        self.settings, self.site, self.tariff = settings, site, tariff
        self.configured = _configured(settings.policy, settings.settings)
        """The configuration's policy."""
        self.watch = Metering(site, tariff, clock)
        self.limits = OwnedLimits(site, tariff)
        self.policies = Policies(
            site, tariff, self.limits, self.configured, publish, settings.max_celsius
        )
        self.acting = Actuation(self.policies, self.limits)
        self.accounts = Accounts(
            site, self.watch, clock, workers, self.policies.pinned_hz, self.limits.clock_hz,
            wakes,
        )  # fmt: skip
        self.health = HealthReader(site.sysfs, site.knobs, site.simulated is not None)
        """Temperatures, throttling and GPU load; read only when a status is asked for."""
        self._builder = ObservationBuilder(
            site, self.watch, self.limits, self.accounts, lambda: self.policies.asks_heat
        )
        self._forecast = Forecast(0, 0, 0, 1, 0)
        self._merge_prices = MergePrices(tariff, self.limits.clock_hz)
        self.merging = MergePricing()
        """The price of energy for the merges of tables, set before each race."""
        self._prices = prices(site, tariff, self.policies.running, self._placed)
        self._publish = publish
        self._uplink_pid: Callable[[], int | None] = lambda: None
        self.gpu = GpuTenancy(
            GpuTenants(site.sysfs, site.simulated is not None), settings.gpu_share,
            clock.monotonic_us, publish,
        )  # fmt: skip
        self.limits.gpu_shared = self.gpu.shared
        self.suspends = Suspends(
            settings, site, tariff, self.watch, clock, publish,
            lambda: self.watch.read(self.accounts.spent(), True),
        )  # fmt: skip
        if site.sleeps.clamps is not None:
            site.sleeps.clamps.tasks = tasks
        self._clock = clock
        self._steer = self.acting.steer
        self._failed = False
        self._light = False
        """Whether hooks only count."""
        self._silent: set[tuple[str, str]] = set()
        """Rails whose meters give no readings now."""

    def attach(self, jobs: Sequence[JobRuntime]) -> None:
        """Set the running jobs and their chosen policies.  Call it again when either changes."""
        self.settle()
        self.accounts.attach(jobs)
        for placer in (placer for job in jobs for placer in job.placers.values()):
            placer.prices = self._prices
        self.gpu.attach(jobs)
        if self.policies.of_jobs({job.plan.name: c for job in jobs if (c := chosen_by(job))}):
            self._entered()

    def connect_uplink(self, pid: Callable[[], int | None], windows: Windows | None) -> None:
        """Measure the uplink's process, and let policies delay the pages that wait for it."""
        self._uplink_pid, self.acting.held = pid, windows

    def restore(self) -> list[str]:
        """Restore the limits that a dead daemon left, for any policy; returns lines for users."""
        try:
            self.limits.restore()
        except GovernorError as problem:
            return [f"limits were not restored: {problem}"]
        return list(self.limits.restored)

    def recall(self, store: PolicyStore) -> list[str]:
        """Apply the stored choice of a command unless the configuration has changed since; call it
        before `start`. Returns lines for users where it does not apply."""
        try:
            choice, line = store.load(self.configured)
        except OSError as problem:
            return [f"the policy chosen by a command cannot be read: {problem}"]
        if choice is None:
            return [line] if line else []
        try:
            self.policies.check(choice.policy, choice.settings)
        except ConfigError as problem:
            return [f"policy {choice.policy}, chosen by a command, cannot run: {problem}"]
        self.policies.own = choice
        return []

    def start(self) -> None:
        """Start the chosen policies.  The files that a status shows are found now, not within the
        wait of a beat."""
        self.health.look(self._clock.monotonic_us())
        self.policies.begin()
        self._entered()

    def close(self) -> None:
        """Restore the limits and close the meters.  Never raises."""
        try:
            for line in self.limits.release():
                complain(line)
            self.site.writer.close()
            self.watch.close()
        except Exception as problem:  # the data is safe: report and continue
            complain(f"giving back the board: {problem}")

    # the policy --------------------------------------------------------------------------------

    def check(self, name: str, settings: PolicySettings) -> None:
        """Raises ConfigError for a policy that cannot run here."""
        self.policies.admit(name, settings)

    def switch(self, name: str, settings: PolicySettings, origin: str = COMMAND) -> dict[str, Any]:
        """Replace the daemon's policy; returns the running one.  Raises ConfigError, and then keeps
        the old one."""
        was = self.policies.running.policy.name
        self.settle()
        self.policies.switch(PolicyChoice(name, dict(settings), origin))
        self._entered()
        return {**self.policy(), "was": was}

    def configure(self, name: str, settings: PolicySettings) -> None:
        """Apply a new policy of the configuration.  Raises ConfigError."""
        configured = _configured(name, settings)
        self.switch(name, settings, configured.origin)
        self.configured = configured

    def limit_heat(self, max_celsius: float | None) -> None:
        """Apply another `max_celsius` of the configuration; None: no limit."""
        self.policies.limit_heat(max_celsius)
        self.acting.end_heat_hold()
        self._entered()

    def policy(self) -> dict[str, Any]:
        """The running policy, its reason and forecast, and all choices."""
        observed, runs = self._observe(self._clock.monotonic_us()), self.policies.running.policy
        budget = runs.budget(observed)
        return {
            **self.policies.as_dict(),
            "reason": self.acting.reason,
            "forecast": runs.forecast(observed),
            "cap_watts": runs.cap_watts,
            "budget": None
            if budget is None
            else {**asdict(budget), "provenance": self.watch.provenance.value},
        }

    def settle(self) -> None:
        """Book the counted beats."""
        if self.accounts.settle():
            now_us = self._clock.monotonic_us()
            self.policies.running.account.add(now_us, self.watch.joules(now_us))

    def _entered(self) -> None:
        """Another policy may run now."""
        self.acting.lift()
        self._steer = self.acting.steer
        self._light = not self.policies.sets and self.site.simulated is None

    def _retry(self, now_us: int) -> None:
        if self.policies.awaits and self.policies.retry(now_us):
            self._entered()

    def _fail(self, problem: Exception) -> None:
        """Fall back after an exception; beats continue."""
        try:
            self.policies.heat.configured = None
            self.policies.fall_back(f"{type(problem).__name__}: {problem}")
        except Exception as second:  # the fallback failed too
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
            held = self.acting.held
            self._merge_prices.set(self.merging, self._builder.battery, held, forecast.at_us)
            if self._light:
                self.accounts.count_begun(forecast.at_us)
                return self._steer
            self.settle()
            self.accounts.pass_time(forecast.at_us)
            self._steer.units_max = None
            if self.policies.sets:
                self.acting.before(forecast.at_us, lambda: self._observe(forecast.at_us))
        except Exception as problem:  # a hook never raises
            self._fail(problem)
        self.accounts.begin()
        return self._steer

    def commit(self, forecast: Forecast) -> None:
        """A beat that only commits is about to start."""
        if self._light or not self.policies.sets:
            return
        self._forecast = forecast
        try:
            self.acting.before_commit(self._observe(forecast.at_us))
        except Exception as problem:  # a hook never raises
            self._fail(problem)

    def ingested(self) -> None:
        """The ingest is complete."""
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
                observed = replace(self._observe(now_us), raced=float(done.taken))
                self.acting.after(observed, self.watch.others_cores)
            else:
                self.policies.running.account.add(now_us, self.watch.joules(now_us))
            if self.site.simulated is not None:
                self.accounts.mark()  # simulating a board is not work of the board
        except Exception as problem:  # a hook never raises
            self._fail(problem)
        return self._steer

    def read(self) -> None:
        """Handler of the timer: a reading is due."""
        before_ns, read_us = time.thread_time_ns(), self.watch.sampler.cpu_us
        try:
            self._retry(self._clock.monotonic_us())
            self.settle()
            self.accounts.ship(self._uplink_pid())
            self.watch.read(self.accounts.spent())
            self.watch.arm()
            self._publish_silent()
        except Exception as problem:  # meters do not raise: a bug, but beats continue
            self.watch.timer.disarm()
            self._fail(problem)
        own_ns = time.thread_time_ns() - before_ns
        if self.site.simulated is not None:
            self.accounts.leave_out(own_ns)
        else:
            self.watch.sampler.booked(own_ns / 1e3 - (self.watch.sampler.cpu_us - read_us))

    def _publish_silent(self) -> None:
        """Publish rails whose meters stopped or resumed giving readings."""
        problems = self.watch.sampler.problems()
        for meter, rail in problems.keys() - self._silent:
            text = f"{meter} gives no reading of {rail}: {problems[meter, rail]}"
            self._publish("meter.lost", "warning", text, {"meter": meter, "rail": rail})
        for meter, rail in self._silent - problems.keys():
            text = f"{meter} reads {rail} again"
            self._publish("meter.back", "info", text, {"meter": meter, "rail": rail})
        self._silent = set(problems)

    def _placed(self) -> Observation:
        """Observation for placement, with the dials even where nothing is owned."""
        observed = self._observe(self._clock.monotonic_us())
        return replace(observed, dials=self.limits.standing())

    def _observe(self, now_us: int) -> Observation:
        return self._builder.build(self._forecast, now_us, self.acting.held)


def chosen_by(job: JobRuntime) -> PolicyChoice | None:
    """A job's policy: the last one chosen by a command, else that of its document."""
    commanded, written = job.meta.governor, job.plan.governor
    if commanded is not None:
        return PolicyChoice(commanded["policy"], commanded["settings"], COMMAND)
    return None if written is None else PolicyChoice(written.policy, written.settings, DOCUMENT)


def _configured(policy: str, settings: PolicySettings) -> PolicyChoice:
    return PolicyChoice(policy, dict(settings), DEFAULT if policy == HANDS_OFF else CONFIGURATION)
