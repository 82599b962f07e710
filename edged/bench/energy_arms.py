"""The arms of `edged bench energy`: what runs on the simulated board, variant by variant.

Settled before anything was compared with a published figure:

ecoJoin        the bucket join, adaptive batches, race and idle clocks set; the paper does not
               publish its batch sizes or clocks, so that both arms batch up to a tolerance of 1 s,
               which is the batch that it calls a good trade-off (10 k tuples at 10 k tuples/s), and
               set the race clock by the same cost model
edged          the join `chain` with the daemon's batcher and the policy `race_to_idle`
edged daemon   the same with all that the daemon does besides: decode, log, commit, pages
               (`edged.simulate.work`); the paper's tuples lie in memory, its results go nowhere
nested loop    batches and clocks as ecoJoin's
Handshake      its workers poll their neighbours (Teubner and Mueller, SIGMOD 2011): all cores are
               busy at the highest clock, whatever arrives, as long as they keep up
HELLS, ecoJoin on the GPU    absent: no GPU measured their service times, and no public figure
               prices work on the Nano's GPU (its published sweep is flat, at an unknown load)
FB             a race a batch of 1024 tuples of one stream, the kernel's governor
AB, AB+FS      ecoJoin with the kernel's governor, and with the clocks set

All run with a thread a core, on a board that ends at the paper's 1.428 GHz.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import governors.profile
from edged.bench.energy_published import WINDOW_S
from edged.bench.energy_service import Service
from edged.job.plan import JobPlan, parse_job
from edged.simulate.bounds import Bounds, find_bounds
from edged.simulate.device import Device
from edged.simulate.engine import Engine, Setup
from edged.simulate.work import STATE_BYTES, JobWork, Load, job_work
from governors.policies.base import Act, Cost, Decision, Setting
from governors.profile import Profile

STREAMS = 2
SECONDS = 120.0
"""As long as the paper's runs."""
LATENCY_US = 1_000_000
TOP_HZ = 1_428_000_000
RACES_MAX = 20_000
"""Of a run of fixed batches: then it is in its steady state."""
ROW_BYTES = 16
BACKLOG_MAX = 3.0
"""Batches or tolerances that may wait at the end of a run that keeps up."""
SENDS_PER_S = 20.0
UPLOAD_WITHIN_US = 60_000_000


@dataclass(frozen=True)
class Run:
    """What a variant draws at one x."""

    watts: float | None
    """None: it does not keep up, or it has no figures."""
    note: str = ""
    busy: float = 0.0
    race_ms: float = 0.0
    """A race, which is the paper's latency: without waiting for the batch."""
    latency_ms: float = 0.0
    """Longest, waiting included."""
    wakes_per_s: float = 0.0
    idle_watts: float = 0.0


def paper_nano() -> Profile:
    """The Nano with the clocks that the paper's system offered."""
    board = governors.profile.load("jetson-nano")
    clusters = tuple(
        replace(c, opps=tuple(o for o in c.opps if o.hz <= TOP_HZ)) for c in board.clusters
    )
    modes = tuple(replace(m, cpu_max_khz=min(m.cpu_max_khz, TOP_HZ // 1000)) for m in board.modes)
    return replace(board, clusters=clusters, modes=modes)


def window(rate: float) -> int:
    """Tuples a side."""
    return max(1, round(WINDOW_S * rate))


def join_work(cost: Cost, rate: float, row_bytes: float = 0.0) -> JobWork:
    """A join alone, whose tuples lie in memory."""
    rows = STREAMS * rate
    state = rows * WINDOW_S * (ROW_BYTES + STATE_BYTES)
    return JobWork(cost, rows, min(rows, 1e6), window(rate), state, row_bytes, 0.0, 0.0, ())


def setup(work: JobWork, board: Profile, policy: str) -> Setup:
    """The engine's settings for a work."""
    memory = board.memory.bytes or 1 << 32
    return Setup(work, LATENCY_US, LATENCY_US, memory, policy, seconds=SECONDS)


def batched(made: Setup, device: Device) -> Run:
    """The daemon's batcher and a policy."""
    o = Engine(made, device).run()
    if o.waiting > BACKLOG_MAX * made.work.rows_per_s * made.latency_us / 1e6:
        return Run(None, "does not keep up", o.busy_share)
    race_ms = 1e3 * o.busy_share * o.seconds / max(1, o.beats)
    return Run(o.joules / o.seconds, "", o.busy_share, race_ms, o.latency_ms["max"],
               o.wakes / o.seconds, o.idle_watts)  # fmt: skip


def fixed_batches(device: Device, cost: Cost, rate: float, batch: int, hz: int = 0) -> Run:
    """A race as soon as a batch of one stream is there; at a pinned clock, or left alone (0)."""
    period_us = 1e6 * batch / rate / STREAMS
    races = max(20, min(RACES_MAX, round(SECONDS * 1e6 / period_us)))
    if hz:
        device.apply(Decision("", {device.dials[0].name: Setting(Act.PIN, hz)}))
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
               (waits_us + longest) / 1e3, device.wakes / seconds, device.idle_watts)  # fmt: skip


class Nano:
    """The paper's variants on the simulated Nano."""

    def __init__(self, service: Service) -> None:
        self.service, self.board = service, paper_nano()
        self.plan = daemon_plan()
        self._bounds: dict[str, Bounds] = {}

    def run(self, variant: str, rate: float) -> Run:
        """A variant of Figure 3 or 4 at a rate of each stream."""
        if variant in ("HELLS", "ecoJoin GPU"):
            return Run(None, "absent: no service times, and no public figure of the GPU's watts")
        if rate > self.bounds(variant).rows_per_s["cpu"]:
            return Run(None, "does not keep up: cpu", 1.0)
        device = Device(self.board)
        if variant == "Handshake":
            watts = device.tariff.race_watts("cpu", TOP_HZ, float(device.cores))
            return Run(watts, "all cores poll", 1.0, idle_watts=device.idle_watts)
        if variant == "FB":
            return fixed_batches(device, self._cost(variant, rate), rate, 1024)
        policy = "hands_off" if variant == "AB" else "race_to_idle"
        return batched(setup(self._work(variant, rate), self.board, policy), device)

    def bounds(self, variant: str) -> Bounds:
        """What each resource would allow: a race within half the tolerance (fixed batches and
        Handshake: races of 1024 tuples that follow one another)."""
        if variant not in self._bounds:
            found = find_bounds(
                lambda rate: setup(
                    self._work(variant, rate, float(ROW_BYTES)), self.board, "hands_off"
                ),
                Device(self.board),
            )
            if variant in ("FB", "Handshake"):
                found = Bounds({**found.rows_per_s, "cpu": self._busy_bound(variant)})
            self._bounds[variant] = found
        return self._bounds[variant]

    def fixed(self, rate: float, batch: int) -> Run:
        """Figure 5: ecoJoin in batches of so many tuples."""
        return fixed_batches(Device(self.board), self._cost("ecoJoin", rate), rate, batch)

    def _busy_bound(self, variant: str) -> float:
        """The rate at which races of 1024 tuples follow one another."""
        low, high = 1.0, 1e9
        for _ in range(60):
            rate = (low * high) ** 0.5
            us = self._cost(variant, rate).us(1024, TOP_HZ)
            low, high = (rate, high) if us <= 1e6 * 1024 / rate / STREAMS else (low, rate)
        return low

    def _work(self, variant: str, rate: float, row_bytes: float = 0.0) -> JobWork:
        if variant == "edged daemon":
            load = Load(rate, SENDS_PER_S, window(rate) / 2**31)
            return job_work(self.plan, self.board, load, cores=self.board.core_count)
        return join_work(self._cost(variant, rate), rate, row_bytes)

    def _cost(self, variant: str, rate: float) -> Cost:
        member = {"edged": "chain", "nested loop": "nested_loop", "Handshake": "handshake"}
        return self.service.cost(member.get(variant, "bucket"), self.board, window(rate))


ORIN_ARMS = ("per tuple", "batched", "batched, clocks", "batched, clocks, sleep, uploads")


class Orin:
    """Four arms of the whole daemon on the simulated Orin Nano."""

    def __init__(self) -> None:
        self.board = governors.profile.load("orin-nano")
        self.plan = daemon_plan()

    def run(self, arm: str, rate: float) -> Run:
        """An arm at a rate of each stream."""
        if arm == "per tuple":
            return self._per_tuple(rate)
        full = arm.endswith("uploads")
        device = Device(self.board, memory_cap=full)
        policy = "hands_off" if arm == "batched" else "race_to_idle"
        made = setup(self._work(rate), self.board, policy)
        if full:
            made = replace(made, settings={"sleep": True}, upload_within_us=UPLOAD_WITHIN_US)
        return batched(made, device)

    def bounds(self) -> Bounds:
        """Of the batched arms."""
        return find_bounds(
            lambda rate: setup(self._work(rate), self.board, "hands_off"), Device(self.board)
        )

    def _work(self, rate: float) -> JobWork:
        return job_work(self.plan, self.board, Load(rate, SENDS_PER_S, window(rate) / 2**31))

    def _per_tuple(self, rate: float) -> Run:
        """A race a tuple, which comes as a message: what the daemon takes for one and for its row,
        without a beat's fixed part, commit and pages."""
        load = Load(rate, rate, window(rate) / 2**31)
        work = job_work(self.plan, self.board, load, cores=1).cost
        each = Cost(0.0, work.cycles_per_unit, 0.0, work.stall_us_per_unit)
        return fixed_batches(Device(self.board), each, rate, 1)


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
