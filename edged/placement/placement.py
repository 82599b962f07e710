"""Placement: the choice of the kernel, and so of the processor, that runs a join. Sans-IO.

`edged calibrate` measures every kernel that the daemon may run on this machine: the time of a beat
by the tuples in the beat and in the window. The result is a `KernelProfile`. From it and from the
sizes of recent beats a `Placer` chooses:

    1. the kernel with least energy among those whose race fits half the latency tolerance (the
       bound of every race)
    2. the fastest kernel, if none fits
    3. `chain`, without a profile

Energy of a beat comes from one of these:

    cost model    the board's `Prices`, if it has a model: the whole input above idle, including a
                  GPU's wakeup and its powered time. Under a planning policy the price includes the
                  best waits, clocks and sleep states for each kernel
    watts         cpu_s x watts of a busy core + device_s x watts of the busy device. The watts come
                  from the calibration over clocks (`edged.calibration.operating_points`), at the
                  cheapest clock, or from the configuration; `watts_from` holds their provenance
    CPU time      for kernels of the CPU, if watts are unknown. Kernels on another device are then
                  chosen only if no kernel of the CPU fits the tolerance

While other processes use the GPU more than they may (`edged.placement.gpu_share`), its kernels are
no candidates, and a join that runs on it leaves it after the beat.

A switch carries the window over (`IntervalJoin.switch`), which takes time. So a switch must save a
tenth of the energy, in two decisions in a row, and must repay its cost within REPAID_BEATS.

The encoded profile:

    {"format": 1, "threads": n, "watts": {"cpu": W, "cuda": W},
     "watts_from": {"cpu": "measured"},
     "board": "orin-nano", "clocks": {"cpu": Hz, "cuda": Hz},
     "kernels": {name: {"device": ..., "windows": [...], "rows": [...],
                        "us": [[...]], "cpu_us": [[...]], "carry_us_per_tuple": x,
                        "times_from": "measured", "stalled": x}}}

`us[i][j]` is the time of a beat of rows[j] tuples (both sides) at windows[i] tuples a side, at the
device's clock in `clocks` if that is known.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edged.errors import ConfigError
from governors.placement_prices import KernelPart

FORMAT = 1
AUTO = "auto"
DEFAULT = "chain"
MEASURED = "measured"
DECIDE_BEATS = 64
"""Beats between two decisions."""
REPAID_BEATS = 4096
"""Beats within which a switch must repay its cost."""
RESERVED = 0.9
"""Share of a GPU that others may take from one beat to the next without a late result."""
GAIN = 0.9
"""Largest cost of the new kernel relative to the running one, for a switch."""


@dataclass(frozen=True)
class Curve:
    """A kernel's times over windows and beat sizes. Both axes are ascending."""

    device: str
    windows: tuple[int, ...]
    rows: tuple[int, ...]
    us: tuple[tuple[float, ...], ...]
    cpu_us: tuple[tuple[float, ...], ...]
    carry_us_per_tuple: float
    times_from: str = MEASURED
    """measured; modelled (from the board's figures); simulated (kernel or board was simulated)."""
    stalled: float = 0.0
    """Share of a row's time that does not depend on the GPU's clock; 0 for kernels of the CPU."""

    def cost(self, window: int, rows: int) -> Cost:
        """The cost of a beat of `rows` tuples at a window, interpolated in the logarithms.

        Outside the measured range the nearest window counts. Tuples beyond the largest beat cost
        the mean slope between the smallest and the largest beat.
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
    """The wall time of a beat, and the CPU time of all its threads (µs)."""

    us: float
    cpu_us: float


class Prices(Protocol):
    """Energy prices of this board (`governors.placement_prices.PlacementPrices`)."""

    def beat_j(self, part: KernelPart, instead: KernelPart | None) -> float | None:
        """Joules above idle of a beat with the kernel of `part`; None if a part of it is unknown.

        `instead` describes the running kernel that it would replace; None if that is not known.
        """

    def work_j(self, cpu_us: float) -> float:
        """Joules above idle of CPU time on one core."""


@dataclass(frozen=True)
class KernelProfile:
    """The calibrated kernel times of a machine, and the watts of its devices."""

    threads: int
    kernels: Mapping[str, Curve]
    watts: Mapping[str, float] = field(default_factory=dict)
    """Power above idle by device (`cpu`: of one busy core); unknown for a missing device."""
    watts_from: Mapping[str, str] = field(default_factory=dict)
    """Provenance of the watts by device: measured, modelled, simulated; configured if missing."""
    board: str = ""
    """The machine's board, as `governors.detect` names it; empty if unknown."""
    clocks: Mapping[str, int] = field(default_factory=dict)
    """Clock (Hz) of the times, by device; a missing device's clock is unknown."""

    def joules(self, kernel: str, cost: Cost) -> float | None:
        """The energy of a beat in joules, or in core-seconds if no watts are known.

        None for a kernel of another device without known watts.
        """
        curve = self.kernels[kernel]
        if curve.device == "cpu":
            return cost.cpu_us / 1e6 * self.watts.get("cpu", 1.0)
        if "cpu" not in self.watts or curve.device not in self.watts:
            return None
        return (cost.cpu_us * self.watts["cpu"] + cost.us * self.watts[curve.device]) / 1e6

    def part(self, kernel: str, window: int, rows: int) -> KernelPart:
        """The kernel's share of a beat of `rows` tuples.

        The cost of one more row is the mean slope between half of `rows` and `rows`.
        """
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
        """The inverse of `encode`. Raises ConfigError, whose message names the origin `where`."""
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
    """A choice and its reason. `us` and `joules` are those of one beat; None if unknown."""

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
    """The kernel for beats of `rows` tuples (both sides, at least one) at `window` tuples a side.

    Kernels in `without` are excluded. `runs` is the running kernel, empty if there is none.
    """
    known = [] if profile is None else [k for k in profile.kernels if k not in without]
    if profile is None or not known:
        return Placement(DEFAULT, "the default: this machine is not calibrated")
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
        """The running kernel."""
        self.pinned = False
        """Whether an operator has chosen the kernel."""
        self.problems: dict[str, str] = {}
        """Kernels whose switch failed, with the problem. They are not tried again."""
        self.prices: Prices | None = None
        """The board's energy prices; None without a cost model."""
        self.runs: KernelPart | None = None
        """The running kernel's share of a beat of the recent size; None without calibration."""
        self.keeps_off: Callable[[], bool] = lambda: False
        """Whether the kernels of a GPU are no candidates now."""
        self.shares = False
        """Whether other processes may begin to use the GPU at any time."""
        self.reserve_us = 0.0
        """How much longer than the last races the next one may take: others share the GPU, or the
        join has just left it."""
        curves = {} if profile is None else profile.kernels
        self._on_gpu = frozenset(name for name, curve in curves.items() if curve.device != "cpu")
        self._profile, self._latency_us = profile, latency_us
        self._beats = self._rows = 0
        self._candidate = kernel

    @property
    def chooses(self) -> bool:
        """Whether there is a choice: a profile, and no pinned kernel."""
        return self._profile is not None and not self.pinned

    @property
    def on_gpu(self) -> bool:
        """Whether the running kernel is one of a GPU."""
        return self.kernel in self._on_gpu

    def beat(self, rows: int, window: int) -> str | None:
        """Record a beat of `rows` tuples that leaves `window` tuples a side.

        Returns the kernel to switch to, or None to stay.
        """
        self._beats += rows > 0
        self._rows += rows
        if not self.on_gpu:
            self.reserve_us = 0.0
        if self.on_gpu and not self.pinned and self.keeps_off():
            return self._leave(max(1, self._rows // max(1, self._beats)), window)
        if self._beats < DECIDE_BEATS:
            return None
        mean, self._beats, self._rows = self._rows // self._beats, 0, 0
        if self.pinned or self._profile is None:
            return None
        wanted = self._wanted(self._profile, mean, window)
        again, self._candidate = wanted == self._candidate, wanted
        switches = wanted != self.kernel and again
        self.kernel = wanted if switches else self.kernel
        if self.on_gpu and self.shares:
            self.reserve_us = self._reserve_us(self._profile, mean, window)
        known = self.kernel in self._profile.kernels
        self.runs = self._profile.part(self.kernel, window, mean) if known else None
        return wanted if switches else None

    def pin(self, kernel: str | None) -> None:
        """Pin a kernel by an operator's choice; None returns the choice to the placer."""
        self.pinned = kernel is not None
        if kernel is not None:
            self.kernel = self._candidate = kernel
            self.runs = None

    def refuse(self, kernel: str, running: str, problem: str) -> None:
        """Record that a switch to `kernel` failed and `running` stays."""
        self.problems[kernel] = problem
        self.kernel = self._candidate = running
        self.runs = None

    def _leave(self, rows: int, window: int) -> str:
        """The kernel of the CPU to run from now on."""
        self._beats = self._rows = 0
        best = choose(self._profile, self._without(), window, rows, self._latency_us, self.prices)
        self.kernel = self._candidate = best.kernel
        profile = self._profile
        known = profile is not None and best.kernel in profile.kernels
        was_us = 0.0 if self.runs is None else self.runs.us
        self.reserve_us = max(0.0, (best.us or 0.0) - was_us)
        self.runs = profile.part(best.kernel, window, rows) if known and profile else None
        return best.kernel

    def _reserve_us(self, profile: KernelProfile, rows: int, window: int) -> float:
        """What a race takes longer where others use RESERVED of the GPU, or on the CPU, to which
        the join then moves."""
        us = profile.kernels[self.kernel].cost(window, rows).us
        without = {*self.problems, *self._on_gpu}
        cpu = choose(profile, without, window, rows, self._latency_us, self.prices)
        return min(max(us / (1.0 - RESERVED), cpu.us or 0.0), self._latency_us / 2) - us

    def _without(self) -> Collection[str]:
        """Kernels that are no candidates now."""
        if self._on_gpu and self.keeps_off():
            return {*self.problems, *self._on_gpu}
        return self.problems

    def _wanted(self, profile: KernelProfile, rows: int, window: int) -> str:
        best = choose(
            profile, self._without(), window, rows, self._latency_us, self.prices, self.kernel
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
            return best.kernel  # a kernel without a price runs only if no other is in time
        carry_us = profile.kernels[best.kernel].carry_us_per_tuple * 2 * window
        carry = carry_us / 1e6 * profile.watts.get("cpu", 1.0)
        if self.prices is not None and carry_us:
            carry = self.prices.work_j(carry_us)
        gains = best.joules <= GAIN * now and (now - best.joules) * REPAID_BEATS > carry
        return best.kernel if gains else self.kernel


def outline(profile: KernelProfile | None, latency_us: int) -> list[str]:
    """Lines for `edged explain`: the chosen kernel by size of beat and window."""
    if profile is None:
        return [f"placement: {DEFAULT}; run `edged calibrate` to find a better kernel"]
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
        source = profile.watts_from.get(device, "configured")
        name = "a busy core" if device == "cpu" else f"a busy {device}"
        lines.append(f"placement: {name} draws {watts:.3g} W above idle ({source})")
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
        raise ValueError(f"stalled is {curve.stalled}, not between 0 and 1")
    for values, least in ((curve.windows, 1), (curve.rows, 2)):
        if len(values) < least or list(values) != sorted({*values}) or values[0] < 1:
            raise ValueError("an axis is too short or not ascending")
    for name, rows in (("us", curve.us), ("cpu_us", curve.cpu_us)):
        shape = [len(row) for row in rows]
        if shape != [len(curve.rows)] * len(curve.windows):
            raise ValueError(f"{name} is not {len(curve.windows)} x {len(curve.rows)}")
        if not all(math.isfinite(x) and x > 0 for row in rows for x in row):
            raise ValueError(f"{name} has a time that is not a positive number")
    return curve


def _between(axis: Sequence[int], value: int) -> tuple[int, int, float]:
    """The indices of the points around `value`, and its relative position in the logarithm."""
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
