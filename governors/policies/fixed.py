"""`fixed`: pins given clocks while the policy runs.

    cpu_mhz = 1113.6; gpu_mhz = 306; memory_mhz = 2133         # each may be left out

A clock between operating points is raised to the next one that the limits allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from governors.cost import CostModel
from governors.policies.account import EnergyAccount
from governors.policies.base import (
    Act,
    ClockSetting,
    Decision,
    Observation,
    Policy,
    PolicyError,
    PolicySettings,
    policy,
)
from governors.policies.declared import DeclaredSetting
from governors.quantities import MEGAHERTZ

KINDS = {"cpu": "CPU", "gpu": "GPU", "memory": "memory"}


@policy
class Fixed(Policy):
    """Pins the given clocks."""

    name = "fixed"
    plans = False
    needs_model = False
    declared: ClassVar[Mapping[str, DeclaredSetting]] = {
        f"{kind}_mhz": DeclaredSetting(MEGAHERTZ, None, f"Clock of the {what}.")
        for kind, what in KINDS.items()
    }

    def __init__(self, settings: PolicySettings, model: CostModel, account: EnergyAccount) -> None:
        super().__init__(settings, model, account)
        given = [kind for kind in KINDS if self.settings[f"{kind}_mhz"] is not None]
        if not given:
            raise PolicyError("policy fixed: give cpu_mhz, gpu_mhz or memory_mhz")
        self._hz = {kind: round(1e6 * self.settings[f"{kind}_mhz"]) for kind in given}

    def race(self, observed: Observation) -> Decision:
        """Pin the clocks."""
        clocks = {
            d.name: ClockSetting(Act.PIN, self._hz[d.kind])
            for d in observed.dials
            if d.kind in self._hz
        }
        chosen = ", ".join(f"{kind} {hz / 1e6:g} MHz" for kind, hz in self._hz.items())
        return Decision(f"pinned: {chosen}", clocks)

    def idle(self, observed: Observation) -> Decision:
        """Keep the clocks pinned."""
        return self.race(observed)
