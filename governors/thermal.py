"""Thermal model of a board: a ladder of resistances and capacities from the chip to the air.
Sans-IO.

Node 0 is the chip and takes the whole input power P; each node passes its heat on to the next one,
the last one to the air:

    C0 dT0/dt = P - (T0 - T1) / R0        C1 dT1/dt = (T0 - T1) / R0 - (T1 - ambient) / R1

At constant power the solution is a sum of exponentials, which `ThermalNetwork` evaluates exactly,
for steps of any length.  Resistances and capacities are those of the profile
(`governors.profile.ThermalFigures`), each with its source; most are assumed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from governors.profile import BoardProfile, ThermalNode
from governors.tariff import Floats


def thermal_nodes(profile: BoardProfile | None) -> tuple[ThermalNode, ...]:
    """The ladder of a board; empty where it is not known."""
    return () if profile is None or profile.thermal is None else profile.thermal.nodes


class ThermalNetwork:
    """Temperatures of a ladder."""

    def __init__(self, nodes: Sequence[ThermalNode], ambient_celsius: float, watts: float) -> None:
        """Begins settled at `watts`."""
        self.ambient_celsius = ambient_celsius
        self._resistances = np.array([n.kelvin_per_watt for n in nodes])
        heat = np.array([n.joules_per_kelvin for n in nodes])
        flow = 1.0 / self._resistances
        count = len(nodes)
        conductance = np.diag(flow + np.append(0.0, flow[:-1]))
        for i in range(count - 1):
            conductance[i, i + 1] = conductance[i + 1, i] = -flow[i]
        root = np.sqrt(heat)
        self._rates, vectors = np.linalg.eigh(conductance / np.outer(root, root))
        self._into, self._from = vectors.T * root, (vectors.T / root).T
        self.celsius = self.settled(watts)
        """Of each node."""

    @property
    def chip_celsius(self) -> float:
        """Temperature of the chip, which thermal zones show."""
        return float(self.celsius[0])

    @property
    def chip_kelvin_per_watt(self) -> float:
        """Resistance from the chip to the next node."""
        return float(self._resistances[0])

    def settled(self, watts: float) -> Floats:
        """Temperatures after a long time at `watts`."""
        below = np.cumsum(self._resistances[::-1])[::-1]
        settled: Floats = self.ambient_celsius + watts * below
        return settled

    def after(self, us: float, watts: float) -> Floats:
        """Temperatures after `us` at `watts`; changes nothing."""
        rest = self.settled(watts)
        modes = self._into @ (self.celsius - rest)
        later: Floats = rest + self._from @ (modes * np.exp(-self._rates * us / 1e6))
        return later

    def pass_time(self, us: float, watts: float) -> None:
        """Let `us` pass at `watts`."""
        if us > 0:
            self.celsius = self.after(us, watts)
