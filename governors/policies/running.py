"""The running policy: keeps its decisions inside the limits and tracks what is set.

Invariants, for any policy:

1. A clock that is set is one of the dial's choices at that moment.
2. The maximum is not lowered while other processes are busy.
3. A decision does not repeat a setting that is in force.
4. The chip stays below the limit of its temperature (`governors.heat_limit`).
5. After a switch, the next decision releases every setting of the old policy that the new one does
   not set; the account of spent energy continues.

Jobs may choose policies of their own (`choose`, `drop`); `governors.policies.combined` merges them.
"""

from __future__ import annotations

from dataclasses import replace

from governors.cost import CostModel
from governors.heat_limit import HeatLimit
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
"""Other processes count as busy from this many cores on."""


class Running:
    """Calls one policy and tracks its settings.  Not thread-safe: call it between beats only."""

    def __init__(
        self, name: str, settings: PolicySettings, model: CostModel, chosen: bool = True,
        heat: HeatLimit | None = None,
    ) -> None:  # fmt: skip
        """The daemon's own policy; `chosen`: whether it was chosen or is the default; `heat`: the
        limit of the board's temperature, by default none but the policy's.

        Raises PolicyError for an unknown policy or an invalid setting.
        """
        self._model, self.account = model, EnergyAccount()
        self._own: Policy = find_policy(name)(settings, model, self.account)
        self._own_chosen = chosen
        self.jobs: dict[str, Policy] = {}
        """Policies that jobs have chosen, by job."""
        self.policy: Policy = self._own
        """The policy in force."""
        self.standing: dict[str, ClockSetting] = {}
        """Settings in force that edged has made, by dial."""
        self.heat = heat or HeatLimit(None, (), model)
        self._leftover: set[str] = set()
        self._kernel = UtilizationTracker()

    def switch(self, name: str, settings: PolicySettings, chosen: bool = True) -> None:
        """Replace the daemon's own policy.  Raises PolicyError, and then keeps the old one."""
        self._own = find_policy(name)(settings, self._model, self.account)
        self._own_chosen = chosen
        self._recombine()

    def choose(self, job: str, name: str, settings: PolicySettings) -> None:
        """Set a job's policy.  Raises PolicyError, and then changes nothing."""
        self.jobs[job] = find_policy(name)(settings, self._model, self.account)
        self._recombine()

    def drop(self, job: str) -> None:
        """Remove a job's policy, if it has one."""
        if self.jobs.pop(job, None) is not None:
            self._recombine()

    def _recombine(self) -> None:
        self.policy = combine(self.jobs, self._own, self._own_chosen)
        self._leftover = set(self.standing)

    def lost(self, dial: str) -> None:
        """The setting of a dial is gone: another process changed it, or writing failed."""
        self.standing.pop(dial, None)
        self._leftover.discard(dial)

    def race(self, observed: Observation) -> Decision:
        """A race is about to start."""
        self.account.add(observed.at_us, observed.joules)
        observed = self._heated(self._kernel.before(observed))
        wanted = self.heat.race(self.policy.race(observed), observed)
        decision = self._inside(wanted, observed)
        self._kernel.runs(observed, decision)
        return decision

    def commit(self, observed: Observation) -> Decision:
        """A beat that only commits is about to start; `idle` follows it."""
        self.account.add(observed.at_us, observed.joules)
        observed = self._heated(observed)
        wanted = self.heat.between(self.policy.commit(observed), observed)
        return self._inside(wanted, observed)

    def idle(self, observed: Observation) -> Decision:
        """The race is over, or a beat that only commits."""
        self.account.add(observed.at_us, observed.joules)
        self._kernel.after(observed.at_us, self._pinned_hz(observed))
        observed = self._heated(observed)
        wanted = self.heat.between(self.policy.idle(observed), observed)
        return self._inside(wanted, observed)

    def _heated(self, observed: Observation) -> Observation:
        return self.heat.observe(observed, self.policy.max_celsius(observed))

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
