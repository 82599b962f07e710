"""Memory stall times of a Jetson Nano's cores, from published measurements of that board.

`LATENCY_NS` maps a working set in bytes to the latency of one random read beyond an L1 hit. Reads
are dependent, pages have 4 KiB. Source: tinymembench on a Jetson Nano developer kit at 1479 MHz
(ThomasKaiser/sbc-bench, results/4rLX.txt, 2023). The source ends at 64 MiB, where a read with huge
pages takes 133.5 ns. The last point is derived: from 1 GiB on, the page table (8 bytes for each
4096, 2 MiB in all) misses every cache too, and a read takes twice 133.5 ns.

The stalls of a join are counted, not fitted. The count covers the cache lines that a tuple touches,
the bytes over which they are spread, and the dependencies between reads. The measured cycles
already contain hits in the 2 MiB L2, so only the latency beyond `L2_NS` counts. Stalls do not
depend on the CPU clock. The memory clock is assumed to be that of the source's measurement.
"""

from __future__ import annotations

import math
from itertools import pairwise

MIB, GIB = 1 << 20, 1 << 30
LINE_BYTES = 64
L2_BYTES = 2 * MIB
L2_NS = 18.9
LATENCY_NS = (
    (MIB, L2_NS), (2 * MIB, 36.2), (4 * MIB, 82.1), (8 * MIB, 124.9), (16 * MIB, 145.1),
    (32 * MIB, 156.9), (64 * MIB, 173.4), (GIB, 2 * 133.5),
)  # fmt: skip
TWO_AT_ONCE = 237.2 / 173.4
"""Time of two independent reads relative to one read (64 MiB, same source)."""
STREAM_GBYTES_PER_S = 4.75
"""Sequential read bandwidth of one core (same source: NEON LDP load). Four cores together stay
below the data sheet's 25.6 GB/s."""
HEAD_BYTES, CHAINED = 16, 0.22
"""`chain` has four heads of 4 bytes for each tuple of the window. If few keys match, a share of
1 - exp(-1/4) of the heads leads to a chain."""


def read_ns(spread_bytes: float) -> float:
    """Stall of one random read beyond an L2 hit, in ns.

    Interpolates `LATENCY_NS` linearly in the logarithm of the bytes.
    """
    low_bytes, low_ns = LATENCY_NS[0]
    if spread_bytes <= low_bytes:
        return 0.0
    for (low_bytes, low_ns), (high_bytes, high_ns) in pairwise(LATENCY_NS):
        if spread_bytes <= high_bytes:
            x = math.log(spread_bytes / low_bytes) / math.log(high_bytes / low_bytes)
            return low_ns + x * (high_ns - low_ns) - L2_NS
    return LATENCY_NS[-1][1] - L2_NS


def stream_ns(read_bytes: float, spread_bytes: float) -> float:
    """Time of a sequential read of `read_bytes` from an area of `spread_bytes`, in ns.

    Counts only the share of the area that does not fit the L2.
    """
    return max(0.0, 1 - L2_BYTES / spread_bytes) * read_bytes / STREAM_GBYTES_PER_S


def chain_ns(window: int) -> float:
    """Stall of one tuple of the kernel `chain` on one core, in ns.

    A tuple reads the head that it probes, the head that it is inserted behind, and sometimes an
    entry. The kernel prefetches 64 records ahead; this model assumes two reads in flight.
    """
    spread = float(HEAD_BYTES * window)
    return (2 + CHAINED) * TWO_AT_ONCE / 2 * read_ns(spread)
