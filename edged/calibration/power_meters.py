"""Who tells the watts of a calibration, and how hot it is: the meters of a board or of its GPU.

A kernel of the CPU is measured by the whole input.  So is one of a GPU that shares it.  A GPU of
its own has a sensor of its own (NVML): where the whole is RAPL's, which ends at the processors, the
GPU's joules are added to it; where nothing tells a whole, they are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

from governors.actuators.base import SCHEMES, Knob, readable
from governors.energy import Provenance, RailEnergy
from governors.meters.base import Meter
from governors.meters.rails import Key, Whole
from governors.meters.sampler import Sampler
from governors.sysfs import Sysfs

FAKE_ZONES = ("PMIC-Die",)
"""Always read 50 or 100 °C (hardware.md section 1.5)."""
ZONES = "/sys/class/thermal"
APART = ("nvml", "nvml:watts")
"""Meters of GPUs that are devices of their own."""
PROCESSORS_ONLY = "rapl"


def rails_apart(meters: Sequence[Meter]) -> tuple[Key, ...]:
    """The rails of GPUs that are devices of their own."""
    return tuple((m.name, rail.name) for m in meters if m.name in APART for rail in m.rails)


@dataclass(frozen=True)
class Watts:
    """What tells the watts while one device works."""

    sampler: Sampler
    whole: Whole | None
    """Measured or simulated; None: nothing tells it."""
    beside: tuple[Key, ...] = ()
    """Rails to add to it."""

    @classmethod
    def of(cls, sampler: Sampler, device: str, apart: tuple[Key, ...]) -> Watts:
        """For kernels of a device; `apart`: rails of GPUs that are devices of their own."""
        told = [w for w in sampler.wholes if w.provenance is not Provenance.MODELLED]
        whole = told[0] if told else None
        ends_early = whole is None or whole.keys[0][0] == PROCESSORS_ONLY
        return cls(sampler, whole, apart if device != "cpu" and ends_early else ())

    @property
    def provenance(self) -> Provenance | None:
        """Of the watts; None where there are none."""
        if self.whole is not None:
            return self.whole.provenance
        return Provenance.MEASURED if self.beside else None

    @property
    def name(self) -> str:
        """For people: which sensors, and what they cover; empty where there is none."""
        parts = [] if self.whole is None else [f"{self.whole.name} ({self.whole.covers})"]
        if self.beside:
            rails = " + ".join(rail for _, rail in self.beside)
            lack = "" if parts else ", nothing else of the machine"
            parts.append(f"{rails} (NVML: the GPU's card{lack})")
        return " + ".join(parts)

    def since(self, mark: Mapping[Key, RailEnergy]) -> float | None:
        """Mean watts since `sampler.totals` were `mark`; None where one of the parts has none."""
        parts = []
        if self.whole is not None:
            parts.append(self.sampler.input_energy(mark))
        energies = self.sampler.energies(mark) if self.beside else {}
        parts += [energies.get(key) for key in self.beside]
        watts = [None if energy is None else _mean(energy) for energy in parts]
        known = [w for w in watts if w is not None]
        return sum(known) if known and len(known) == len(watts) else None


def _mean(energy: RailEnergy) -> float | None:
    if energy.provenance is Provenance.MODELLED:
        return None
    covered_us = energy.until_us - energy.since_us - energy.gap_us
    return 1e6 * energy.joules / covered_us if covered_us > 0 else None


def clock_hz(sysfs: Sysfs, knob: Knob) -> int | None:
    """The clock that a knob's domain runs at now; None where that is not told, or gated."""
    if knob.current_path:
        told = sysfs.get_int(knob.current_path)
        return told * knob.unit_hz if told else None
    if readable(knob.max_path):
        return None
    found: int | None = _scheme(knob).clock_hz(knob.max_path)
    return found


def hottest(sysfs: Sysfs, knobs: Sequence[Knob] = ()) -> tuple[str, float] | None:
    """The hottest zone or device of `knobs` and its °C; None where none tells one."""
    found = []
    for zone in sysfs.list(ZONES):
        kind = sysfs.get(f"{ZONES}/{zone}/type")
        milli_c = sysfs.get_int(f"{ZONES}/{zone}/temp")
        if kind and kind not in FAKE_ZONES and milli_c is not None and -4e4 < milli_c < 1.5e5:
            found.append((milli_c / 1000, kind))
    for knob in knobs:
        celsius = None if readable(knob.max_path) else _scheme(knob).celsius(knob.max_path)
        if celsius is not None:
            found.append((float(celsius), knob.name))
    if not found:
        return None
    most, kind = max(found)
    return kind, most


def _scheme(knob: Knob) -> ModuleType:
    return SCHEMES[knob.max_path.partition(":")[0]]
