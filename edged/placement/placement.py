"""Placement: which kernel, and so which processor, runs a join.  Sans-IO.

`edged calibrate` measures every kernel that the daemon may run on this machine: the time that a
beat takes over the tuples in it and the tuples in the window.  That is a `KernelProfile`.  From it
and from what the last beats were like a `Placer` picks the kernel that costs least energy among
those whose race takes no more than half the latency tolerance (the bound of every race), and where
none does, the fastest.  Without a profile, and where nothing is known to be better, it is `chain`.

Energy is that of the board's cost model where there is one (`Prices`: all of the input above idle,
with a GPU that is woken and stays powered; under a policy that plans, with the waits, clocks and
sleeps that go best with each kernel).  Else it is `cpu_s x watts of a busy core + device_s x
watts of the busy device`, with the watts of the calibration over clocks
(`edged.calibration.operating_points`), at the cheapest clock, or as
configured; `watts_from` says which.  Unknown watts are not guessed: CPU kernels are then compared
by CPU time, and kernels on another device are chosen only where the tolerance cannot be met without
them.

Switching carries the window over (`IntervalJoin.switch`), which costs time itself.  So a switch
must promise a tenth, twice in a row, and earn what it costs within REPAID_BEATS.

    {"format": 1, "threads": n, "watts": {"cpu": W, "cuda": W},
     "watts_from": {"cpu": "measured"},
     "board": "orin-nano", "clocks": {"cpu": Hz, "cuda": Hz},
     "kernels": {name: {"device": ..., "windows": [...], "rows": [...],
                        "us": [[...]], "cpu_us": [[...]], "carry_us_per_tuple": x,
                        "times_from": "measured", "stalled": x}}}

`us[i][j]` is the time of a beat of rows[j] tuples (both sides) at windows[i] tuples a side, at the
device's clock of `clocks`, where that is known.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edged.errors import ConfigError
from governors.placement_prices import KernelPart

FORMAT = 1
AUTO = "auto"
DEFAULT = "chain"
MEASURED = "measured"
DECIDE_BEATS = 64
"""Beats from one decision to the next."""
REPAID_BEATS = 4096
"""A switch must save what it costs within so many beats."""
GAIN = 0.9
"""A switch is made to what costs at most this part of what runs now."""


@dataclass(frozen=True)
class Curve:
    """A kernel's measured times; the axes are ascending."""

    device: str
    windows: tuple[int, ...]
    rows: tuple[int, ...]
    us: tuple[tuple[float, ...], ...]
    cpu_us: tuple[tuple[float, ...], ...]
    carry_us_per_tuple: float
    times_from: str = MEASURED
    """measured; modelled by the board's figures; simulated where the kernel or its board was."""
    stalled: float = 0.0
    """Of a GPU: the share of a row's time that its clock does not shorten."""

    def cost(self, window: int, rows: int) -> Cost:
        """What a beat costs, interpolated in the logarithms.

        Outside of what was measured it is the nearest window; tuples beyond the largest beat cost
        what those of that beat beyond the smallest one did.
        """
        at, x = _between(self.windows, window), _between(self.rows, rows)
        more = max(0, rows - self.rows[-1])
        costs = []
        for table in (self.us, self.cpu_us):
            cost = _bilinear(table, at, x)
            if more:
                before = _bilinear(table, at, (0, 0, 0.0))
                each = (cost - before) / (self.rows[-1] - self.rows[0])
                cost += more * max(0.0, each)
            costs.append(cost)
        return Cost(*costs)


@dataclass(frozen=True)
class Cost:
    """A beat's time, and the CPU time of all threads in it."""

    us: float
    cpu_us: float


class Prices(Protocol):
    """What beats take on this board (`governors.placement_prices.Placing`)."""

    def beat_j(self, part: KernelPart, instead: KernelPart | None) -> float | None:
        """Joules above idle of a beat with a kernel `instead` of the one that runs, where that is
        known; None where a part of it is not known."""

    def work_j(self, cpu_us: float) -> float:
        """Joules above idle of CPU time on one core."""


@dataclass(frozen=True)
class KernelProfile:
    """What was measured on this machine, and the configured watts."""

    threads: int
    kernels: Mapping[str, Curve]
    watts: Mapping[str, float] = field(default_factory=dict)
    """By device (`cpu`: of one busy core); a device that is missing is not known."""
    watts_from: Mapping[str, str] = field(default_factory=dict)
    """By device: measured, modelled, simulated; configured if missing."""
    board: str = ""
    """Whose times these are, as `governors.detect` names it; empty: not known."""
    clocks: Mapping[str, int] = field(default_factory=dict)
    """By device, the clock (Hz) that they are of, where that is known."""

    def joules(self, kernel: str, cost: Cost) -> float | None:
        """A beat's energy; in core-seconds where no watts are known; None where that says nothing
        about this kernel's device."""
        curve = self.kernels[kernel]
        if curve.device == "cpu":
            return cost.cpu_us / 1e6 * self.watts.get("cpu", 1.0)
        if "cpu" not in self.watts or curve.device not in self.watts:
            return None
        return (cost.cpu_us * self.watts["cpu"] + cost.us * self.watts[curve.device]) / 1e6

    def part(self, kernel: str, window: int, rows: int) -> KernelPart:
        """What a kernel takes of a beat, around `rows` tuples; a row more adds what it does from
        half as many on."""
        curve, half = self.kernels[kernel], rows // 2
        cost = curve.cost(window, rows)
        each_us = (cost.us - curve.cost(window, half).us) / (rows - half)
        each_us, hz = max(0.0, each_us), self.clocks.get(curve.device, 0)
        return KernelPart(curve.device, rows, cost.us, cost.cpu_us, each_us, hz, curve.stalled)

    def encode(self) -> str:
        """The JSON text of the file."""
        kernels = {
            name: {
                "device": c.device,
                "windows": c.windows,
                "rows": c.rows,
                "us": c.us,
                "cpu_us": c.cpu_us,
                "carry_us_per_tuple": c.carry_us_per_tuple,
                "times_from": c.times_from,
                "stalled": c.stalled,
            }
            for name, c in self.kernels.items()
        }
        document = {
            "format": FORMAT, "threads": self.threads, "watts": self.watts,
            "watts_from": self.watts_from, "board": self.board, "clocks": self.clocks,
            "kernels": kernels,
        }  # fmt: skip
        return json.dumps(document, indent=1)

    @classmethod
    def decode(cls, text: str, where: str) -> KernelProfile:
        """The inverse of `encode`.  Raises ConfigError that names `where` the text came from."""
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}, not {FORMAT}")
            kernels = {name: _curve(c) for name, c in document["kernels"].items()}
            watts = {name: float(w) for name, w in document["watts"].items()}
            sources = {name: str(s) for name, s in document.get("watts_from", {}).items()}
            clocks = {name: int(hz) for name, hz in document.get("clocks", {}).items()}
            board, threads = str(document.get("board", "")), int(document["threads"])
            return cls(threads, kernels, watts, sources, board, clocks)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ConfigError(
                f"{where} is not a profile of `edged calibrate` ({problem}): run it again"
            ) from problem


@dataclass(frozen=True)
class Placement:
    """A choice, and why; `us` and `joules` are of one beat, where they are known."""

    kernel: str
    why: str
    us: float | None = None
    joules: float | None = None


def choose(
    profile: KernelProfile | None,
    without: Collection[str],
    window: int,
    rows: int,
    latency_us: int,
    prices: Prices | None = None,
    runs: str = "",
) -> Placement:
    """The kernel for beats of `rows` tuples (both sides, at least one) at `window` tuples a side;
    `runs`: the one that runs now, if any does."""
    known = [] if profile is None else [k for k in profile.kernels if k not in without]
    if profile is None or not known:
        return Placement(DEFAULT, "the default: this machine was not calibrated")
    costs = {k: profile.kernels[k].cost(window, rows) for k in known}
    instead = profile.part(runs, window, rows) if runs in profile.kernels else None
    joules = {k: _joules(profile, prices, k, window, rows, instead) for k in known}

    def placed(kernel: str, why: str) -> Placement:
        return Placement(kernel, why, costs[kernel].us, joules[kernel])

    in_time = [k for k in known if costs[k].us <= latency_us / 2]
    if not in_time:
        return placed(min(known, key=lambda k: costs[k].us), "the fastest; none is in time")
    comparable = {k: j for k in in_time if (j := joules[k]) is not None}
    if not comparable:
        return placed(min(in_time, key=lambda k: costs[k].us), "the fastest; watts are not known")
    unit = "least energy" if prices or "cpu" in profile.watts else "least CPU time"
    return placed(min(comparable, key=lambda k: comparable[k]), f"{unit} of those in time")


def _joules(
    profile: KernelProfile, prices: Prices | None, kernel: str, window: int, rows: int,
    instead: KernelPart | None,
) -> float | None:  # fmt: skip
    if prices is None:
        return profile.joules(kernel, profile.kernels[kernel].cost(window, rows))
    return prices.beat_j(profile.part(kernel, window, rows), instead)


class Placer:
    """Places one running join, from beat to beat."""

    def __init__(self, profile: KernelProfile | None, latency_us: int, kernel: str) -> None:
        self.kernel = kernel
        """What runs now."""
        self.pinned = False
        """Whether a person has chosen it."""
        self.problems: dict[str, str] = {}
        """Kernels that could not be switched to, and why: they are not tried again."""
        self.prices: Prices | None = None
        """The board's, where there is a cost model of it."""
        self.runs: KernelPart | None = None
        """What the kernel that runs takes of a beat like the last ones, where it was measured."""
        self._profile, self._latency_us = profile, latency_us
        self._beats = self._rows = 0
        self._candidate = kernel

    def beat(self, rows: int, window: int) -> str | None:
        """A beat took `rows` tuples and leaves `window` a side; the kernel to go on with, where
        that is another."""
        self._beats += rows > 0
        self._rows += rows
        if self._beats < DECIDE_BEATS:
            return None
        mean, self._beats, self._rows = self._rows // self._beats, 0, 0
        if self.pinned or self._profile is None:
            return None
        wanted = self._wanted(self._profile, mean, window)
        again, self._candidate = wanted == self._candidate, wanted
        switches = wanted != self.kernel and again
        self.kernel = wanted if switches else self.kernel
        known = self.kernel in self._profile.kernels
        self.runs = self._profile.part(self.kernel, window, mean) if known else None
        return wanted if switches else None

    def pin(self, kernel: str | None) -> None:
        """A person chooses; None gives the choice back."""
        self.pinned = kernel is not None
        if kernel is not None:
            self.kernel = self._candidate = kernel
            self.runs = None

    def refuse(self, kernel: str, running: str, problem: str) -> None:
        """It could not be switched to."""
        self.problems[kernel] = problem
        self.kernel = self._candidate = running
        self.runs = None

    def _wanted(self, profile: KernelProfile, rows: int, window: int) -> str:
        best = choose(
            profile, self.problems, window, rows, self._latency_us, self.prices, self.kernel
        )
        if best.kernel == self.kernel or self.kernel not in profile.kernels:
            return best.kernel
        cost = profile.kernels[self.kernel].cost(window, rows)
        if cost.us > self._latency_us / 2 and best.us is not None and best.us < GAIN * cost.us:
            return best.kernel
        runs = profile.part(self.kernel, window, rows)
        now = _joules(profile, self.prices, self.kernel, window, rows, runs)
        if best.joules is None:
            return self.kernel
        if now is None:
            return best.kernel  # an unpriced kernel runs only if it is needed
        carry_us = profile.kernels[best.kernel].carry_us_per_tuple * 2 * window
        carry = carry_us / 1e6 * profile.watts.get("cpu", 1.0)
        if self.prices is not None and carry_us:
            carry = self.prices.work_j(carry_us)
        gains = best.joules <= GAIN * now and (now - best.joules) * REPAID_BEATS > carry
        return best.kernel if gains else self.kernel


def outline(profile: KernelProfile | None, latency_us: int) -> list[str]:
    """Lines for `edged explain`: what would run at which sizes of beat and window."""
    if profile is None:
        return [f"placement: {DEFAULT}; `edged calibrate` measures what is better here"]
    lines = []
    for window in sorted({w for c in profile.kernels.values() for w in c.windows}):
        runs: list[tuple[int, str]] = []
        for power in range(6, 21):
            kernel = choose(profile, (), window, 1 << power, latency_us).kernel
            if not runs or runs[-1][1] != kernel:
                runs.append((1 << power, kernel))
        text = runs[0][1] + "".join(f", from {rows} tuples a beat {k}" for rows, k in runs[1:])
        lines.append(f"placement at a window of {window} a side: {text}")
    for name, curve in profile.kernels.items():
        if curve.times_from != MEASURED:
            lines.append(f"placement: the times of {name} are {curve.times_from}")
    for device, watts in profile.watts.items():
        source = profile.watts_from.get(device, "told")
        what = "a busy core" if device == "cpu" else f"busy {device}"
        lines.append(f"placement takes {what} to draw {watts:.3g} W above idle ({source})")
    return lines


def _curve(document: Mapping[str, Any]) -> Curve:
    def table(name: str) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(float(x) for x in row) for row in document[name])

    curve = Curve(
        str(document["device"]),
        tuple(int(x) for x in document["windows"]),
        tuple(int(x) for x in document["rows"]),
        table("us"),
        table("cpu_us"),
        float(document["carry_us_per_tuple"]),
        str(document.get("times_from", MEASURED)),
        float(document.get("stalled", 0.0)),
    )
    if not 0 <= curve.stalled <= 1:
        raise ValueError(f"stalled is {curve.stalled}, which is no share")
    for values, least in ((curve.windows, 1), (curve.rows, 2)):
        if len(values) < least or list(values) != sorted({*values}) or values[0] < 1:
            raise ValueError("an axis is too short or does not rise")
    for name, rows in (("us", curve.us), ("cpu_us", curve.cpu_us)):
        shape = [len(row) for row in rows]
        if shape != [len(curve.rows)] * len(curve.windows):
            raise ValueError(f"{name} is not {len(curve.windows)} x {len(curve.rows)}")
        if not all(math.isfinite(x) and x > 0 for row in rows for x in row):
            raise ValueError(f"{name} holds a time that is none")
    return curve


def _between(axis: Sequence[int], value: int) -> tuple[int, int, float]:
    """The points beside `value` and how far it is from the first to the second, in logarithms."""
    right = bisect_left(axis, value)
    if right == 0:
        return 0, 0, 0.0
    if right == len(axis):
        return right - 1, right - 1, 0.0
    low, high = axis[right - 1], axis[right]
    return right - 1, right, math.log(value / low) / math.log(high / low)


def _bilinear(
    table: Sequence[Sequence[float]], at: tuple[int, int, float], x: tuple[int, int, float]
) -> float:
    def along(row: Sequence[float]) -> float:
        return (1 - x[2]) * math.log(row[x[0]]) + x[2] * math.log(row[x[1]])

    return math.exp((1 - at[2]) * along(table[at[0]]) + at[2] * along(table[at[1]]))
