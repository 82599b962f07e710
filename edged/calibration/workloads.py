"""What `edged calibrate` runs at each clock: beats of a join, on this machine or on a modelled one.

A bench knows the time, runs beats and rests.  `RealBench` runs the kernel itself, on the CPU or on
a GPU, on the wall's clock.  `SimulatedBench` charges a simulated board with what a beat is modelled
to take (the law and the figures of `edged.simulate.work`, which were measured once and frozen), in
virtual time; `SimulatedGpuBench` does so for its GPU (`edged.simulate.gpu`), which no kernel has
run on.  Where kernels ran in numba's CUDA simulator, `times_from` says so as well.
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
"""The kernel whose service time is known as a law."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Some beats in one go."""

    us: float
    """Of all of them, on the clock."""
    cpu_us: float
    """Of all threads."""


class ClockBench(Protocol):
    """Runs beats of `units` tuples (both sides)."""

    kernel: str
    device: str
    """cpu or cuda."""
    units: int
    burst_us: float
    """How long a burst without a pause should be."""
    times_from: Provenance

    def now_us(self) -> int:
        """Monotonic time."""

    def burst(self, beats: int) -> Burst:
        """Run so many beats, one after the other."""

    def rest(self, us: float) -> None:
        """Do nothing for so long."""

    def close(self) -> None:
        """Give up threads and memory."""


class RealBench:
    """The kernel itself, on windows that are full; uniform keys, one match a hundred tuples."""

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
        """Run them; while records of the next period are made, the clock stands."""
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
        """Sleep."""
        time.sleep(max(0.0, us) / 1e6)

    def close(self) -> None:
        """End the workers."""
        self._driver.close()


class VirtualClock:
    """The time of a simulated board."""

    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> int:
        """Now."""
        return self.now_us


class SimulatedBench:
    """Beats as they are modelled, served by a simulated board at the clocks that its tree allows.

    `board` and this bench share `clock`.
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
        """Virtual time."""
        return self._clock.now_us

    def burst(self, beats: int) -> Burst:
        """Charge the board with them, and let time pass until it is done."""
        one, began_us = self._beat, self._clock.now_us
        work = BoardWork(one.cycles * beats, one.memory_bytes * beats, one.cores, wakeups=1.0)
        self._board.advance(began_us, work)
        self._finish()
        us = self._clock.now_us - began_us
        return Burst(us, us * one.cores)

    def _finish(self) -> None:
        """Let time pass until nothing is left to do."""
        while (left_us := max(self._board.backlog_us, self._board.gpu_backlog_us)) >= 1.0:
            self._clock.now_us += math.ceil(left_us)
            self._board.advance(self._clock.now_us)

    def rest(self, us: float) -> None:
        """Let time pass."""
        self._clock.now_us += max(0, math.ceil(us))
        self._board.advance(self._clock.now_us)

    def close(self) -> None:
        """It holds nothing."""


class SimulatedGpuBench(SimulatedBench):
    """Beats of a kernel on a simulated board's GPU: the launches on a core, then the GPU's work,
    for which that core waits."""

    device = "cuda"

    def __init__(
        self, kernel: str, board: SimulatedBoard, clock: VirtualClock, window: int, units: int
    ) -> None:
        super().__init__(board, clock, window, units)
        self.kernel = kernel
        self._cost = on_gpu.cost(board.profile, kernel)

    def burst(self, beats: int) -> Burst:
        """Charge the board with them, and let time pass until it is done."""
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
    """What a beat of the join asks of a board.

    What it waits for memory is the same time at every CPU clock; as bytes at the specified peak,
    which is how a simulated board knows waiting, it stretches as the memory clock falls.
    """
    core = board.clusters[0].core.partition(" (")[0]
    if core not in CORES:
        raise ConfigError(
            f"board {board.name}: cores {core!r} have no law; there are {', '.join(sorted(CORES))}"
        )
    scale = HOST_WIDTH / CORES[core]
    a_beat, a_row = IntervalJoinPlan.cycles or (0.0, 0.0)
    longest = scale * (a_beat + units * a_row / cores)
    total = scale * (a_beat + units * a_row)
    stall_us = units * stall_ns(board, window) / 1e3 / cores
    peak = board.memory.peak_gbytes_per_s or 0.0
    return BoardWork(total, stall_us * peak * 1e3, total / longest)
