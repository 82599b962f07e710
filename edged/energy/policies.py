"""Which policy runs, who chose it, and whether it may set anything here.

The daemon has a policy of its own: the default, which is nobody's choice, the configuration's, the
centre's, or the one that a command named last, which is kept over restarts
(`edged.energy.policy_store`). A job may have one besides, of its document or of a command
(`edged.beat.jobs`); `governors.policies.combined` says whose voice counts.

Whoever may not set anything leaves `hands_off`, with the reason in `problem`: a board without
permission, another daemon that owns it, a battery that is not there, an error.  What was chosen
stays chosen meanwhile.  Unless it was an error it begins when it can (the other daemon has let go,
a helper was started, rights were given): that is looked for when meters are read and at beats,
every RETRY_US at most, and never by a wake of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edged.energy.board import BoardSite
from edged.energy.limits import OwnedLimits
from edged.energy.settings import HANDS_OFF
from edged.errors import ConfigError
from governors.actuators.journal import OwnedElsewhere
from governors.board_tariffs import Unpriced
from governors.cost import CostModel
from governors.errors import GovernorError, NotPermitted
from governors.meters.battery import batteries, state
from governors.policies.base import BATTERY, VOLTS, Policy, PolicySettings, load_all
from governors.policies.running import Running
from governors.tariff import Tariff

RETRY_US = 2_000_000
DEFAULT, CONFIGURATION, COMMAND, DOCUMENT = "default", "configuration", "command", "document"
RIGHTS, OTHER, BOARD = "rights", "another daemon", "the board"
CENTRE = "centre"
"""Where a choice comes from."""
Tell = Callable[[str, str, str, dict[str, Any]], None]
"""Kind of event, level, text, facts."""


@dataclass(frozen=True)
class PolicyChoice:
    """A policy that somebody has chosen."""

    policy: str
    settings: PolicySettings = field(default_factory=dict)
    origin: str = DEFAULT

    def told(self) -> dict[str, Any]:
        """For people."""
        return {"policy": self.policy, "settings": dict(self.settings), "origin": self.origin}


class Policies:
    """What was chosen and what of it runs.  Between beats only: one thread."""

    def __init__(
        self, site: BoardSite, tariff: Tariff | None, limits: OwnedLimits, own: PolicyChoice
    ) -> None:
        """Raises ConfigError where the daemon's policy or one of its settings does not exist."""
        self._site, self._tariff, self._limits = site, tariff, limits
        self.model = CostModel(tariff or Unpriced())
        self.running = Running(HANDS_OFF, {}, self.model, chosen=False)
        self.own = own
        self.jobs: dict[str, PolicyChoice] = {}
        """By job."""
        self.unheard: dict[str, str] = {}
        """Jobs whose choice cannot run here, and why."""
        self.problem = ""
        """Why another policy runs than was asked for."""
        self.awaits = False
        """Whether that may end by itself."""
        self.tell: Tell = lambda *_: None
        self._waits_for = RIGHTS
        """What for, then."""
        self._told = ""
        """Of problems, the last that was told of; empty once a policy has begun."""
        self._retried_us = 0
        self._begun = False
        self._applied: tuple[PolicyChoice, dict[str, PolicyChoice]] = (PolicyChoice(HANDS_OFF), {})
        self.check(own.policy, own.settings)

    @property
    def sets(self) -> bool:
        """Whether what runs may set anything."""
        return self.running.policy.name != HANDS_OFF

    def check(self, name: str, settings: PolicySettings) -> Policy:
        """The policy, which is not asked.  Raises ConfigError for one that can never run here."""
        try:
            policy = Running(name, settings, self.model).policy
        except GovernorError as problem:
            raise ConfigError(str(problem)) from problem
        if self._tariff is None and policy.needs_model:
            raise ConfigError(
                f"policy {name} needs a power model, and there is none of this board"
                f" ({self._site.board.name}): {_unmodelled()}"
            )
        return policy

    def admit(self, name: str, settings: PolicySettings) -> None:
        """Raise ConfigError for a policy that cannot run here, or not now: somebody is choosing
        it, and can choose another."""
        if lacks := self._lacks(self.check(name, settings)):
            raise ConfigError(lacks)

    def _lacks(self, policy: Policy) -> str:
        """What the board has not that the policy needs; empty: nothing."""
        if not policy.needs:
            return ""
        told = [state(self._site.sysfs, name) for name in batteries(self._site.sysfs)]
        has = {
            BATTERY: any(battery.remaining_j for battery in told),
            VOLTS: any(battery.volts for battery in told),
        }
        lacking = [need for need in policy.needs if not has[need]]
        if not lacking:
            return ""
        other = "; joules_per_day needs none" if BATTERY in lacking else ""
        return f"policy {policy.name} needs {' and '.join(lacking)}, and there is none here{other}"

    def begin(self) -> None:
        """From now on what is chosen runs."""
        self._begun = True
        self._enter()

    def switch(self, own: PolicyChoice) -> None:
        """The daemon's own policy is another.  Raises ConfigError, and the old one goes on."""
        self.admit(own.policy, own.settings)
        self.own = own
        self._enter()

    def of_jobs(self, chosen: Mapping[str, PolicyChoice]) -> bool:
        """These jobs have chosen these, all others none; whether that is news.  A choice that
        cannot run here is not heard: the job runs all the same."""
        if chosen == self.jobs:
            return False
        self.jobs, self.unheard = dict(chosen), {}
        for job, choice in chosen.items():
            try:
                self.admit(choice.policy, choice.settings)
            except ConfigError as problem:
                self.unheard[job] = str(problem)
        self._enter()
        return True

    def retry(self, now_us: int) -> bool:
        """Begin with what could not begin, if it can by now; whether it was tried."""
        if not self.awaits or now_us - self._retried_us < RETRY_US:
            return False
        self._retried_us = now_us
        if self._waits_for == RIGHTS and not self._limits.may():
            return False
        self._enter()
        return True

    def fall_back(self, why: str) -> None:
        """Nothing is set any more, for nobody, until somebody chooses anew."""
        self.problem = why
        self._apply(PolicyChoice(HANDS_OFF), {})
        self._let_go()
        if why != self._told:
            text = f"the clocks are left alone: {why}"
            self.tell("policy.fell_back", "warning", text, {"problem": why})
        self._told = why

    def pinned_hz(self) -> int:
        """The CPU clock that stands set by limits; 0: none does."""
        for name, setting in self.running.standing.items():
            if name.startswith("cpu") and setting.hz and not self._limits.clamped:
                return setting.hz
        return 0

    def told(self) -> dict[str, Any]:
        """For people: what runs, what was chosen and by whom."""
        return {
            "policy": self.running.policy.name,
            "settings": {} if self.problem else dict(self.own.settings),
            "problem": self.problem,
            "awaited": self._awaited(),
            "own": self.own.told(),
            "jobs": {
                job: {**choice.told(), "problem": self.unheard.get(job, "")}
                for job, choice in self.jobs.items()
            },
        }

    def _awaited(self) -> str | None:
        """What begins as soon as it can."""
        if not self.awaits:
            return None
        chosen = [*self.jobs.values(), *([self.own] if self.own.origin != DEFAULT else [])]
        return ", ".join(dict.fromkeys(choice.policy for choice in chosen))

    def _enter(self) -> None:
        """Go on with what was chosen, as far as that may set anything here."""
        if not self._begun:
            return
        self.problem, self.awaits = "", False
        if lacks := self._lacks(self.check(self.own.policy, self.own.settings)):
            self.awaits, self._waits_for = True, BOARD
            self.fall_back(lacks)
            return
        heard = {job: c for job, c in self.jobs.items() if job not in self.unheard}
        self._apply(self.own, heard)
        if not self.sets:
            self._let_go()
            return
        try:
            self._limits.take()
        except GovernorError as problem:
            self.awaits = isinstance(problem, NotPermitted)
            self._waits_for = OTHER if isinstance(problem, OwnedElsewhere) else RIGHTS
            self.fall_back(str(problem))
        else:
            self._told = ""

    def _apply(self, own: PolicyChoice, jobs: Mapping[str, PolicyChoice]) -> None:
        """Let these be heard; a policy that was heard before keeps what it has learnt."""
        was, were = self._applied
        for job in were.keys() - jobs.keys():
            self.running.drop(job)
        if own != was:
            self.running.switch(own.policy, own.settings, chosen=own.origin != DEFAULT)
        for job, choice in jobs.items():
            if were.get(job) != choice:
                self.running.choose(job, choice.policy, choice.settings)
        self._applied = (own, dict(jobs))

    def _let_go(self) -> None:
        for dial in list(self.running.standing):
            self.running.lost(dial)
        for line in self._limits.release():
            complain(line)


def complain(line: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"edged: energy: {line}\n")
    sys.stderr.flush()


def _unmodelled() -> str:
    """The policies that need no power model, `hands_off` first."""
    names = [name for name, policy in load_all().items() if not policy.needs_model]
    return " or ".join(sorted(names, key=lambda name: (name != HANDS_OFF, name)))
