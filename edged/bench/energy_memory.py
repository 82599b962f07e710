"""How long a Jetson Nano's cores wait for memory, from published measurements of that board.

`LATENCY_NS`: a random read beyond a hit in the L1, one after another, by the bytes that the reads
are spread over, pages of 4 KiB: tinymembench on a Jetson Nano developer kit at 1479 MHz
(ThomasKaiser/sbc-bench, results/4rLX.txt, 2023).  The table ends at 64 MiB; there a read with huge
pages takes 133.5 ns.  The last point is derived: from 1 GiB on, the page's table entry (8 of 4096
bytes: 2 MiB) lies in no cache either, and a read takes twice that.

A join's waits are counted, not fitted: which lines a tuple touches, spread over how many bytes, and
whether the next read needs the last one's answer.  What hits the 2 MiB L2 is in the cycles that
were measured elsewhere, so that waits begin beyond `L2_NS`.  Waits do not depend on the CPU's clock
here; the memory's clock is taken to be as high as it was when this was measured.
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
"""Two reads that do not need each other take that many times as long as one (64 MiB, as above)."""
STREAM_GBYTES_PER_S = 4.75
"""A core reads in sequence (the same table: NEON LDP load); four of them stay below the data
sheet's 25.6 GB/s."""
HEAD_BYTES, CHAINED = 16, 0.22
"""`chain`: four heads of 4 bytes a tuple of the window; with keys that seldom meet a chain lives
behind 1 - exp(-1/4) of the heads."""


def read_ns(spread_bytes: float) -> float:
    """A random read's wait beyond the L2's, between the points by the logarithm of the bytes."""
    low_bytes, low_ns = LATENCY_NS[0]
    if spread_bytes <= low_bytes:
        return 0.0
    for (low_bytes, low_ns), (high_bytes, high_ns) in pairwise(LATENCY_NS):
        if spread_bytes <= high_bytes:
            x = math.log(spread_bytes / low_bytes) / math.log(high_bytes / low_bytes)
            return low_ns + x * (high_ns - low_ns) - L2_NS
    return LATENCY_NS[-1][1] - L2_NS


def stream_ns(read_bytes: float, spread_bytes: float) -> float:
    """Reading so many bytes in sequence out of an area, as far as it does not fit the L2."""
    return max(0.0, 1 - L2_BYTES / spread_bytes) * read_bytes / STREAM_GBYTES_PER_S


def chain_ns(window: int) -> float:
    """What a tuple of our `chain` waits on one core: the head that it probes, the one that it is
    put behind, and now and then an entry.  They are asked for 64 records ahead; counted here as if
    no more than two were ever under way."""
    spread = float(HEAD_BYTES * window)
    return (2 + CHAINED) * TWO_AT_ONCE / 2 * read_ns(spread)
