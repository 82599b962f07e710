"""The arms of `edged bench energy`: the variants that run on the simulated boards.

These assumptions were fixed before the first comparison with a published figure:

ecoJoin        the authors' program (`energy_ecojoin`) with their batches and clocks. Figure 4's
               AB+FS is the same arm; AB leaves clocks to the kernel's governor; FB has batches of
               1024 tuples
edged          the join `chain` with the daemon's batcher, a tolerance of 1 s and the policy
               `race_to_idle`. 1 s is the paper's trade-off: 10 k tuples at 10 k tuples/s. As in the
               paper's programs, tuples lie in memory and results are discarded
edged daemon   edged, plus decoding, log, commit and pages (`edged.simulate.work`). The paper has no
               counterpart
nested loop    edged's batches and clocks
Handshake      its workers poll their neighbours (Teubner and Mueller, SIGMOD 2011), so all cores
               are busy at the highest clock at every rate
HELLS, ecoJoin GPU    intervals (`energy_gpu`); `watts` is their middle
Figure 5       ecoJoin with clocks left to the kernel's governor: the published 4.93 W exceed the
               board's power at the 204 MHz of the authors' settings

Every arm uses one thread for each core, on a board whose highest clock is the paper's 1.428 GHz.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

import governors.profile_reader
from edged.bench import energy_ecojoin, energy_gpu
from edged.bench.energy_ecojoin import BACKLOG_MAX
from edged.bench.energy_memory import chain_ns
from edged.bench.energy_published import WINDOW_S
from edged.bench.energy_service import Service
from edged.job.plan import JobPlan, parse_job
from edged.simulate.bounds import SYSTEM_BYTES, RateBounds, find_bounds
from edged.simulate.device import SimulatedDevice
from edged.simulate.engine import Engine, Setup
from edged.simulate.work import STATE_BYTES, ArrivalLoad, JobWork, job_work
from governors.policies.base import Act, ClockSetting, Decision
from governors.profile import BoardProfile
from governors.work import RaceCost

GPU_VARIANTS = ("HELLS", "ecoJoin GPU")
ECOJOIN_VARIANTS = ("ecoJoin", "AB+FS", "AB", "FB")
STREAMS = 2
SECONDS = 120.0
"""Simulated time of a run, as in the paper."""
LATENCY_US = 1_000_000
TOP_HZ = 1_428_000_000
RACES_MAX = 10_000
"""Races of a run with fixed batches, enough for its steady state."""
ROW_BYTES = 16
SENDS_PER_S = 20.0
UPLOAD_WITHIN_US = 60_000_000


@dataclass(frozen=True)
class Run:
    """The result of one variant at one rate or batch size."""

    watts: float | None
    """Mean power of the whole input; None if the variant does not keep up."""
    note: str = ""
    busy: float = 0.0
    race_ms: float = 0.0
    """Time of a race. The paper reports this as latency; it excludes the filling of the batch."""
    latency_ms: float = 0.0
    """Longest latency, including the filling of the batch."""
    wakes_per_s: float = 0.0
    interval: tuple[float, float] | None = None
    """Least and most W, for a variant without a calibrated model."""


def paper_nano() -> BoardProfile:
    """The Nano's profile, limited to the clocks of the paper's system."""
    board = governors.profile_reader.load("jetson-nano")
    clusters = tuple(
        replace(c, opps=tuple(o for o in c.opps if o.hz <= TOP_HZ)) for c in board.clusters
    )
    top_khz = TOP_HZ // 1000
    modes = tuple(
        msgspec.structs.replace(m, cpu_max_khz=min(m.cpu_max_khz, top_khz)) for m in board.modes
    )
    return replace(board, clusters=clusters, modes=modes)


def window(rate: float) -> int:
    """Tuples a side of the paper's window at a rate of each stream."""
    return max(1, round(WINDOW_S * rate))


def join_work(cost: RaceCost, rate: float, row_bytes: float = 0.0) -> JobWork:
    """The work of a join without a daemon: its tuples lie in memory."""
    rows = STREAMS * rate
    state = rows * WINDOW_S * (ROW_BYTES + STATE_BYTES)
    return JobWork(cost, rows, min(rows, 1e6), window(rate), state, row_bytes, 0.0, 0.0, ())


def setup(work: JobWork, board: BoardProfile, policy: str) -> Setup:
    """The simulation of `work` on a board under a policy."""
    memory = board.memory.bytes or 1 << 32
    return Setup(work, LATENCY_US, LATENCY_US, memory, policy, seconds=SECONDS)


def batched(made: Setup, device: SimulatedDevice) -> Run:
    """Simulate the daemon's batcher with the policy of the setup."""
    o = Engine(made, device).run()
    if o.waiting > BACKLOG_MAX * made.work.rows_per_s * made.latency_us / 1e6:
        return Run(None, "does not keep up", o.busy_share)
    race_ms = 1e3 * o.busy_share * o.seconds / max(1, o.beats)
    return Run(o.joules / o.seconds, "", o.busy_share, race_ms, o.latency_ms["max"],
               o.wakes / o.seconds)  # fmt: skip


def fixed_batches(
    device: SimulatedDevice, cost: RaceCost, rate: float, batch: int, hz: int = 0
) -> Run:
    """Simulate one race for each batch of one stream.

    `hz` pins the clock; 0 leaves it to the kernel's governor.
    """
    period_us = 1e6 * batch / rate / STREAMS
    races = max(20, min(RACES_MAX, round(SECONDS * 1e6 / period_us)))
    if hz:
        device.apply(Decision("", {device.dials[0].name: ClockSetting(Act.PIN, hz)}))
    began_us, longest = device.at_us, 0.0
    for i in range(races):
        ready_us = began_us + (i + 1) * period_us
        device.nap(ready_us)
        device.race(cost, batch)
        longest = max(longest, device.at_us - ready_us)
    seconds = (device.at_us - began_us) / 1e6
    behind = (device.at_us - began_us) / period_us - races
    busy = device.busy_us / device.at_us
    if behind > BACKLOG_MAX + 0.01 * races:
        return Run(None, "does not keep up", busy)
    waits_us = period_us * STREAMS
    return Run(device.joules / seconds, "", busy, device.busy_us / races / 1e3,
               (waits_us + longest) / 1e3, device.wakes / seconds)  # fmt: skip


class Nano:
    """The paper's variants on the simulated Nano."""

    def __init__(self, service: Service, cycles: float = 1.0, waits: float = 1.0) -> None:
        """`cycles` and `waits` scale the cycles and the memory stalls of ecoJoin's tuples, for the
        sensitivity analysis."""
        self.service, self.board = service, paper_nano()
        self._cycles, self._waits = cycles, waits
        self.plan = daemon_plan()
        self._bounds: dict[str, RateBounds] = {}

    def run(self, variant: str, rate: int) -> Run:
        """A variant of Figure 3 or 4 at a rate of each stream."""
        if variant in GPU_VARIANTS:
            return self._gpu(variant, rate)
        if rate > self.bounds(variant).rows_per_s["cpu"]:
            return Run(None, "does not keep up: cpu", 1.0)
        if variant == "Handshake":
            return Run(self.full_power(), "all cores poll", 1.0)
        if variant in ECOJOIN_VARIANTS:
            batch = min(rate, energy_ecojoin.FIXED_BATCH) if variant == "FB" else rate
            hz = energy_ecojoin.race_hz(rate) if variant in ("ecoJoin", "AB+FS") else 0
            return self.ecojoin(rate, batch, hz)
        made = setup(self._work(variant, rate), self.board, "race_to_idle")
        return batched(made, SimulatedDevice(self.board))

    def full_power(self) -> float:
        """W with all cores busy at the highest clock, Figure 4's upper line."""
        device = SimulatedDevice(self.board)
        return device.tariff.race_watts("cpu", TOP_HZ, float(device.cores))

    def ecojoin(self, rate: int, batch: int, hz: int = 0) -> Run:
        """The authors' program with `batch` tuples of each stream in a batch.

        `hz` pins the clock of races; 0 leaves it to the kernel's governor.
        """
        device = SimulatedDevice(self.board)
        rounds = energy_ecojoin.Rounds(device, self._ecojoin_cost(rate), rate, batch, hz)
        keeps_up = rounds.run()
        busy = rounds.race_us / device.at_us
        if not keeps_up:
            return Run(None, "does not keep up", busy)
        seconds = device.at_us / 1e6
        latency_ms = (rounds.period_us + rounds.latest_us) / 1e3
        return Run(device.joules / seconds, "", busy, rounds.race_us / rounds.count / 1e3,
                   latency_ms, device.wakes / seconds)  # fmt: skip

    def bounds(self, variant: str) -> RateBounds:
        """The highest rate that each resource allows.

        A race of edged's arms must fit half the tolerance. Rounds of ecoJoin, and Handshake's races
        of 1024 tuples, may follow each other without a pause.
        """
        if variant not in self._bounds:
            self._bounds[variant] = self._find_bounds(variant)
        return self._bounds[variant]

    def _find_bounds(self, variant: str) -> RateBounds:
        if variant in ECOJOIN_VARIANTS:
            batch = energy_ecojoin.FIXED_BATCH if variant == "FB" else None
            return RateBounds({
                "cpu": largest(lambda rate: self._rounds_fit(rate, batch)),
                "memory": largest(lambda rate: self._table_fits(window(rate))),
            })  # fmt: skip
        found = find_bounds(
            lambda rate: setup(
                self._work(variant, rate, float(ROW_BYTES)), self.board, "hands_off"
            ),
            SimulatedDevice(self.board),
        )
        if variant == "Handshake":
            fits = largest(lambda rate: self._cost(variant, rate).us(1024, TOP_HZ) * 2 * rate
                           <= 1e6 * 1024)  # fmt: skip
            found = RateBounds({**found.rows_per_s, "cpu": fits})
        return found

    def _rounds_fit(self, rate: float, batch: int | None) -> bool:
        tuples = rate if batch is None else float(batch)
        return self._ecojoin_cost(rate).us(2 * tuples, TOP_HZ) <= 1e6 * tuples / rate

    def _table_fits(self, tuples: int) -> bool:
        available = (self.board.memory.bytes or 0) - SYSTEM_BYTES
        return energy_ecojoin.table_bytes(tuples) <= available

    def _ecojoin_cost(self, rate: float) -> RaceCost:
        cycles = self._cycles * self.service.row_cycles("bucket", self.board)
        cost = energy_ecojoin.cost(cycles, rate, window(rate), self.board.core_count)
        return replace(cost, stall_us_per_unit=self._waits * cost.stall_us_per_unit)

    def _gpu(self, variant: str, rate: int) -> Run:
        share = energy_gpu.busy(variant, rate, window(rate))
        if share.low > 1:
            return Run(None, "does not keep up: gpu", 1.0)
        found = energy_gpu.watts(SimulatedDevice(self.board), share)
        note = "an interval: no public figure calibrates the GPU; `watts` is its middle"
        return Run(found.middle, note, min(1.0, share.middle), interval=(found.low, found.high))

    def _work(self, variant: str, rate: float, row_bytes: float = 0.0) -> JobWork:
        if variant == "edged daemon":
            cores = self.board.core_count
            load = ArrivalLoad(rate, SENDS_PER_S, window(rate) / 2**31)
            work = job_work(self.plan, self.board, load, cores=cores)
            waits_us = chain_ns(window(rate)) / 1e3 / cores
            return replace(work, cost=replace(work.cost, stall_us_per_unit=waits_us))
        return join_work(self._cost(variant, rate), rate, row_bytes)

    def _cost(self, variant: str, rate: float) -> RaceCost:
        member = {"edged": "chain", "nested loop": "nested_loop", "Handshake": "handshake"}
        return self.service.cost(member[variant], self.board, window(rate))


def largest(holds: Callable[[float], bool]) -> float:
    """The largest rate between 1 and 1e9 for which `holds` is true."""
    low, high = 1.0, 1e9
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


ORIN_ARMS = ("per tuple", "batched", "batched, clocks", "batched, clocks, sleep, uploads")


class Orin:
    """Four arms of the whole daemon on the simulated Orin Nano."""

    def __init__(self) -> None:
        self.board = governors.profile_reader.load("orin-nano")
        self.plan = daemon_plan()

    def run(self, arm: str, rate: float) -> Run:
        """An arm at a rate of each stream."""
        if arm == "per tuple":
            return self._per_tuple(rate)
        full = arm.endswith("uploads")
        device = SimulatedDevice(self.board, memory_cap=full)
        policy = "hands_off" if arm == "batched" else "race_to_idle"
        made = setup(self._work(rate), self.board, policy)
        if full:
            made = replace(made, settings={"sleep": True}, upload_within_us=UPLOAD_WITHIN_US)
        return batched(made, device)

    def bounds(self) -> RateBounds:
        """The highest rate that each resource allows in the batched arms."""
        return find_bounds(
            lambda rate: setup(self._work(rate), self.board, "hands_off"),
            SimulatedDevice(self.board),
        )

    def _work(self, rate: float) -> JobWork:
        return job_work(self.plan, self.board, ArrivalLoad(rate, SENDS_PER_S, window(rate) / 2**31))

    def _per_tuple(self, rate: float) -> Run:
        """One race for each tuple, each tuple in a message of its own.

        Counts the daemon's cost of a message and of a row, without a beat's fixed part, commit and
        pages.
        """
        load = ArrivalLoad(rate, rate, window(rate) / 2**31)
        work = job_work(self.plan, self.board, load, cores=1).cost
        each = RaceCost(0.0, work.cycles_per_unit, 0.0, work.stall_us_per_unit)
        return fixed_batches(SimulatedDevice(self.board), each, rate, 1)


def daemon_plan() -> JobPlan:
    """The paper's two streams and their join, as a job."""
    stream = {
        "source": {"type": "tcp", "listen": "127.0.0.1:7400"},
        "columns": {"key": "int32", "value": "float32", "ts": "timestamp"},
        "time": "ts",
    }
    bound = f"{WINDOW_S}s"
    return parse_job(
        {
            "name": "paper",
            "promises": {"latency": f"{LATENCY_US // 1000}ms", "memory": "3GiB"},
            "streams": {"r": dict(stream), "s": dict(stream)},
            "operators": {
                "j": {"type": "interval_join", "left": "r", "right": "s", "on": ["key"],
                      "before": bound, "after": bound}
            },
            "sinks": {"p": {"type": "pages", "input": "j", "stream": "p", "version": 1}},
        }
    )  # fmt: skip
