"""Workloads of `edged calibrate`: beats of a join, on this machine or on a simulated board.

A bench has a clock, runs beats and rests.

    RealBench           runs the kernel on this machine's CPU or GPU, in real time
    SimulatedBench      charges a simulated board with the modelled cost of a beat, in virtual time
                        (law and frozen figures of `edged.simulate.work`)
    SimulatedGpuBench   the same for the board's GPU (`edged.simulate.gpu`), whose figures come from
                        data sheets

`times_from` is SIMULATED for a simulated board, and for kernels in numba's CUDA simulator.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Protocol

from edged.calibration.join_data import MATCH_RATE, BeatFeed, draw
from edged.calibration.join_measure import MemberDriver
from edged.errors import ConfigError
from edged.joins.base import WindowJoin
from edged.operators.interval_join import IntervalJoinPlan
from edged.simulate import gpu as on_gpu
from edged.simulate.work import CORES, HOST_WIDTH, stall_ns
from governors.energy import Provenance
from governors.profile import BoardProfile
from governors.simulated.board import BoardWork, SimulatedBoard
from governors.simulated.clocks import look
from kernels.cuda import gpu

MODELLED = "chain"
"""The kernel of the CPU with a modelled service time."""


@dataclass(frozen=True, slots=True)
class Burst:
    """The times of several consecutive beats."""

    us: float
    """Time on the bench's clock."""
    cpu_us: float
    """CPU time of all threads."""


class ClockBench(Protocol):
    """A workload that runs beats of `units` tuples (both sides)."""

    kernel: str
    device: str
    """cpu or cuda."""
    units: int
    burst_us: float
    """Intended time of a burst without a pause."""
    times_from: Provenance

    def now_us(self) -> int:
        """Monotonic time (µs)."""

    def burst(self, beats: int) -> Burst:
        """Run `beats` consecutive beats."""

    def rest(self, us: float) -> None:
        """Idle for `us` µs."""

    def close(self) -> None:
        """Release threads and memory."""


class RealBench:
    """The kernel on this machine: full windows, uniform keys, one match a hundred tuples."""

    burst_us = 20_000.0

    def __init__(self, member: type[WindowJoin], window: int, units: int, threads: int) -> None:
        self.kernel, self.device, self.units = member.name, member.device, units
        simulator = member.device != "cpu" and gpu.SIMULATED
        self.times_from = Provenance.SIMULATED if simulator else Provenance.MEASURED
        feed = BeatFeed(draw(window, MATCH_RATE, "uniform", (units // 2,)), units // 2)
        self._driver = MemberDriver(member, feed, threads)

    def now_us(self) -> int:
        """The system's monotonic clock."""
        return time.monotonic_ns() // 1000

    def burst(self, beats: int) -> Burst:
        """Run `beats` beats. Preparing the records of the next period is not measured."""
        feed, spent_ns, cpu_ns = self._driver.feed, 0, 0
        for _ in range(beats):
            if not feed.ready():
                feed.turn()
            before, cpu_before = time.perf_counter_ns(), time.process_time_ns()
            self._driver.step()
            spent_ns += time.perf_counter_ns() - before
            cpu_ns += time.process_time_ns() - cpu_before
        least_ns = spent_ns if self.device == "cpu" else 0
        return Burst(spent_ns / 1e3, max(least_ns, cpu_ns) / 1e3)

    def rest(self, us: float) -> None:
        """Sleep for `us` µs."""
        time.sleep(max(0.0, us) / 1e6)

    def close(self) -> None:
        """Stop the worker threads."""
        self._driver.close()


class VirtualClock:
    """The virtual time of a simulated board (µs)."""

    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> int:
        """The current virtual time (µs)."""
        return self.now_us


class SimulatedBench:
    """Modelled beats of `chain`, served by a simulated board at the clocks in its tree.

    The board and the bench share `clock`.
    """

    kernel = MODELLED
    device = "cpu"
    times_from = Provenance.SIMULATED
    burst_us = 200_000.0

    def __init__(self, board: SimulatedBoard, clock: VirtualClock, window: int, units: int) -> None:
        self.units = units
        self._board, self._clock = board, clock
        cores = sum(look(board.profile, board.sysfs).online)
        self._beat = modelled_beat(board.profile, window, units, cores)

    def now_us(self) -> int:
        """Virtual time (µs)."""
        return self._clock.now_us

    def burst(self, beats: int) -> Burst:
        """Charge the board with `beats` beats, and advance time until it has served them."""
        one, began_us = self._beat, self._clock.now_us
        work = BoardWork(one.cycles * beats, one.memory_bytes * beats, one.cores, wakeups=1.0)
        self._board.advance(began_us, work)
        self._finish()
        us = self._clock.now_us - began_us
        return Burst(us, us * one.cores)

    def _finish(self) -> None:
        """Advance time until the board has no backlog."""
        while (backlog_us := max(self._board.backlog_us, self._board.gpu_backlog_us)) >= 1.0:
            self._clock.now_us += math.ceil(backlog_us)
            self._board.advance(self._clock.now_us)

    def rest(self, us: float) -> None:
        """Advance time by `us` µs."""
        self._clock.now_us += max(0, math.ceil(us))
        self._board.advance(self._clock.now_us)

    def close(self) -> None:
        """Do nothing: the bench owns no resources."""


class SimulatedGpuBench(SimulatedBench):
    """Modelled beats of a kernel on a simulated board's GPU.

    A core runs the launches, then waits for the GPU.
    """

    device = "cuda"

    def __init__(
        self, kernel: str, board: SimulatedBoard, clock: VirtualClock, window: int, units: int
    ) -> None:
        super().__init__(board, clock, window, units)
        self.kernel = kernel
        self._cost = on_gpu.cost(board.profile, kernel)

    def burst(self, beats: int) -> Burst:
        """Charge the board with `beats` beats, and advance time until it has served them."""
        cost, began_us = self._cost, self._clock.now_us
        if cost.host is not None:
            launches = BoardWork(beats * cost.host.cycles, 0.0, cost.host.cores, wakeups=1.0)
            self._board.advance(began_us, launches)
            self._finish()
        rows, top_hz = beats * self.units, self._board.profile.gpu_top_hz
        cycles = beats * cost.cycles + rows * cost.cycles_per_unit
        stall_us = beats * cost.stall_us + rows * cost.stall_us_per_unit
        asked = BoardWork(gpu_us=1e6 * cycles / top_hz, gpu_stall_us=stall_us, gpu_cores=cost.cores)
        self._board.advance(self._clock.now_us, asked)
        self._finish()
        us = self._clock.now_us - began_us
        return Burst(us, us)


def modelled_beat(board: BoardProfile, window: int, units: int, cores: int) -> BoardWork:
    """The work of one beat of the join for a simulated board.

    The memory stall does not depend on the CPU's clock. It is expressed as bytes at the board's
    specified peak bandwidth, the unit of a simulated board, so it grows as the memory clock falls.
    Raises ConfigError for a board whose cores have no cost model.
    """
    core = board.clusters[0].core.partition(" (")[0]
    if core not in CORES:
        raise ConfigError(
            f"board {board.name}: the simulator does not know cores {core!r};"
            f" it knows {', '.join(sorted(CORES))}"
        )
    scale = HOST_WIDTH / CORES[core]
    a_beat, a_row = IntervalJoinPlan.cycles or (0.0, 0.0)
    longest = scale * (a_beat + units * a_row / cores)
    total = scale * (a_beat + units * a_row)
    stall_us = units * stall_ns(board, window) / 1e3 / cores
    peak = board.memory.peak_gbytes_per_s or 0.0
    return BoardWork(total, stall_us * peak * 1e3, total / longest)
