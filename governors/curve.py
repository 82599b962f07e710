"""Calibration curve of a race: time, watts and energy over the clock.  Sans-IO.

`edged calibrate` runs the kernels at each operating point (OPP) and stores, per point, the time of
a beat and the watts of the whole input while it ran.  Two laws are fitted:

    time(f)  = cycles / f + stall        waiting for memory does not depend on the clock
    watts(f) = a + b f + c f³            rest of the board, f at fixed voltage, f V² with V ~ f

All coefficients are at or above zero, so a noisy point cannot make the fit fall with the clock.
Without a sensor the watts come from the power model and the curve is marked `modelled`.

The optimum is the clock with the least energy above idle,

    (watts(f) − idle) · time(f) + cost of the writes

among those in time.  The kernel's own governor is a candidate too: measured like the others,
without writes.  For a memory-bound kernel the optimum is below the highest clock (ecoJoin, section
2.1; its settings files have one clock per rate).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from governors.energy import Provenance
from governors.errors import ProfileError

FORMAT = 1
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A measured operating point."""

    hz: int
    us: float
    """Of one beat."""
    watts: float
    """Of the whole input during the beat."""


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """Coefficients of a fit and its relative root mean square residual."""

    coefficients: tuple[float, ...]
    error: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A clock with its time and energy."""

    hz: int | None
    """None: the clock is not set."""
    us: float
    watts: float
    joules: float
    """Above idle, with writes."""
    in_time: bool


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best candidate, the reason in words, and all candidates."""

    best: Candidate
    why: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class CalibrationCurve:
    """A beat of `units` units, measured at points of one knob.  Raises ProfileError for clocks that
    do not rise and for negative or non-finite figures."""

    knob: str
    units: int
    points: tuple[CurvePoint, ...]
    """Ascending in hz, at least one."""
    idle_watts: float
    watts_from: Provenance
    left_alone: tuple[float, float] | None = None
    """Time (µs) and watts of the same beat under the kernel's governor."""

    def __post_init__(self) -> None:
        clocks = [p.hz for p in self.points]
        if not clocks or clocks != sorted({*clocks}) or clocks[0] <= 0:
            raise ProfileError(f"{self.knob}: the points' clocks must rise: {clocks}")
        figures = [x for p in self.points for x in (p.us, p.watts)] + [self.idle_watts]
        figures += self.left_alone or ()
        if not all(math.isfinite(x) and x >= 0 for x in figures):
            raise ProfileError(f"{self.knob}: a time or a power is negative or none; measure again")

    def time_law(self) -> FittedLaw:
        """Cycles and stall (s) of `time(f) = cycles / f + stall`."""
        hz, s = self._column("hz"), self._column("us") / 1e6
        return _fit([1.0 / hz, np.ones_like(hz)], s)

    def watts_law(self) -> FittedLaw:
        """a, b and c of `a + b f + c f³`, with f in GHz."""
        ghz = self._column("hz") / 1e9
        return _fit([np.ones_like(ghz), ghz, ghz**3], self._column("watts"))

    def memory_bound(self) -> float:
        """Share of the time at the highest clock that the clock does not shorten (0 to 1)."""
        cycles, stall = self.time_law().coefficients
        total = cycles / self.points[-1].hz + stall
        return stall / total if total else 0.0

    def fitted(self, hz: int) -> CurvePoint:
        """Time and watts at a clock by the two laws."""
        cycles, stall = self.time_law().coefficients
        a, b, c = self.watts_law().coefficients
        ghz = hz / 1e9
        return CurvePoint(hz, 1e6 * (cycles / hz + stall), a + b * ghz + c * ghz**3)

    def optimum(
        self,
        deadline_us: float,
        allowed_hz: Sequence[int] | None = None,
        write_j: float = 0.0,
        write_us: float = 0.0,
    ) -> Optimum:
        """The candidate with the least energy that ends within `deadline_us`; the fastest where
        none does.

        `allowed_hz`: clocks that may be set, by default the measured ones, empty: only the kernel's
        governor remains.  `write_j`, `write_us`: cost of setting and releasing a clock.  Raises
        ProfileError without any candidate.
        """
        clocks = [p.hz for p in self.points] if allowed_hz is None else sorted(allowed_hz)
        measured = {p.hz: p for p in self.points}
        found = []
        if self.left_alone is not None:
            us, watts = self.left_alone
            found.append(self._candidate(None, us, watts, 0.0, deadline_us))
        for hz in clocks:
            p = measured.get(hz) or self.fitted(hz)
            found.append(self._candidate(hz, p.us + write_us, p.watts, write_j, deadline_us))
        if not found:
            raise ProfileError(
                f"{self.knob}: no clock may be set and none was measured without a set clock"
            )
        in_time = [c for c in found if c.in_time]
        best = min(in_time, key=lambda c: c.joules) if in_time else min(found, key=lambda c: c.us)
        return Optimum(best, self._why(best, in_time), tuple(found))

    def encode(self) -> str:
        """The curve as JSON."""
        document = {"format": FORMAT, **asdict(self), "watts_from": self.watts_from.value}
        return json.dumps(document, indent=1)

    @classmethod
    def decode(cls, text: str, where: str) -> CalibrationCurve:
        """Inverse of `encode`. Raises ProfileError that names `where`, the origin of the text."""
        try:
            d: dict[str, Any] = json.loads(text)
            if d["format"] != FORMAT:
                raise ValueError(f"format {d['format']}, not {FORMAT}")
            points = tuple(
                CurvePoint(int(p["hz"]), float(p["us"]), float(p["watts"])) for p in d["points"]
            )
            left = d["left_alone"]
            alone = None if left is None else (float(left[0]), float(left[1]))
            idle, source = float(d["idle_watts"]), Provenance(d["watts_from"])
            return cls(str(d["knob"]), int(d["units"]), points, idle, source, alone)
        except (ValueError, KeyError, TypeError, IndexError, ProfileError) as problem:
            raise ProfileError(
                f"{where} is not a calibration curve ({problem}): run `edged calibrate` again"
            ) from problem

    def _candidate(
        self, hz: int | None, us: float, watts: float, write_j: float, deadline_us: float
    ) -> Candidate:
        joules = (watts - self.idle_watts) * us / 1e6 + write_j
        return Candidate(hz, us, watts, joules, us <= deadline_us)

    def _why(self, best: Candidate, in_time: Sequence[Candidate]) -> str:
        if not in_time:
            return "none ends in time: the fastest"
        if best.hz is None:
            return "least energy of those in time: leave it to the kernel"
        text = f"least energy of those in time: {best.hz / 1e6:.0f} MHz"
        if best.hz < self.points[-1].hz:
            text += f"; at the highest clock {self.memory_bound():.0%} of the time waits for memory"
        return text

    def _column(self, name: str) -> Floats:
        return np.array([getattr(p, name) for p in self.points], np.float64)


def _fit(terms: Sequence[Floats], values: Floats) -> FittedLaw:
    """Relative least squares with coefficients at or above zero.

    With so few terms the best non-negative subset is found by trying all of them.  With fewer
    points than terms the later terms are left out.
    """
    scale = np.where(values > 0, values, 1.0)
    sizes = [float(np.abs(term).max()) for term in terms]
    weighed = [term / size / scale for term, size in zip(terms, sizes, strict=True)]
    goal = values / scale
    best, best_rms = np.zeros(len(terms)), math.inf
    for count in range(1, min(len(terms), len(values)) + 1):
        for chosen in itertools.combinations(range(len(terms)), count):
            matrix = np.stack([weighed[i] for i in chosen], axis=1)
            found, *_ = np.linalg.lstsq(matrix, goal, rcond=None)
            rms = float(np.sqrt(np.mean((matrix @ found - goal) ** 2)))
            if (found >= 0).all() and rms < best_rms - 1e-12:
                best, best_rms = np.zeros(len(terms)), rms
                best[list(chosen)] = found
    coefficients = tuple(float(x) / size for x, size in zip(best, sizes, strict=True))
    return FittedLaw(coefficients, 0.0 if math.isinf(best_rms) else best_rms)
