"""The policy that runs, its origin, and whether it may set anything on this board.

The daemon has a policy of its own: the default (which counts as no choice), the configuration's,
the centre's, or the last one chosen by a command, which survives restarts
(`edged.energy.policy_store`). A job may have one too, from its document or a command
(`edged.beat.jobs`); `governors.policies.combined` merges them.

Where the chosen policy cannot set anything, `hands_off` runs with the reason in `problem`: missing
permission, another daemon that owns the board, a missing battery, or an error.  The choice is kept.
Except after an error it starts as soon as it can (the other daemon has released the board, a helper
was started, permission was granted). That is checked at meter readings and at beats, at most every
RETRY_US, and never causes a wakeup of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edged.energy.board import BoardSite
from edged.energy.limits import OwnedLimits
from edged.errors import ConfigError
from governors.actuators.journal import OwnedElsewhere
from governors.base import HANDS_OFF
from governors.board_tariffs import Unpriced
from governors.cost import CostModel
from governors.errors import GovernorError, NotPermitted
from governors.health import zones
from governors.heat_limit import HeatLimit
from governors.meters.battery import batteries, state
from governors.policies.base import BATTERY, VOLTS, ZONE, Policy, PolicySettings, load_all
from governors.policies.running import Running
from governors.tariff import Tariff
from governors.thermal import thermal_nodes

RETRY_US = 2_000_000
DEFAULT, CONFIGURATION, COMMAND, DOCUMENT = "default", "configuration", "command", "document"
RIGHTS, OTHER, BOARD = "rights", "another daemon", "the board"
CENTRE = "centre"
"""Origins of a choice."""
Publish = Callable[[str, str, str, dict[str, Any]], None]
"""Publishes an event: kind, level, text, facts."""


@dataclass(frozen=True)
class PolicyChoice:
    """A chosen policy."""

    policy: str
    settings: PolicySettings = field(default_factory=dict)
    origin: str = DEFAULT

    def as_dict(self) -> dict[str, Any]:
        """For the status."""
        return {"policy": self.policy, "settings": dict(self.settings), "origin": self.origin}


class Policies:
    """Chosen policies and the one that runs.  One thread; between beats only."""

    def __init__(
        self,
        site: BoardSite,
        tariff: Tariff | None,
        limits: OwnedLimits,
        own: PolicyChoice,
        publish: Publish,
        max_celsius: float | None = None,
    ) -> None:
        """Raises ConfigError where the daemon's policy or one of its settings does not exist."""
        self._site, self._tariff, self._limits = site, tariff, limits
        self.publish = publish
        self.model = CostModel(tariff or Unpriced())
        self.heat = HeatLimit(max_celsius, thermal_nodes(site.profile), self.model)
        """The limit of the temperature, for any policy."""
        self.running = Running(HANDS_OFF, {}, self.model, chosen=False, heat=self.heat)
        self.own = own
        self.jobs: dict[str, PolicyChoice] = {}
        """By job."""
        self.rejected: dict[str, str] = {}
        """Jobs whose choice cannot run here, with the reason."""
        self.problem = ""
        """Why another policy than the chosen one runs."""
        self.awaits = False
        """Whether the problem may end by itself."""
        self._waits_for = RIGHTS
        """Condition that has to end, then."""
        self._reported = ""
        """The last reported problem; empty once a policy has started."""
        self._retried_us = 0
        self._begun = False
        self._applied: tuple[PolicyChoice, dict[str, PolicyChoice]] = (PolicyChoice(HANDS_OFF), {})
        self.check(own.policy, own.settings)

    @property
    def sets(self) -> bool:
        """Whether the running policy, or the limit of the temperature, may set anything."""
        return self.running.policy.name != HANDS_OFF or self.heat.configured is not None

    @property
    def asks_heat(self) -> bool:
        """Whether the temperature is asked for before and after each race."""
        return self.heat.configured is not None or ZONE in self.running.policy.needs

    def check(self, name: str, settings: PolicySettings) -> Policy:
        """The policy, without running it.  Raises ConfigError for one that can never run here."""
        try:
            policy = Running(name, settings, self.model).policy
        except GovernorError as problem:
            raise ConfigError(str(problem)) from problem
        if self._tariff is None and policy.needs_model:
            raise ConfigError(
                f"policy {name} needs a power model, and this machine"
                f" ({self._site.board.name}) has none: choose {_unmodelled()}, or give it a"
                " stand-in's figures: --power-model generic-x86, energy.power_model"
            )
        return policy

    def admit(self, name: str, settings: PolicySettings) -> None:
        """Raises ConfigError for a policy that cannot run here now, for callers that can choose
        another."""
        if lacks := self._lacks(self.check(name, settings)):
            raise ConfigError(lacks)

    def _lacks(self, policy: Policy) -> str:
        """Why the board does not meet the policy's needs; empty where it does."""
        if not policy.needs:
            return ""
        states = [state(self._site.sysfs, name) for name in batteries(self._site.sysfs)]
        has = {
            BATTERY: any(battery.remaining_j for battery in states),
            VOLTS: any(battery.volts for battery in states),
            ZONE: any(True for _ in zones(self._site.sysfs)),
        }
        lacking = [need for need in policy.needs if not has[need]]
        if not lacking:
            return ""
        other = (
            '; joules_per_day needs none, nor does until with battery = "50Wh"'
            if BATTERY in lacking
            else ""
        )
        return f"policy {policy.name} needs {' and '.join(lacking)}; this board has none{other}"

    def begin(self) -> None:
        """Start running the chosen policies."""
        self._begun = True
        self._enter()

    def switch(self, own: PolicyChoice) -> None:
        """Replace the daemon's own policy.  Raises ConfigError, and then keeps the old one."""
        self.admit(own.policy, own.settings)
        self.own = own
        self._enter()

    def limit_heat(self, max_celsius: float | None) -> None:
        """Change the configured limit of the temperature; None: no limit."""
        self.heat.configure(max_celsius)
        self._enter()

    def of_jobs(self, chosen: Mapping[str, PolicyChoice]) -> bool:
        """Set the choices of all jobs; returns whether they changed.  A choice that cannot run here
        is ignored; its job runs nevertheless."""
        if chosen == self.jobs:
            return False
        self.jobs, self.rejected = dict(chosen), {}
        for job, choice in chosen.items():
            try:
                self.admit(choice.policy, choice.settings)
            except ConfigError as problem:
                self.rejected[job] = str(problem)
        self._enter()
        return True

    def retry(self, now_us: int) -> bool:
        """Start a waiting policy if its condition has ended; returns whether that was tried."""
        if not self.awaits or now_us - self._retried_us < RETRY_US:
            return False
        self._retried_us = now_us
        if self._waits_for == RIGHTS and not self._limits.may():
            return False
        self._enter()
        return True

    def fall_back(self, why: str) -> None:
        """Run `hands_off` for the daemon and all jobs until the next choice."""
        self.problem = why
        self._apply(PolicyChoice(HANDS_OFF), {})
        self._release_limits()
        if why != self._reported:
            text = f"no clocks are set: {why}"
            self.publish("policy.fell_back", "warning", text, {"problem": why})
        self._reported = why

    def pinned_hz(self) -> int:
        """CPU clock that is pinned by limits; 0 without one."""
        for name, setting in self.running.standing.items():
            if name.startswith("cpu") and setting.hz and not self._limits.clamped:
                return setting.hz
        return 0

    def as_dict(self) -> dict[str, Any]:
        """Running and chosen policies, for the status."""
        return {
            "policy": self.running.policy.name,
            "settings": {} if self.problem else dict(self.own.settings),
            "problem": self.problem,
            "awaited": self._awaited(),
            "own": self.own.as_dict(),
            "jobs": {
                job: {**choice.as_dict(), "problem": self.rejected.get(job, "")}
                for job, choice in self.jobs.items()
            },
        }

    def _awaited(self) -> str | None:
        """Policies that start as soon as they can."""
        if not self.awaits:
            return None
        chosen = [*self.jobs.values(), *([self.own] if self.own.origin != DEFAULT else [])]
        return ", ".join(dict.fromkeys(choice.policy for choice in chosen))

    def _enter(self) -> None:
        """Apply the choices, as far as they may set anything here."""
        if not self._begun:
            return
        self.problem, self.awaits = "", False
        if lacks := self._lacks(self.check(self.own.policy, self.own.settings)):
            self.awaits, self._waits_for = True, BOARD
            self.fall_back(lacks)
            return
        accepted = {job: c for job, c in self.jobs.items() if job not in self.rejected}
        self._apply(self.own, accepted)
        if not self.sets:
            self._release_limits()
            return
        try:
            self._limits.take()
        except GovernorError as problem:
            self.awaits = isinstance(problem, NotPermitted)
            self._waits_for = OTHER if isinstance(problem, OwnedElsewhere) else RIGHTS
            self.fall_back(str(problem))
        else:
            self._reported = ""

    def _apply(self, own: PolicyChoice, jobs: Mapping[str, PolicyChoice]) -> None:
        """Update the running policies; unchanged ones keep their state."""
        was, were = self._applied
        for job in were.keys() - jobs.keys():
            self.running.drop(job)
        if own != was:
            self.running.switch(own.policy, own.settings, chosen=own.origin != DEFAULT)
        for job, choice in jobs.items():
            if were.get(job) != choice:
                self.running.choose(job, choice.policy, choice.settings)
        self._applied = (own, dict(jobs))

    def _release_limits(self) -> None:
        for dial in list(self.running.standing):
            self.running.lost(dial)
        for line in self._limits.release():
            complain(line)


def complain(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"edged: energy: {line}\n")
    sys.stderr.flush()


def _unmodelled() -> str:
    """Policies that need no power model, `hands_off` first."""
    names = [name for name, policy in load_all().items() if not policy.needs_model]
    return " or ".join(sorted(names, key=lambda name: (name != HANDS_OFF, name)))
