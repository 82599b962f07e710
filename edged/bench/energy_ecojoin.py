"""Model of the authors' ecoJoin program on the simulated Nano.

Source: TU-Berlin-DIMA/ecoJoin at 5bca989. No assumption comes from a figure of the paper.

batches   one second of each stream, R and S together (`-b RATE`); FB uses 1024 tuples (settings
          files `energy_all_variants/{var,cap}_batch_size`)
clocks    set by hand for each rate (`-f 1-N`, RACE_KHZ), 102 MHz between races
threads   4 OpenMP threads, which sleep between batches (`std::this_thread::sleep_for`). After a
          parallel region libgomp's workers spin 300 000 times before they sleep (GCC's manual,
          GOMP_SPINCOUNT), at the clock between races
table     a directory of 16 bytes for each bucket; buckets of 64 tuples of 24 bytes; the bucket
          count of `init`, with which a window leaves 16 to 31 tuples in a bucket
build     reads the directory, then writes the slot; the next tuple's directory read overlaps
probe     reads the directory, then the bucket, in dependent reads, then scans the bucket
cleanup   scans all buckets once a share `-c` of them (about 93 %) holds a stale tuple. With batches
          of one second that is every second batch, so a table holds 1.5 s of stale tuples on
          average. In every batch, one thread first counts set bits byte by byte (Boost 1.65)

Core cycles are those of edged's `bucket` join, measured where its tables fit the caches
(`energy_service`). The algorithm is the same, and there it is as fast as the authors' C++. The
memory stalls are counted here and priced by `energy_memory`.
"""

from __future__ import annotations

from edged.bench.energy_memory import L2_BYTES, LINE_BYTES, TWO_AT_ONCE, read_ns, stream_ns
from edged.simulate.device import SimulatedDevice
from governors.policies.base import Act, ClockSetting, Decision
from governors.work import RaceCost

RACE_KHZ = {
    16_384: 204_000, 32_768: 403_200, 65_536: 518_400, 131_072: 614_400, 262_144: 825_600,
    1_048_576: 1_428_000,
}  # fmt: skip
"""CPU clocks of the authors' settings, by the highest rate of each stream that uses the clock."""
IDLE_HZ = 102_000_000
BUCKET, ENTRY_BYTES, DIRECTORY_BYTES, LOAD = 64, 24, 16, 0.2
INPUT_BYTES = 28
"""Input bytes of a tuple: key, value and time to build, key and time to probe."""
STALE_S = 1.5
COUNT_CYCLES = 2.0
"""Cycles to count the set bits of one byte: two loads, one per cycle."""
SPIN_CYCLES = 2.0 * 300_000
"""Cycles that a libgomp worker spins. One iteration has six instructions, two of them branches,
and takes two cycles on an A57."""
WORKERS = 3
"""Threads that spin after a parallel region: all except the main thread."""
FIXED_BATCH = 1024
SECONDS, RACES_MAX = 120.0, 10_000
BACKLOG_MAX = 3.0
"""Largest backlog, in batches, at the end of a run that keeps up."""


def race_hz(rate: float) -> int:
    """The CPU clock of the authors' settings at a rate of each stream."""
    return 1000 * next((khz for most, khz in RACE_KHZ.items() if rate <= most), 1_428_000)


def buckets(window: int) -> int:
    """Buckets that `init` allocates: a power of two, doubled if it is below five times the need."""
    need = max(1, window // BUCKET)
    made = 1 << (need - 1).bit_length()
    return 2 * made if made < need / LOAD else made


def table_bytes(window: int) -> int:
    """Bytes of both directories and all buckets, which `init` allocates at the start."""
    return 2 * buckets(window) * (BUCKET * ENTRY_BYTES + DIRECTORY_BYTES)


def wait_ns(rate: float, window: int) -> float:
    """Memory stall of one tuple on its thread, in ns."""
    made = buckets(window)
    directory, table = float(made * DIRECTORY_BYTES), float(made * BUCKET * ENTRY_BYTES)
    held_bytes = ENTRY_BYTES * (window + STALE_S * rate) / made
    one, two = read_ns(directory), read_ns(table)
    build = TWO_AT_ONCE * (one + two) / 2
    probe = one + two + stream_ns(max(0.0, held_bytes - LINE_BYTES / 2), table)
    swept_bytes = made * (held_bytes + DIRECTORY_BYTES) / (2 * rate)
    return build + probe + stream_ns(swept_bytes, table) + stream_ns(INPUT_BYTES, table + L2_BYTES)


def cost(row_cycles: float, rate: float, window: int, threads: int) -> RaceCost:
    """The cost of a race over a batch of both streams; its unit is a tuple.

    `row_cycles` are the cycles of one core for one tuple.
    """
    counting = 2 * buckets(window) / 8 * COUNT_CYCLES
    stall_us = wait_ns(rate, window) / 1e3 / threads
    return RaceCost(counting, row_cycles / threads, 0.0, stall_us, float(threads))


class Rounds:
    """A sequence of rounds: a race over a batch of both streams, then spinning, then sleep."""

    def __init__(
        self, device: SimulatedDevice, race: RaceCost, rate: float, batch: int, hz: int = 0
    ) -> None:
        """`hz` pins the clock of races, and the lowest clock between them; 0 leaves clocks to the
        kernel's governor."""
        device.log = []
        self.device, self.cost, self.batch, self.hz = device, race, batch, hz
        self.period_us = 1e6 * batch / rate
        self.race_us = self.latest_us = 0.0
        self.count = max(20, min(RACES_MAX, round(SECONDS * 1e6 / self.period_us)))

    def run(self) -> bool:
        """Simulate all rounds; returns whether the program keeps up with the rate."""
        for i in range(self.count):
            ready_us = (i + 1) * self.period_us
            self.device.nap(ready_us)
            last_hz = self._race()
            self.latest_us = max(self.latest_us, self.device.at_us - ready_us)
            self._spin(ready_us + self.period_us, last_hz)
        behind = self.device.at_us / self.period_us - self.count
        return behind <= BACKLOG_MAX + 0.01 * self.count

    def _race(self) -> int:
        assert self.device.log is not None
        self.device.log.clear()
        self._pin(self.hz)
        self.race_us += self.device.race(self.cost, 2 * self.batch)
        self._pin(IDLE_HZ if self.hz else 0)
        met = [p.hz for p in self.device.log if p.state == "race"]
        return IDLE_HZ if self.hz else met[-1]

    def _pin(self, hz: int) -> None:
        if hz:
            self.device.apply(Decision("", {self.device.dials[0].name: ClockSetting(Act.PIN, hz)}))

    def _spin(self, until_us: float, hz: int) -> None:
        us = min(1e6 * SPIN_CYCLES / hz, until_us - self.device.at_us)
        if us > 0:
            self.device.race(RaceCost(0.0, 0.0, us, 0.0, float(WORKERS)), 0.0)
