"""What `edged calibrate` keeps in the state directory: `placement.json` and `energy.json`.

`placement.json` holds what kernels cost beside each other (`edged.placement.placement`),
`energy.json` what they take and draw at each clock: a `governors.curve.CalibrationCurve` a kernel,
and of which board and by which meter it is.  `edged.calibration.join_kernels` and
`edged.calibration.operating_points` make them.

    {"format": 1, "board": "orin-nano", "simulated": true, "meter": "...", "window": n,
     "write_us": x, "notes": [...],
     "kernels": {name: {"device": "cpu", "cores": x, "times_from": "measured", "write_us": x,
                        "curve": {...}}}}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edged.errors import ConfigError
from edged.placement.placement import DEFAULT, KernelProfile
from edged.platform.disk import SystemDisk, replace_file
from governors.board_tariffs import Measured
from governors.curve import CalibrationCurve, Optimum
from governors.energy import Provenance
from governors.errors import ProfileError

FILE = "placement.json"
ENERGY_FILE = "energy.json"
ENERGY_FORMAT = 1
DEVICES = ("cpu", "cuda")
TRIFLE = 0.01
"""A clock is set only where it saves that part; less is within what meters can tell."""


@dataclass(frozen=True)
class KernelCurve:
    """One kernel over the clocks."""

    curve: CalibrationCurve
    cores: float
    """How many were busy, on average, while it ran; of a GPU's kernel, those that wait for it."""
    device: str = "cpu"
    """Whose clocks these are: cpu or cuda."""
    times_from: Provenance = Provenance.MEASURED
    write_us: float | None = None
    """What setting this device's clocks once takes; None: what setting the CPU's does."""

    def above_watts(self, hz: int) -> float:
        """What the board draws above idle while it runs at a clock."""
        return max(0.0, Measured(self.curve, self.cores).watts(hz))

    def core_watts(self, hz: int) -> float:
        """What one busy core draws above idle at a clock of the CPU."""
        return self.above_watts(hz) / self.cores


@dataclass(frozen=True)
class EnergyCalibration:
    """What was calibrated, on which board."""

    board: str
    """As `governors.detect` names it: curves of another board say nothing about this one."""
    simulated: bool
    meter: str
    """What told the watts, and what they cover."""
    window: int
    """Tuples a side of the join that ran."""
    write_us: float
    """What setting all clocks once takes."""
    notes: tuple[str, ...]
    kernels: Mapping[str, KernelCurve]

    def optimum(
        self, kernel: str, tuples: int = 1_000_000, deadline_us: float = math.inf
    ) -> Optimum:
        """The cheapest way to run a race of so many tuples, with `leave it` among the candidates:
        a race at a clock that is set pays for setting it and letting go, and must save TRIFLE."""
        found = self.kernels[kernel]
        c, k = found.curve, tuples / found.curve.units
        alone = None if c.left_alone is None else (k * c.left_alone[0], c.left_alone[1])
        points = tuple(replace(p, us=k * p.us) for p in c.points)
        scaled = replace(c, units=tuples, points=points, left_alone=alone)
        write_us = self.write_us if found.write_us is None else found.write_us
        write_j = 2 * write_us / 1e6 * self._writer_watts(found)
        clocks = None if len(points) > 1 else ()
        return _unless_trifling(scaled.optimum(deadline_us, clocks, write_j, 2 * write_us))

    def of_device(self, device: str) -> KernelCurve | None:
        """The kernel whose curve stands for a device: the default, where it was calibrated."""
        mine = {name: k for name, k in self.kernels.items() if k.device == device}
        return mine.get(DEFAULT) or next(iter(mine.values()), None)

    def _writer_watts(self, found: KernelCurve) -> float:
        """What a core draws that sets clocks: of a GPU's kernel, as the CPU's curve has it, else no
        more than the board draws at the kernel's lowest clock."""
        cpu = self.of_device("cpu") if found.device != "cpu" else found
        if cpu is None:
            return found.above_watts(found.curve.points[0].hz)
        return cpu.core_watts(cpu.curve.points[0].hz)

    def pays_from(self, kernel: str) -> int | None:
        """Tuples of a race from which on setting a clock is cheaper than leaving it; None where it
        never is."""
        sizes = (1 << power for power in range(8, 31))
        return next((n for n in sizes if self.optimum(kernel, n).best.hz is not None), None)

    def encode(self) -> str:
        """The JSON text of the file."""
        kernels = {
            name: {
                "device": k.device, "cores": k.cores, "times_from": k.times_from.value,
                "write_us": k.write_us, "curve": json.loads(k.curve.encode()),
            }
            for name, k in self.kernels.items()
        }  # fmt: skip
        document = {
            "format": ENERGY_FORMAT, "board": self.board, "simulated": self.simulated,
            "meter": self.meter, "window": self.window, "write_us": self.write_us,
            "notes": self.notes, "kernels": kernels,
        }  # fmt: skip
        return json.dumps(document, indent=1)

    @classmethod
    def decode(cls, text: str, where: str) -> EnergyCalibration:
        """The inverse of `encode`.  Raises ConfigError that names `where` the text came from."""
        try:
            document = json.loads(text)
            if document["format"] != ENERGY_FORMAT:
                raise ValueError(f"format {document['format']}, not {ENERGY_FORMAT}")
            return _energy(document, where)
        except (ValueError, KeyError, TypeError, AttributeError, ProfileError) as problem:
            raise ConfigError(
                f"{where} is no energy calibration of `edged calibrate` ({problem}): run it again"
            ) from problem


def _unless_trifling(found: Optimum) -> Optimum:
    """The optimum, or `leave it` where that takes hardly more."""
    alone = next((c for c in found.candidates if c.hz is None and c.in_time), None)
    if alone is None or found.best.hz is None or found.best.joules < (1 - TRIFLE) * alone.joules:
        return found
    why = f"leave it: the best clock, {found.best.hz / 1e6:.0f} MHz, saves under {TRIFLE:.0%}"
    return replace(found, best=alone, why=why)


def load_profile(directory: Path) -> KernelProfile | None:
    """The profile of a state directory, if it has one.  Raises ConfigError."""
    text = _read(directory / FILE)
    return None if text is None else KernelProfile.decode(text, str(directory / FILE))


def save_profile(profile: KernelProfile, directory: Path) -> Path:
    """Write the profile into a state directory, whole or not at all.  Raises ConfigError."""
    return _write(directory / FILE, profile.encode())


def load_energy(directory: Path) -> EnergyCalibration | None:
    """The energy calibration of a state directory, if it has one.  Raises ConfigError."""
    text = _read(directory / ENERGY_FILE)
    return None if text is None else EnergyCalibration.decode(text, str(directory / ENERGY_FILE))


def load_curve(directory: Path, kernel: str = DEFAULT) -> CalibrationCurve | None:
    """The curve of one kernel (where that was not calibrated, of the first on the CPU that was), if
    there is one.  Raises ConfigError."""
    energy = load_energy(directory)
    if energy is None:
        return None
    found = energy.kernels.get(kernel) or energy.of_device("cpu")
    return None if found is None else found.curve


def save_energy(energy: EnergyCalibration, directory: Path) -> Path:
    """Write the energy calibration, whole or not at all.  Raises ConfigError."""
    return _write(directory / ENERGY_FILE, energy.encode())


def _energy(document: Mapping[str, Any], where: str) -> EnergyCalibration:
    _only(
        document,
        "format", "board", "simulated", "meter", "window", "write_us", "notes", "kernels",
    )  # fmt: skip
    kernels = {}
    for name, k in document["kernels"].items():
        kernels[name] = _kernel(k, f"{where}: {name}")
    if not kernels:
        raise ValueError("there is no kernel in it")
    if not isinstance(document["simulated"], bool):
        raise ValueError(f"simulated is {document['simulated']!r}, not true or false")
    write_us = _not_below_zero(document["write_us"], "write_us")
    return EnergyCalibration(
        str(document["board"]), document["simulated"], str(document["meter"]),
        int(_above_zero(document["window"], "window")), write_us,
        tuple(map(str, document["notes"])), kernels,
    )  # fmt: skip


def _kernel(k: Mapping[str, Any], where: str) -> KernelCurve:
    _only(k, "device", "cores", "times_from", "write_us", "curve")
    curve = CalibrationCurve.decode(json.dumps(k["curve"]), where)
    device = k.get("device", "cpu")
    if device not in DEVICES:
        raise ValueError(f"{where}: device {device!r} is none of {', '.join(DEVICES)}")
    told = k.get("write_us")
    return KernelCurve(
        curve, _above_zero(k["cores"], f"{where}: cores"), device,
        Provenance(k.get("times_from", Provenance.MEASURED.value)),
        None if told is None else _not_below_zero(told, f"{where}: write_us"),
    )  # fmt: skip


def _only(document: Mapping[str, Any], *known: str) -> None:
    for key in document:
        if key not in known:
            raise ValueError(f"{key} is not known; there are {', '.join(known)}")


def _above_zero(value: Any, what: str) -> float:
    if not (math.isfinite(float(value)) and float(value) > 0):
        raise ValueError(f"{what} is {value!r}, which is none")
    return float(value)


def _not_below_zero(value: Any, what: str) -> float:
    if not (math.isfinite(float(value)) and float(value) >= 0):
        raise ValueError(f"{what} is {value!r}, which is no time")
    return float(value)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise ConfigError(f"cannot read {path}: {problem}") from problem


def _write(path: Path, text: str) -> Path:
    try:
        replace_file(SystemDisk(), str(path), [memoryview(text.encode())])
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem}") from problem
    return path
