"""What a join's kernels take on a board's GPU, from its data sheet: modelled, never measured.

No GPU has run the kernels yet (docs/joins.md).  What a beat of them takes is read in their source
(`kernels.cuda.ring`, `chain`, `bucket`) and put together from what the board's profile has:

    host    every launch is Python of the CPU: 6.6 us, and 3.75 us an array that it is given, as
            numba-cuda's maintainer measured (numba-cuda pull request 288; the machine is not named:
            taken as 4 GHz, its cycles as the board's)
    memory  bytes a row, all reads and writes of all kernels of a beat, each random one counted as a
            sector of 32 bytes, over the specified peak bandwidth of the board
    GPU     a row's accesses that wait for each other, LATENCY_CYCLES each, over the threads that
            the multiprocessors hold at the registers that the kernels take (`kernels.cuda.figures`)

The three are added: that they overlap is left out, and so is everything else.  So the sum may be
off by two either way, and a price made of it as well.  Of a board whose system has no CUDA that the
kernels run on (JetPack 4) there is nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from edged.placement.placement import Curve
from governors.energy import Provenance
from governors.profile import BoardProfile
from governors.work import RaceCost

LAUNCH_HZ = 4e9
LAUNCH_CYCLES, ARRAY_CYCLES = 6.6e-6 * LAUNCH_HZ, 3.75e-6 * LAUNCH_HZ
SECTOR_BYTES = 32
LATENCY_CYCLES = 500
"""Of a read from DRAM: 370 on a Maxwell (Mei and Chu, 2015), more on what came after; assumed."""
THREADS = 1024
"""That a multiprocessor holds at 64 registers a thread."""
NOT_THERE = ("R32",)
"""Releases without a CUDA that numba-cuda knows."""


@dataclass(frozen=True)
class Kernels:
    """What the kernels of a beat are, both sides together."""

    launches: int
    arrays: int
    """That all launches together are given."""
    row_bytes: int
    """That a row moves through memory."""
    row_waits: int
    """Accesses of a row that wait for each other."""


KERNELS = {
    # begin, totals, offsets; of each side load, count, link, advance, write, evict.  A row: load
    # 16 + 20, count 16 + a head and half an entry at random + 12, link 3 passes over 16 and a head
    # and a link at random, advance 16, totals and offsets 24, evict 16
    "chain-cuda": Kernels(15, 81, 36 + 28 + 48 + 48 + 2 * SECTOR_BYTES + 16 + 24 + 16, 16),
    # the same with build for link, which reads and writes a bucket's line instead of a chain, and
    # cleanup, which reads each entry and its place once more
    "bucket-cuda": Kernels(17, 97, 36 + 28 + 64 + 48 + 3 * SECTOR_BYTES + 16 + 24 + 48, 20),
}
PROVENANCE = "modelled from its data sheet, off by two either way; no GPU has run these kernels"


def offered(board: BoardProfile) -> tuple[str, ...]:
    """Kernels that the board's GPU has figures for; none where it lacks them or CUDA."""
    gpu, peak = board.gpu, board.memory.peak_gbytes_per_s
    if gpu is None or not gpu.multiprocessors or not peak or board.release in NOT_THERE:
        return ()
    return tuple(KERNELS)


def cost(board: BoardProfile, kernel: str) -> RaceCost:
    """Of one of `offered`, by rows of both sides: the GPU's part, for which a core waits, and as
    `host` what its launches take on the CPU."""
    gpu, peak = board.gpu, board.memory.peak_gbytes_per_s
    assert gpu is not None and gpu.multiprocessors and peak, "it is offered"
    k = KERNELS[kernel]
    waits = k.row_waits * LATENCY_CYCLES / (gpu.multiprocessors * THREADS)
    host = RaceCost(k.launches * LAUNCH_CYCLES + k.arrays * ARRAY_CYCLES, 0.0)
    return RaceCost(0.0, waits, 0.0, k.row_bytes / (peak * 1e3), cores=1.0, host=host)


def stalled(board: BoardProfile, kernel: str, hz: int) -> float:
    """Of a large beat's time on the GPU at a clock, the share that the clock does not shorten."""
    one = cost(board, kernel)
    return one.stall_us_per_unit / one.us(1, hz)


def curve(
    board: BoardProfile, kernel: str, windows: tuple[int, ...], rows: tuple[int, ...], cpu_hz: int,
    gpu_hz: int,
) -> Curve:  # fmt: skip
    """As `edged calibrate` would keep it, at two clocks; the window makes no difference here."""
    one = cost(board, kernel)
    host_us = 0.0 if one.host is None else one.host.us(0, cpu_hz)
    us = tuple(host_us + one.us(n, gpu_hz) for n in rows)
    return Curve(
        "cuda", windows, rows, (us,) * len(windows), (us,) * len(windows),
        one.us(1, gpu_hz), Provenance.MODELLED.value, stalled(board, kernel, gpu_hz),
    )  # fmt: skip
