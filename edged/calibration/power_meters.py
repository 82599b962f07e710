"""The meters of a calibration: power of the board or its GPU, clocks, and temperatures.

A kernel of the CPU, or of a GPU that shares the board's supply, is measured by the whole input. A
discrete GPU has its own sensor (NVML). If the whole input is measured by RAPL, which covers the
processors only, the GPU's energy is added. Without a meter of the whole input, the GPU's energy is
the only figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from governors.actuators.base import SCHEMES, Knob, readable
from governors.energy import Provenance, RailEnergy
from governors.health import celsius, zones
from governors.meters.base import Meter
from governors.meters.rails import Key, Whole
from governors.meters.sampler import Sampler
from governors.sysfs import Sysfs

DISCRETE_GPU_METERS = ("nvml", "nvml:watts")
"""Meters of discrete GPUs."""
PROCESSORS_ONLY = "rapl"
"""Meter whose whole input is that of the processors."""


def discrete_gpu_rails(meters: Sequence[Meter]) -> tuple[Key, ...]:
    """The rails of discrete GPUs."""
    return tuple(
        (m.name, rail.name) for m in meters if m.name in DISCRETE_GPU_METERS for rail in m.rails
    )


@dataclass(frozen=True)
class Watts:
    """The source of the power while one device works."""

    sampler: Sampler
    whole: Whole | None
    """The whole input, measured or simulated; None if no meter covers it."""
    extra: tuple[Key, ...] = ()
    """Rails whose energy is added to that of the whole input."""

    @classmethod
    def of(cls, sampler: Sampler, device: str, gpu_rails: tuple[Key, ...]) -> Watts:
        """The source for kernels of a device. `gpu_rails` are the rails of discrete GPUs."""
        wholes = [w for w in sampler.wholes if w.provenance is not Provenance.MODELLED]
        whole = wholes[0] if wholes else None
        excludes_gpu = whole is None or whole.keys[0][0] == PROCESSORS_ONLY
        return cls(sampler, whole, gpu_rails if device != "cpu" and excludes_gpu else ())

    @property
    def provenance(self) -> Provenance | None:
        """Provenance of the power; None without a meter."""
        if self.whole is not None:
            return self.whole.provenance
        return Provenance.MEASURED if self.extra else None

    @property
    def name(self) -> str:
        """Display name: the sensors and what they cover; empty without a meter."""
        parts = [] if self.whole is None else [f"{self.whole.name} ({self.whole.covers})"]
        if self.extra:
            rails = " + ".join(rail for _, rail in self.extra)
            only = "" if parts else " only"
            parts.append(f"{rails} (NVML: the GPU's card{only})")
        return " + ".join(parts)

    def since(self, mark: Mapping[Key, RailEnergy]) -> float | None:
        """Mean power (W) since `sampler.totals` were `mark`; None if a part has no reading."""
        parts = []
        if self.whole is not None:
            parts.append(self.sampler.input_energy(mark))
        energies = self.sampler.energies(mark) if self.extra else {}
        parts += [energies.get(key) for key in self.extra]
        watts = [None if energy is None else _mean(energy) for energy in parts]
        known = [w for w in watts if w is not None]
        return sum(known) if known and len(known) == len(watts) else None


def _mean(energy: RailEnergy) -> float | None:
    if energy.provenance is Provenance.MODELLED:
        return None
    covered_us = energy.until_us - energy.since_us - energy.gap_us
    return 1e6 * energy.joules / covered_us if covered_us > 0 else None


def clock_hz(sysfs: Sysfs, knob: Knob) -> int | None:
    """The current clock (Hz) of a knob's domain; None if it cannot be read or is gated."""
    if knob.current_path:
        value = sysfs.get_int(knob.current_path)
        return value * knob.unit_hz if value else None
    if readable(knob.max_path):
        return None
    hz: int | None = _scheme(knob).clock_hz(knob.max_path)
    return hz


def hottest(sysfs: Sysfs, knobs: Sequence[Knob] = ()) -> tuple[str, float] | None:
    """Name and temperature (°C) of the hottest thermal zone or device of `knobs`; None without a
    sensor."""
    found = []
    for zone, name in zones(sysfs):
        if (degrees := celsius(sysfs, zone)) is not None:
            found.append((degrees, name))
    for knob in knobs:
        degrees = None if readable(knob.max_path) else _scheme(knob).celsius(knob.max_path)
        if degrees is not None:
            found.append((float(degrees), knob.name))
    if not found:
        return None
    most, kind = max(found)
    return kind, most


def _scheme(knob: Knob) -> ModuleType:
    return SCHEMES[knob.max_path.partition(":")[0]]
