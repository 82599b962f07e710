"""What a board charges for races, wakes, bytes and sleeps: the cost model's prices.  Sans-IO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sleep:
    """A sleep that must be asked for, as it was measured."""

    name: str
    watts: float
    """Saved while it lasts."""
    us: float
    """To enter and to leave."""
    joules: float
    """To enter and to leave."""

    def saves(self, idle_us: Floats) -> Floats:
        """Joules saved in idle times; negative where it does not pay."""
        return self.watts * np.maximum(0.0, idle_us - self.us) / 1e6 - self.joules


@dataclass(frozen=True, slots=True)
class Gating:
    """What a GPU costs beside its work."""

    watts: float = 0.0
    """Powered, above gated."""
    us: float = 0.0
    """It stays powered after its last work."""
    wake_j: float | None = 0.0
    """To wake it when it was gated; None: not known."""
    priced: bool = True
    """Whether there are figures of a GPU that works and of one that is powered."""

    def joules(self, busy_us: Floats, period_us: Floats) -> Floats:
        """Of periods, beside the GPU's work in each; at least, where the wake is not known."""
        rests_us = np.maximum(0.0, period_us - busy_us)
        woken = np.where(rests_us > self.us, self.wake_j or 0.0, 0.0)
        return self.watts * np.minimum(rests_us, self.us) / 1e6 + woken

    def known(self, busy_us: Floats, period_us: Floats) -> npt.NDArray[np.bool_]:
        """Whether that is all of it."""
        gated_or_known = (period_us - busy_us <= self.us) | (self.wake_j is not None)
        return gated_or_known & self.priced


@dataclass(frozen=True, slots=True)
class RadioPrice:
    """What the uplink costs."""

    joules: float
    """Per upload: connecting, and the tail after the last byte."""
    joules_per_byte: float


class Tariff(Protocol):
    """What a board charges, whole input."""

    idle_watts: float
    wake_j: float
    """For one wakeup."""
    byte_j: float
    """For a byte of memory traffic."""
    cycle_j: float
    """Above idle, for a cycle of one core beside the wait, at the clock of an idle board."""
    awake_watts: float
    """Idle cores that are in no idle state but the shallowest, above idle."""
    states: tuple[Sleep, ...]
    """Idle states that the kernel enters by itself, against staying awake; the wake is in them."""
    sleeps: tuple[Sleep, ...]
    """Those that must be asked for, against the deepest state."""
    gating: Gating
    radio: RadioPrice

    def race_watts(
        self, device: str, hz: int, cores: float, memory_hz: int | None = None,
        cpu_hz: int | None = None,
    ) -> float:  # fmt: skip
        """While `cores` of it are busy at a clock, without memory traffic; `memory_hz`: where the
        memory clock is capped; `cpu_hz`: the clock of the cores that wait for a GPU, by default the
        lowest."""

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        """What idle cores save at the lower of two maxima; none where they are clock-gated."""
