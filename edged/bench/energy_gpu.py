"""HELLS and ecoJoin on the simulated Nano's GPU: intervals, since nothing public calibrates them.

Time comes from the data sheet of a Maxwell multiprocessor (one, of 128 lanes, 32 shared-memory
banks, 64 KiB shared, at most 32 blocks; 921.6 MHz) and from what the programs do:

HELLS        our kernel (`kernels.cuda.hells`): a pair reads 16 bytes of shared memory, which is
             1/8 cycle of the banks (least); its blocks take 33 KiB and so run one at a time, two
             warps, whose turns of about 70 cycles follow one another (most).  The CPU reads the
             bitmap, a bit a pair, from memory that it does not cache (sbc-bench: 0.84 GB/s)
ecoJoin GPU  the authors' kernel and launches (128 blocks of one thread, of eight at 262 k and
             524 k tuples/s; clocks `-F 1-N`): each tuple's reads wait for each other, 21 of them
             for DRAM and 29 for the L2, 370 and 194 cycles (Mei and Chu, 2015, a Maxwell of that
             year); from half of that to one and a half times, and eight threads a block are from
             eight times as fast as one to no faster (the authors go back to one at 1 M)

Power while a kernel runs is one spinning core (`cudaDeviceSynchronize` spins by default), and the
GPU's, of which only bounds are known: the published sweep is flat, its load undocumented, so it
may add nothing (least); and in the board's mode of 10 W all four cores and the GPU may run at
their highest clocks at once, so it cannot add more than the cores leave of that (most).  Batches
are of one second, as the authors', so that the GPU stays powered for the railgate delay of the
profile after each; that costs nothing (least), or what the highest public capture of its idle rail
shows (most).

The last clause of ecoJoin's time and the railgate delay were added after the first comparison; all
else is as it was before.
"""

from __future__ import annotations

from dataclasses import dataclass

from edged.simulate.device import SimulatedDevice

GPU_HZ = 921_600_000
BUDGET_W = 10.0
"""Of the mode in which everything may run at its highest."""
PAIR_CYCLES = (1 / 8, 70 / 64)
"""Of HELLS, least and most."""
UNCACHED_BYTES_PER_S = 0.84e9
TUPLE_CYCLES = 21 * 370 + 29 * 194
WITHIN = (0.5, 1.5)
BLOCKS = 32
POWERED_W = 0.078
"""Of an idle GPU's rail at most (captures of idle boards: 0, 40 and 78 mW)."""
BATCH_S = 1.0
ECOJOIN_HZ = {
    16_384: 153_600_000, 32_768: 537_600_000, 65_536: 614_400_000, 131_072: 844_800_000,
    1_048_576: GPU_HZ,
}  # fmt: skip
"""Up to a rate of each stream, as the authors picked them."""
WIDE_BLOCKS = (262_144, 524_288)
"""Rates at which a block has eight threads."""


@dataclass(frozen=True)
class Interval:
    """Least and most."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Of the two: no estimate is better founded."""
        return (self.low + self.high) / 2


def busy(variant: str, rate: float, window: int) -> Interval:
    """Share of time in which the GPU runs, at a rate of each stream; above 1: it cannot keep up."""
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
    """Whole input; a GPU that needs more than all of its time is busy all of it."""
    gpu, top_hz, idle = device.profile.gpu, device.dials[0].max_hz, device.idle_watts
    spinning = device.tariff.race_watts("cpu", top_hz, 1.0) - idle
    most = BUDGET_W - device.tariff.race_watts("cpu", top_hz, float(device.cores))
    delay_s = (gpu.railgate_delay_ms or 0.0) / 1e3 if gpu else 0.0
    low, high = min(1.0, share.low), min(1.0, share.high)
    powered = min(1.0, high + delay_s / BATCH_S)
    return Interval(idle + low * spinning, idle + high * (spinning + most) + powered * POWERED_W)
