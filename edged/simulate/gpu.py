"""Modelled cost of a join's kernels on a board's GPU, from its data sheet. Nothing is measured.

No GPU has run the kernels yet (docs/joins.md). The time of a beat is the sum of three parts. They
are counted in the source of the kernels (`kernels.cuda.ring`, `chain`, `bucket`) and scaled by the
board's profile:

    host    each launch is Python on the CPU: 6.6 us, and 3.75 us for each array argument. Source:
            numba-cuda pull request 288, whose machine is not named; it is assumed to run at 4 GHz,
            and its cycles are taken as the board's
    memory  all bytes that the kernels of a beat read and write, over the board's specified peak
            bandwidth; a random access counts as a sector of 32 bytes
    GPU     the dependent accesses of a row, LATENCY_CYCLES each, over the resident threads of the
            multiprocessors at the register count of the kernels (`kernels.cuda.figures`)

The sum ignores overlap of the three and everything else, so it may be wrong by a factor of two in
either direction. The same holds for a price computed from it. A board whose system lacks a suitable
CUDA (JetPack 4) has no figures.
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
"""Assumed latency of a read from DRAM: 370 on a Maxwell (Mei and Chu, 2015), more on later GPUs."""
THREADS = 1024
"""Resident threads of a multiprocessor at 64 registers a thread."""
RELEASES_WITHOUT_CUDA = ("R32",)
"""L4T releases whose CUDA numba-cuda does not support."""


@dataclass(frozen=True)
class Kernels:
    """Counts for one beat of a join kernel, both sides together."""

    launches: int
    arrays: int
    """Array arguments of all launches."""
    row_bytes: int
    """Memory traffic of a row."""
    row_waits: int
    """Dependent accesses of a row."""


KERNELS = {
    # Launches: begin, totals, offsets; load, count, link, advance, write, evict for each side.
    # Bytes of a row: load 16 + 20; count 16 + 12 and a random head and half an entry; link three
    # passes over 16 and a random head and link; advance 16; totals and offsets 24; evict 16.
    "chain-cuda": Kernels(15, 81, 36 + 28 + 48 + 48 + 2 * SECTOR_BYTES + 16 + 24 + 16, 16),
    # As above, except that build replaces link and accesses a line of a bucket instead of a chain;
    # cleanup reads each entry and its position once more.
    "bucket-cuda": Kernels(17, 97, 36 + 28 + 64 + 48 + 3 * SECTOR_BYTES + 16 + 24 + 48, 20),
}
PROVENANCE = "modelled from its data sheet, within a factor of 2; no GPU has run these kernels"


def offered(board: BoardProfile) -> tuple[str, ...]:
    """Kernels with modelled costs on the board's GPU. Empty without figures, GPU or CUDA."""
    gpu, peak = board.gpu, board.memory.peak_gbytes_per_s
    if gpu is None or not gpu.multiprocessors or not peak or board.release in RELEASES_WITHOUT_CUDA:
        return ()
    return tuple(KERNELS)


def cost(board: BoardProfile, kernel: str) -> RaceCost:
    """The cost of one of `offered`; its unit is a row of either side.

    The main part runs on the GPU while one core waits. `host` is the CPU time of the launches.
    """
    gpu, peak = board.gpu, board.memory.peak_gbytes_per_s
    assert gpu is not None and gpu.multiprocessors and peak, "the kernel is one of `offered`"
    k = KERNELS[kernel]
    waits = k.row_waits * LATENCY_CYCLES / (gpu.multiprocessors * THREADS)
    host = RaceCost(k.launches * LAUNCH_CYCLES + k.arrays * ARRAY_CYCLES, 0.0)
    return RaceCost(0.0, waits, 0.0, k.row_bytes / (peak * 1e3), cores=1.0, host=host)


def stalled(board: BoardProfile, kernel: str, hz: int) -> float:
    """Share of a large beat's GPU time that does not depend on the GPU's clock."""
    one = cost(board, kernel)
    return one.stall_us_per_unit / one.us(1, hz)


def curve(
    board: BoardProfile, kernel: str, windows: tuple[int, ...], rows: tuple[int, ...], cpu_hz: int,
    gpu_hz: int,
) -> Curve:  # fmt: skip
    """The modelled times in the form that `edged calibrate` stores, at one CPU and one GPU clock.

    The model does not depend on the window.
    """
    one = cost(board, kernel)
    host_us = 0.0 if one.host is None else one.host.us(0, cpu_hz)
    us = tuple(host_us + one.us(n, gpu_hz) for n in rows)
    return Curve(
        "cuda", windows, rows, (us,) * len(windows), (us,) * len(windows),
        one.us(1, gpu_hz), Provenance.MODELLED.value, stalled(board, kernel, gpu_hz),
    )  # fmt: skip
