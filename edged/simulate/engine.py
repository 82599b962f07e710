"""Discrete events in virtual time: the daemon's batcher, placer and policies on a modelled board.

A beat in order:

    1. The first message after the last ingest wakes the daemon.
    2. The batcher sets the time of the race; the timer wakes the daemon again.
    3. Ingest and race run at the board's current clock.
    4. The commit runs in the background of the next wait; results are sealed once it is durable.

Messages arrive as a Poisson process. Their rows are spread evenly from the first message of a beat
to its ingest. Rows that a policy does not admit wait; no row is lost. As in the daemon, the policy
changes the wait through the batcher (`steer`).

    sealed − arrival = wait for the ingest + race + commit
"""

from __future__ import annotations

import math
import random
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edged.beat.batcher import Batcher, BeatCosts
from edged.placement.gpu_share import GPU_LOOK_US, GpuShare
from edged.placement.placement import DEFAULT, KernelProfile, Placer
from edged.simulate.device import SimulatedDevice
from edged.simulate.work import COMMIT_US, JobWork
from governors.cost import CostModel
from governors.energy import Provenance
from governors.heat_limit import HeatLimit
from governors.placement_prices import PlacementPrices
from governors.policies.base import Battery, Decision, Observation
from governors.policies.running import Running
from governors.thermal import thermal_nodes
from governors.work import RaceCost, Work

BUFFER_BYTES = 6 << 20
"""Receive buffer of one connection: Linux's largest (tcp_rmem). Each stream has one connection."""
HELD_ROWS_MIN = 1.0
FIGURES = re.compile(r"\d[\d.]*")
"""Numbers in the reason of a policy's decision."""


@dataclass(frozen=True)
class GpuLoad:
    """A load that comes and goes: `share` of the GPU for `on_s`, none for `off_s`, and again."""

    share: float
    on_s: float
    off_s: float

    def at(self, at_us: float) -> float:
        """The share at a time; it begins without."""
        return self.share if at_us / 1e6 % (self.off_s + self.on_s) >= self.off_s else 0.0


@dataclass(frozen=True)
class Setup:
    """The input of one simulation."""

    work: JobWork
    latency_us: int
    ack_within_us: int
    memory_bytes: int
    policy: str = "hands_off"
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 600.0
    seed: int = 1
    battery_j: float | None = None
    day_us: int = 0
    upload_within_us: int = 0
    calibrated: KernelProfile | None = None
    """Kernel times on the board, for the placer (`rows`)."""
    kernels: Mapping[str, JobWork] = field(default_factory=dict)
    """The work with each kernel of the join, by name."""
    gpu_load: GpuLoad | None = None
    """Load of other processes on the GPU; None: there is none."""
    gpu_share: float = 0.5
    """Share above which joins keep off the GPU."""
    max_celsius: float | None = None
    """Limit of the chip's temperature, where heat is simulated."""
    notes: tuple[str, ...] = ()
    """Notes on the provenance of the kernel times."""


@dataclass
class SimulationOutcome:
    """The result of one simulation."""

    seconds: float
    joules: float
    idle_watts: float
    arrived: float
    raced: float
    beats: int
    wakes: int
    busy_share: float
    """Race time over total time. From 1 on, the board does not keep up."""
    waiting: float
    """Rows that were not processed by the end."""
    held_back: int
    """Beats in which a policy admitted only some of the waiting rows."""
    latency_ms: dict[str, float]
    late_share: float
    """Share of rows sealed later than the tolerance allows."""
    clocks_us: dict[int, float]
    states_us: dict[str, float]
    kernel: str
    reasons: list[tuple[int, str]]
    """Counts and texts of the policy's reasons, the most frequent first."""
    forecast: str
    gpu_clocks_us: dict[int, float]
    gpu_wakes: int
    gpu_moves: int = 0
    """How often joins left the GPU or might use it again, because of others."""
    celsius: float | None = None
    """Of the chip at the end; None: heat was not simulated."""
    celsius_max: float | None = None
    is_off: bool = False
    """Whether the board has switched itself off at its critical trip point, and the run ended."""
    throttled_share: float = 0.0
    """Share of time in which hardware or kernel throttled the clocks."""
    held_share: float = 0.0
    """Share of time for which races were held for their heat."""
    ceiling_changes: int = 0
    """Changes of the highest clock by the limit of the temperature."""


class Engine:
    """One simulation."""

    def __init__(self, setup: Setup, device: SimulatedDevice) -> None:
        self.setup, self.device = setup, device
        self.batcher = Batcher(setup.latency_us, setup.ack_within_us)
        model = CostModel(device.tariff)
        nodes = thermal_nodes(device.profile) if device.heat is not None else ()
        limit = HeatLimit(setup.max_celsius, nodes, model)
        self.policy = Running(setup.policy, setup.settings, model, heat=limit)
        self.placer = Placer(setup.calibrated, setup.latency_us, DEFAULT)
        self.placer.prices = PlacementPrices(
            device.tariff,
            device.dials[0].max_hz,
            self.policy,
            lambda: self._observation(device.at_us),
        )
        self.share = GpuShare(setup.gpu_share)
        self.placer.keeps_off = lambda: self.share.away
        self.placer.shares = setup.gpu_load is not None and setup.gpu_share < 1.0
        self._looked_us = -float(GPU_LOOK_US)
        self._random = random.Random(setup.seed)
        self._poisson = np.random.default_rng(setup.seed)
        self._waiting: deque[tuple[float, float, float]] = deque()
        self._latency: list[tuple[float, float, float]] = []
        self._reasons: dict[str, tuple[int, str]] = {}
        self._rows = self._arrived = self._raced = 0.0
        self._beats = self._held_back = 0
        self._cut = False
        self._work = setup.work
        self._unraced_us: float | None = None
        self._unsent_bytes = self._own_us = 0.0

    def run(self) -> SimulationOutcome:
        """Simulate `seconds`. A race that starts before the end is completed."""
        d, end_us, ingested_us = self.device, 1e6 * self.setup.seconds, 0.0
        per_message_us = 1e6 / self.setup.work.messages_per_s
        while d.at_us < end_us and not d.is_off:
            first = ingested_us + self._random.expovariate(1.0) * per_message_us
            due_us = self._due_us()
            if self._cut or first <= d.at_us:
                oldest = ingested_us
            elif due_us < min(first, end_us):
                oldest = max(due_us, d.at_us)
                self._sleep(oldest)
            elif first < end_us:
                oldest = first
                self._sleep(first)
            else:
                break
            at, race = self._next_wakeup(oldest, d.at_us)
            if at >= end_us:
                break
            if at > d.at_us:
                d.rest(at)
                d.wake()
            self._arrive(first, d.at_us)
            ingested_us = d.at_us
            self._beat(oldest, race or d.at_us >= due_us)
        if not d.is_off:
            d.idle(end_us)
        return self._outcome()

    def _sleep(self, until_us: float) -> None:
        """Idle until a timer or a message wakes a core. Does nothing if that time has passed."""
        if until_us > self.device.at_us:
            self.device.idle(until_us)
            self.device.wake()

    def _due_us(self) -> float:
        """The latest start of a race over the rows that are committed but not raced."""
        if self._unraced_us is None:
            return math.inf
        return float(self.batcher.race_by(int(self._unraced_us)))

    def _next_wakeup(self, oldest_us: float, now_us: float) -> tuple[float, bool]:
        """The time of the batcher's next wakeup, and whether that wakeup races."""
        unraced = None if self._unraced_us is None else int(self._unraced_us)
        wake = self.batcher.wake(int(oldest_us), int(now_us), unraced)
        return max(float(wake.at_us), now_us), wake.race

    def _arrive(self, first_us: float, until_us: float) -> None:
        """Add the rows of all messages from the first one since the last ingest to `until_us`."""
        work = self.setup.work
        if until_us < first_us:
            return
        more = self._poisson.poisson((until_us - first_us) * work.messages_per_s / 1e6)
        rows = (1 + more) * work.rows_per_s / work.messages_per_s
        self._waiting.append((first_us, until_us, rows))
        self._rows += rows
        self._arrived += rows

    def _beat(self, oldest_us: float, race: bool) -> None:
        d, cost = self.device, self._work.cost
        if not race:
            self._unraced_us = oldest_us if self._unraced_us is None else self._unraced_us
            self._cut = False
            decision = self._count_reason(self.policy.commit(self._observation(oldest_us)))
            d.apply(decision)
            d.race(RaceCost(cost.commit_cycles, 0.0), 0)
            d.beside(cost.beside_cycles)
            if decision.clocks:
                after = self.policy.idle(self._observation(d.at_us))
                d.apply(after)
                self._upload(after)
            self.batcher.committed(COMMIT_US)
            return
        waiting = self._rows
        decision = self._count_reason(self.policy.race(self._observation(oldest_us)))
        d.apply(decision)
        admitted = min(decision.admit_share * waiting, decision.units_max)
        most = float(self.batcher.rows_max())
        rows = admitted if admitted <= most + self.batcher.rows_over() else most
        self._held_back += decision.admit_share < 1.0
        if rows >= HELD_ROWS_MIN or decision.admit_share >= 1.0:
            fill = min(1.0, waiting * self.setup.work.row_bytes / 2 / BUFFER_BYTES)
            if self.setup.gpu_load is not None:
                d.gpu_of_others(self.setup.gpu_load.at(d.at_us))
            us = d.race(cost, rows, self._work.device)
            d.beside(cost.beside_cycles)
            self._beats += 1
            self._seal(rows, d.at_us + COMMIT_US)
            ingest_us = int(us * self.setup.work.ingest_share / 2)
            self.batcher.learn(BeatCosts(int(rows), ingest_us, int(us) - ingest_us, fill))
            self.batcher.committed(COMMIT_US)
            self._place(int(rows))
            self._unraced_us = oldest_us if rows < admitted else None
        self._cut = self._rows >= HELD_ROWS_MIN
        after = self._count_reason(self.policy.idle(self._observation(d.at_us)))
        d.apply(after)
        self._upload(after)
        hold_us = max(decision.not_before_us, after.not_before_us)
        self.batcher.steer(after.wait_share, after.race_us, hold_us)

    def _count_reason(self, decision: Decision) -> Decision:
        """Count the decision's reason.

        Reasons that differ in numbers only share a count; the latest text stays.
        """
        kind = FIGURES.sub("#", decision.reason)
        self._reasons[kind] = self._reasons.get(kind, (0, ""))[0] + 1, decision.reason
        return decision

    def _observation(self, oldest_us: float) -> Observation:
        s, d, b = self.setup, self.device, self.batcher
        work = Work(
            self._rows, s.work.rows_per_s, {self._work.device: self._work.cost}, s.latency_us,
            COMMIT_US + b.margin_us, s.work.output_bytes_per_s, s.upload_within_us,
            b.period_us_max(), b.commit_every_us(),
        )  # fmt: skip
        battery = None if s.battery_j is None else Battery(max(0.0, s.battery_j - d.joules))
        return Observation(
            int(d.at_us), work, int(oldest_us) + s.latency_us - COMMIT_US, d.joules,
            Provenance.SIMULATED, d.dials, 0.0, battery, s.day_us + int(d.at_us),
            2 * d.write_us, d.write_j, celsius=None if d.heat is None else d.heat.celsius,
            trip_celsius=d.trip_celsius,
        )  # fmt: skip

    def _seal(self, rows: float, sealed_us: float) -> None:
        """Record the latency of the oldest `rows` waiting rows, sealed at `sealed_us`."""
        self._raced += rows
        self._rows -= rows
        while rows > 1e-9 and self._waiting:
            since, until, count = self._waiting.popleft()
            if count > rows + 1e-9:
                cut = since + (until - since) * rows / count
                self._waiting.appendleft((cut, until, count - rows))
                until, count = cut, rows
            self._latency.append((sealed_us - until, sealed_us - since, count))
            rows -= count
        if not self._waiting:
            self._rows = 0.0

    def _look_at_gpu(self) -> None:
        """What the daemon reads after a beat: the GPU's whole load, others' and edged's own."""
        d, load = self.device, self.setup.gpu_load
        if load is None or d.at_us - self._looked_us < GPU_LOOK_US:
            return
        elapsed_us = d.at_us - max(0.0, self._looked_us)
        own = (d.gpu_own_us - self._own_us) / max(1.0, elapsed_us)
        self._looked_us, self._own_us = d.at_us, d.gpu_own_us
        self.share.look(int(d.at_us), min(1.0, load.at(d.at_us) + own), d.gpu_own_us)

    def _place(self, rows: int) -> None:
        self._look_at_gpu()
        window = self.setup.work.window
        kernel = self.placer.beat(rows, window) if window else None
        self.batcher.reserve_us = self.placer.reserve_us
        if kernel is not None:
            self._work = self.setup.kernels.get(kernel, self.setup.work)

    def _upload(self, decision: Decision) -> None:
        """Ship the pages sealed since the last upload, if the decision allows an upload."""
        radio = self.device.tariff.radio
        sealed = self._raced / max(self.setup.work.rows_per_s, 1e-9)
        total = sealed * self.setup.work.output_bytes_per_s
        if decision.upload and total > self._unsent_bytes:
            self.device.extra(radio.joules + radio.joules_per_byte * (total - self._unsent_bytes))
            self._unsent_bytes = total

    def _outcome(self) -> SimulationOutcome:
        d, heat = self.device, self.device.heat
        ranked = sorted(self._reasons.values(), key=lambda reason: -reason[0])
        latency, late = percentiles(self._latency, self.setup.latency_us)
        return SimulationOutcome(
            d.at_us / 1e6, d.joules, d.idle_watts, self._arrived, self._raced, self._beats,
            d.wakes, d.busy_us / d.at_us, self._rows, self._held_back, latency, late,
            dict(sorted(d.clocks_us.items())), d.states_us, self.placer.kernel, ranked[:5],
            self.policy.policy.forecast(self._observation(d.at_us)), d.gpu_clocks_us, d.gpu_wakes,
            self.share.moves,
            None if heat is None else heat.celsius, None if heat is None else heat.celsius_max,
            d.is_off, 0.0 if heat is None else heat.throttled_us / d.at_us,
            self.policy.heat.state.held_us / d.at_us, self.policy.heat.state.changes,
        )  # fmt: skip


def percentiles(
    spans: list[tuple[float, float, float]], latency_us: int
) -> tuple[dict[str, float], float]:
    """Latency percentiles (p50, p95, p99, max; ms), and the share of rows above `latency_us`.

    A span is (least latency, largest latency, rows) in µs; its rows are spread evenly over it.
    """
    if not spans:
        return {"p50": 0.0, "p95": 0.0, "p99": 0.0, "max": 0.0}, 0.0
    low, high, rows = np.array(spans, np.float64).T
    width = np.maximum(high - low, 1e-9)
    total = rows.sum()

    def below(x: float) -> float:
        return float((rows * np.clip((x - low) / width, 0.0, 1.0)).sum() / total)

    found = {}
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        a, b = float(low.min()), float(high.max())
        for _ in range(40):
            middle = (a + b) / 2
            a, b = (middle, b) if below(middle) < share else (a, middle)
        found[name] = round(b / 1e3, 3)
    found["max"] = round(float(high.max()) / 1e3, 3)
    return found, 1.0 - below(float(latency_us))
