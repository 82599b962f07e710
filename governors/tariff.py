"""Prices of a board: what races, wakes, bytes and sleeps cost.  Sans-IO.

`governors.board_tariffs` implements `Tariff` by the power model and by a calibration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sleep:
    """A sleep state with its measured cost of entry and exit."""

    name: str
    watts: float
    """Saved while asleep."""
    us: float
    """Time to enter and leave."""
    joules: float
    """Energy to enter and leave."""

    def saves(self, idle_us: Floats) -> Floats:
        """Joules saved over idle times; negative where sleeping costs more than it saves."""
        return self.watts * np.maximum(0.0, idle_us - self.us) / 1e6 - self.joules


@dataclass(frozen=True, slots=True)
class Gating:
    """Power of a GPU besides its work: it stays powered for a delay after its last work, and a wake
    costs energy."""

    watts: float = 0.0
    """Powered but idle, above gated."""
    us: float = 0.0
    """Time that it stays powered after its last work."""
    wake_j: float | None = 0.0
    """Joules to wake a gated GPU; None: unknown."""
    priced: bool = True
    """Whether figures exist for the working and for the powered GPU."""

    def joules(self, busy_us: Floats, period_us: Floats) -> Floats:
        """Joules per period besides the GPU's work; a lower bound where the wake is unknown."""
        rests_us = np.maximum(0.0, period_us - busy_us)
        woken = np.where(rests_us > self.us, self.wake_j or 0.0, 0.0)
        return self.watts * np.minimum(rests_us, self.us) / 1e6 + woken

    def known(self, busy_us: Floats, period_us: Floats) -> npt.NDArray[np.bool_]:
        """Whether `joules` is complete rather than a lower bound."""
        gated_or_known = (period_us - busy_us <= self.us) | (self.wake_j is not None)
        return gated_or_known & self.priced


@dataclass(frozen=True, slots=True)
class RadioPrice:
    """Energy of the uplink."""

    joules: float
    """Per upload: connecting, and the tail after the last byte."""
    joules_per_byte: float


class Tariff(Protocol):
    """Prices of a board, of the whole input."""

    idle_watts: float
    wake_j: float
    """Joules per wakeup."""
    byte_j: float
    """Joules per byte of memory traffic."""
    cycle_j: float
    """Joules above idle per cycle of one core at the idle clock."""
    awake_watts: float
    """Watts above idle of idle cores in the shallowest idle state."""
    states: tuple[Sleep, ...]
    """Idle states that the kernel enters by itself, compared with staying awake; the wake is
    included."""
    sleeps: tuple[Sleep, ...]
    """Sleeps entered on request only, compared with the deepest idle state."""
    gating: Gating
    radio: RadioPrice

    def race_watts(
        self, device: str, hz: int, cores: float, memory_hz: int | None = None,
        cpu_hz: int | None = None,
    ) -> float:  # fmt: skip
        """Input watts while `cores` of the device are busy at a clock, without memory traffic.
        `memory_hz`: cap of the memory clock; `cpu_hz`: clock of the cores that wait for a GPU, by
        default the lowest."""

    def standing_watts(self, high_hz: int, low_hz: int) -> float:
        """Watts that idle cores save at `low_hz` compared with `high_hz`; 0 where they are
        clock-gated."""
