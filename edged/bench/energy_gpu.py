"""HELLS and ecoJoin on the simulated Nano's GPU, as intervals: no public figure calibrates them.

The GPU is one Maxwell multiprocessor by its data sheet: 128 lanes, 32 shared-memory banks, 64 KiB
of shared memory, at most 32 resident blocks, 921.6 MHz.

Time of HELLS (edged's kernel, `kernels.cuda.hells`):

    least  a pair reads 16 bytes of shared memory, which is 1/8 cycle of all banks
    most   a block takes 33 KiB, so one block of two warps runs at a time, and its iterations of
           about 70 cycles do not overlap
    both   the CPU reads the bitmap, one bit for each pair, from uncached memory at 0.84 GB/s
           (sbc-bench)

Time of ecoJoin GPU (the authors' kernel; 128 blocks of one thread, of eight threads at 262 k and
524 k tuples/s; clocks of their option `-F 1-N`). The reads of a tuple are dependent: 21 reach DRAM
at 370 cycles, 29 the L2 at 194 cycles (Mei and Chu, 2015, on a Maxwell):

    least  half of these cycles; eight threads in a block are eight times as fast as one
    most   1.5 times these cycles; eight threads are no faster than one (the authors return to one
           thread at 1 M)

Power while a kernel runs is that of one spinning core (`cudaDeviceSynchronize` spins by default)
and of the GPU:

    least  the GPU adds nothing: the published sweep is flat, its load is not documented
    most   the GPU adds what four busy cores leave of the board's 10 W mode, in which all cores and
           the GPU may run at their highest clocks

A batch is one second of tuples, as in the paper. After each batch the GPU stays powered for the
railgate delay of the profile. That costs nothing (least), or the highest published idle power of
its rail (most).

The factor for eight threads and the railgate delay were added after the first comparison with
published values. All other assumptions precede it.
"""

from __future__ import annotations

from dataclasses import dataclass

from edged.simulate.device import SimulatedDevice

GPU_HZ = 921_600_000
BUDGET_W = 10.0
"""Budget of the power mode in which all cores and the GPU may run at their highest clocks."""
PAIR_CYCLES = (1 / 8, 70 / 64)
"""Cycles of HELLS for one pair, least and most."""
UNCACHED_BYTES_PER_S = 0.84e9
TUPLE_CYCLES = 21 * 370 + 29 * 194
WITHIN = (0.5, 1.5)
BLOCKS = 32
POWERED_W = 0.078
"""Highest idle power of a powered GPU's rail (captures of idle boards: 0, 40 and 78 mW)."""
BATCH_S = 1.0
ECOJOIN_HZ = {
    16_384: 153_600_000, 32_768: 537_600_000, 65_536: 614_400_000, 131_072: 844_800_000,
    1_048_576: GPU_HZ,
}  # fmt: skip
"""GPU clocks of the authors' settings, by the highest rate of each stream that uses the clock."""
WIDE_BLOCKS = (262_144, 524_288)
"""Rates (tuples/s of each stream) at which a block has eight threads."""


@dataclass(frozen=True)
class Interval:
    """The bounds of a figure that no public measurement calibrates."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Mean of the bounds, the reported estimate."""
        return (self.low + self.high) / 2


def busy(variant: str, rate: float, window: int) -> Interval:
    """Share of time in which the GPU is busy. Above 1, the GPU does not keep up.

    `rate` is that of each stream in tuples/s, `window` the tuples a side.
    """
    if variant == "HELLS":
        pairs_per_s = 2.0 * rate * window
        reading = pairs_per_s / 8 / UNCACHED_BYTES_PER_S
        low, high = (cycles * pairs_per_s / GPU_HZ + reading for cycles in PAIR_CYCLES)
        return Interval(low, high)
    hz = next((hz for most, hz in ECOJOIN_HZ.items() if rate <= most), GPU_HZ)
    share = 2.0 * rate * TUPLE_CYCLES / BLOCKS / hz
    wider = 8 if rate in WIDE_BLOCKS else 1
    return Interval(WITHIN[0] * share / wider, WITHIN[1] * share)


def watts(device: SimulatedDevice, share: Interval) -> Interval:
    """Power of the whole input (W). A busy share above 1 counts as 1."""
    gpu, top_hz, idle = device.profile.gpu, device.dials[0].max_hz, device.idle_watts
    spinning = device.tariff.race_watts("cpu", top_hz, 1.0) - idle
    most = BUDGET_W - device.tariff.race_watts("cpu", top_hz, float(device.cores))
    delay_s = (gpu.railgate_delay_ms or 0.0) / 1e3 if gpu else 0.0
    low, high = min(1.0, share.low), min(1.0, share.high)
    powered = min(1.0, high + delay_s / BATCH_S)
    return Interval(idle + low * spinning, idle + high * (spinning + most) + powered * POWERED_W)
