"""The files of `edged calibrate` in the state directory: `placement.json` and `energy.json`.

`placement.json` holds the times of the kernels (`edged.placement.placement`, written by
`edged.calibration.join_kernels`). `energy.json` holds time and power at each clock: one
`governors.curve.CalibrationCurve` for each kernel, with the board and the meter
(`edged.calibration.operating_points`).

The encoded energy calibration:

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
SAVING_MIN = 0.01
"""Smallest relative saving for which a clock is set. Less is within the error of meters."""


@dataclass(frozen=True)
class KernelCurve:
    """Time and power of one kernel over the clocks of its device."""

    curve: CalibrationCurve
    cores: float
    """Mean number of busy CPU cores while it ran; for a kernel of a GPU, the cores that wait."""
    device: str = "cpu"
    """Device of the clocks: cpu or cuda."""
    times_from: Provenance = Provenance.MEASURED
    write_us: float | None = None
    """Time to set this device's clocks once; None: the same as for the CPU's clocks."""

    def above_watts(self, hz: int) -> float:
        """Power of the board above idle while the kernel runs at a clock."""
        return max(0.0, Measured(self.curve, self.cores).watts(hz))

    def core_watts(self, hz: int) -> float:
        """Power of one busy core above idle at a clock of the CPU."""
        return self.above_watts(hz) / self.cores


@dataclass(frozen=True)
class EnergyCalibration:
    """The energy calibration of a board."""

    board: str
    """Its name from `governors.detect`. The curves hold for this board only."""
    simulated: bool
    meter: str
    """The meter of the power, and the part of the machine that it covers."""
    window: int
    """Tuples a side of the measured join."""
    write_us: float
    """Time to set all CPU clocks once; 0 if unknown."""
    notes: tuple[str, ...]
    kernels: Mapping[str, KernelCurve]

    def optimum(
        self, kernel: str, tuples: int = 1_000_000, deadline_us: float = math.inf
    ) -> Optimum:
        """The cheapest way to run a race of `tuples` tuples within a deadline.

        The candidates include `leave it`, which leaves the clock to the kernel's governor. A pinned
        clock also pays for setting and releasing it, and must save SAVING_MIN.
        """
        calibrated = self.kernels[kernel]
        c, k = calibrated.curve, tuples / calibrated.curve.units
        alone = None if c.left_alone is None else (k * c.left_alone[0], c.left_alone[1])
        points = tuple(replace(p, us=k * p.us) for p in c.points)
        scaled = replace(c, units=tuples, points=points, left_alone=alone)
        write_us = self.write_us if calibrated.write_us is None else calibrated.write_us
        write_j = 2 * write_us / 1e6 * self._writer_watts(calibrated)
        clocks = None if len(points) > 1 else ()
        return _unless_negligible(scaled.optimum(deadline_us, clocks, write_j, 2 * write_us))

    def of_device(self, device: str) -> KernelCurve | None:
        """The kernel whose curve represents a device: the default one, or else the first.

        None if no kernel of the device is calibrated.
        """
        mine = {name: k for name, k in self.kernels.items() if k.device == device}
        return mine.get(DEFAULT) or next(iter(mine.values()), None)

    def _writer_watts(self, kernel: KernelCurve) -> float:
        """Power of the core that sets clocks (W).

        It comes from the CPU's curve. Without one, it is the board's power at the kernel's lowest
        clock, an upper bound.
        """
        cpu = self.of_device("cpu") if kernel.device != "cpu" else kernel
        if cpu is None:
            return kernel.above_watts(kernel.curve.points[0].hz)
        return cpu.core_watts(cpu.curve.points[0].hz)

    def pays_from(self, kernel: str) -> int | None:
        """The smallest race (tuples, a power of two) for which setting a clock saves energy; None
        if there is none."""
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
        """The inverse of `encode`. Raises ConfigError, whose message names the origin `where`."""
        try:
            document = json.loads(text)
            if document["format"] != ENERGY_FORMAT:
                raise ValueError(f"format {document['format']}, not {ENERGY_FORMAT}")
            return _energy(document, where)
        except (ValueError, KeyError, TypeError, AttributeError, ProfileError) as problem:
            raise ConfigError(
                f"{where} is not an energy file of `edged calibrate` ({problem}): run it again"
            ) from problem


def _unless_negligible(found: Optimum) -> Optimum:
    """The optimum, or `leave it` if the optimum saves less than SAVING_MIN."""
    alone = next((c for c in found.candidates if c.hz is None and c.in_time), None)
    if (
        alone is None
        or found.best.hz is None
        or found.best.joules < (1 - SAVING_MIN) * alone.joules
    ):
        return found
    why = f"leave it: the best clock, {found.best.hz / 1e6:.0f} MHz, saves under {SAVING_MIN:.0%}"
    return replace(found, best=alone, why=why)


def load_profile(directory: Path) -> KernelProfile | None:
    """The profile in a state directory; None without the file. Raises ConfigError."""
    text = _read(directory / FILE)
    return None if text is None else KernelProfile.decode(text, str(directory / FILE))


def save_profile(profile: KernelProfile, directory: Path) -> Path:
    """Write the profile into a state directory, atomically. Raises ConfigError."""
    return _write(directory / FILE, profile.encode())


def load_energy(directory: Path) -> EnergyCalibration | None:
    """The energy calibration in a state directory; None without the file. Raises ConfigError."""
    text = _read(directory / ENERGY_FILE)
    return None if text is None else EnergyCalibration.decode(text, str(directory / ENERGY_FILE))


def load_curve(directory: Path, kernel: str = DEFAULT) -> CalibrationCurve | None:
    """The curve of one kernel, or else of the kernel that represents the CPU.

    None without a calibration. Raises ConfigError.
    """
    energy = load_energy(directory)
    if energy is None:
        return None
    found = energy.kernels.get(kernel) or energy.of_device("cpu")
    return None if found is None else found.curve


def save_energy(energy: EnergyCalibration, directory: Path) -> Path:
    """Write the energy calibration into a state directory, atomically. Raises ConfigError."""
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
        raise ValueError("it has no kernels")
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
        raise ValueError(f"{where}: device {device!r} is not one of {', '.join(DEVICES)}")
    write_us = k.get("write_us")
    return KernelCurve(
        curve, _above_zero(k["cores"], f"{where}: cores"), device,
        Provenance(k.get("times_from", Provenance.MEASURED.value)),
        None if write_us is None else _not_below_zero(write_us, f"{where}: write_us"),
    )  # fmt: skip


def _only(document: Mapping[str, Any], *known: str) -> None:
    for key in document:
        if key not in known:
            raise ValueError(f"unknown field {key}; the fields are {', '.join(known)}")


def _above_zero(value: Any, name: str) -> float:
    if not (math.isfinite(float(value)) and float(value) > 0):
        raise ValueError(f"{name} is {value!r}, not a positive number")
    return float(value)


def _not_below_zero(value: Any, name: str) -> float:
    if not (math.isfinite(float(value)) and float(value) >= 0):
        raise ValueError(f"{name} is {value!r}, not a time")
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
