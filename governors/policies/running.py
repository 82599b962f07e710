"""A policy that runs: what it decides is held inside the limits, and what it set is known.

Invariants, whatever the policy answers:

1. A clock that is set is one of the dial's choices at that moment.
2. The maximum is not lowered while other processes are busy.
3. A decision repeats nothing that stands already.
4. After a switch, the next decision releases all that the policy before had set and that the new
   one does not set; what was spent goes on to be counted.

Jobs may choose policies of their own (`choose`, `drop`); `governors.policies.combined` says whose
voice counts and how several become one.
"""

from __future__ import annotations

from dataclasses import replace

from governors.cost import CostModel
from governors.policies.account import EnergyAccount
from governors.policies.base import (
    RELEASE,
    Act,
    ClockSetting,
    Decision,
    Observation,
    Policy,
    PolicySettings,
    find_policy,
)
from governors.policies.combined import combine
from governors.utilization_tracker import UtilizationTracker

BUSY_CORES = 0.1
"""Other processes are busy from this many cores on."""


class Running:
    """Asks one policy and remembers what is set.  Not thread-safe: between beats only."""

    def __init__(
        self, name: str, settings: PolicySettings, model: CostModel, chosen: bool = True
    ) -> None:
        """The daemon's own policy; `chosen`: whether a person did, or it is the default.

        Raises PolicyError where there is no such policy or a setting is wrong.
        """
        self._model, self.account = model, EnergyAccount()
        self._own: Policy = find_policy(name)(settings, model, self.account)
        self._own_chosen = chosen
        self.jobs: dict[str, Policy] = {}
        """By job, the policies that jobs have chosen."""
        self.policy: Policy = self._own
        """What is asked."""
        self.standing: dict[str, ClockSetting] = {}
        """By dial, what edged has set and not released."""
        self._leftover: set[str] = set()
        self._kernel = UtilizationTracker()

    def switch(self, name: str, settings: PolicySettings, chosen: bool = True) -> None:
        """The daemon's own policy is another from now on; `chosen`: by a person.  Raises
        PolicyError, and then the old one goes on."""
        self._own = find_policy(name)(settings, self._model, self.account)
        self._own_chosen = chosen
        self._recombine()

    def choose(self, job: str, name: str, settings: PolicySettings) -> None:
        """A job chooses a policy.  Raises PolicyError, and then all goes on as it was."""
        self.jobs[job] = find_policy(name)(settings, self._model, self.account)
        self._recombine()

    def drop(self, job: str) -> None:
        """A job has no policy of its own any more, or is gone."""
        if self.jobs.pop(job, None) is not None:
            self._recombine()

    def _recombine(self) -> None:
        self.policy = combine(self.jobs, self._own, self._own_chosen)
        self._leftover = set(self.standing)

    def lost(self, dial: str) -> None:
        """Somebody else has changed a limit that was ours, or it could not be set."""
        self.standing.pop(dial, None)
        self._leftover.discard(dial)

    def race(self, observed: Observation) -> Decision:
        """A race is about to start."""
        self.account.add(observed.at_us, observed.joules)
        observed = self._kernel.before(observed)
        decision = self._inside(self.policy.race(observed), observed)
        self._kernel.runs(observed, decision)
        return decision

    def idle(self, observed: Observation) -> Decision:
        """The race is over."""
        self.account.add(observed.at_us, observed.joules)
        self._kernel.after(observed.at_us, self._pinned_hz(observed))
        return self._inside(self.policy.idle(observed), observed)

    def _pinned_hz(self, observed: Observation) -> int:
        cpus = (self.standing.get(dial.name) for dial in observed.dials if dial.kind == "cpu")
        return next((s.hz for s in cpus if s is not None and s.act is Act.PIN), 0)

    def _inside(self, wanted: Decision, observed: Observation) -> Decision:
        clocks: dict[str, ClockSetting] = {}
        for dial in observed.dials:
            setting = wanted.clocks.get(dial.name)
            if setting is None and dial.name in self._leftover:
                setting = RELEASE
            if setting is None:
                continue
            if setting.act is not Act.RELEASE:
                hz = dial.nearest(setting.hz)
                busy = setting.act is Act.CAP and observed.others_cores >= BUSY_CORES
                setting = RELEASE if hz is None or busy else ClockSetting(setting.act, hz)
            if setting.act is Act.RELEASE and dial.name not in self.standing:
                continue
            if setting != self.standing.get(dial.name):
                clocks[dial.name] = setting
        self._leftover.clear()
        self._note(clocks)
        inside = 0.0 <= wanted.wait_share <= 1.0 and 0.0 <= wanted.admit_share <= 1.0
        if inside and clocks == wanted.clocks:
            return wanted
        return replace(
            wanted,
            clocks=clocks,
            wait_share=min(1.0, max(0.0, wanted.wait_share)),
            admit_share=min(1.0, max(0.0, wanted.admit_share)),
        )

    def _note(self, clocks: dict[str, ClockSetting]) -> None:
        for name, setting in clocks.items():
            if setting.act is Act.RELEASE:
                del self.standing[name]
            else:
                self.standing[name] = setting
