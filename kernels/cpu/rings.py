"""The state of the chain join, and small helpers for it.

Each side keeps, for each of 64 logical partitions, a ring of its rows in arrival order and
the heads of hash chains through it.  One row of `int64[64, FIELDS]` describes a partition:

    RING       address of `capacity` entries of 20 bytes, a record and a link:
               int64 time (µs) | uint32 tag | uint32 row | uint32 next (position of the chain's next
               older entry)
    HEADS      address of chain 0's head: uint32 position of the chain's newest entry
    RING_MASK  capacity - 1;  HEADS_MASK  chains - 1  (both sizes are powers of two)
    TAIL, HEAD positions of the oldest live entry and of the next one to be written
    NEWEST_*, DISORDER_*, GENERATION   see below
    BATCH, BATCH_ROWS   address of this beat's records (see `partition`) and their count
    LOG        of a pool: see `kernels.cpu.pool`, where partitions share rings and the first rows
               are the pools'; 0 where each has its own, as it is said here
    MARKED, LEAVING     positions: below the one, blocks are marked; below the other, as far as
                        marks show, entries leave with this beat (see `kernels.cpu.evict`)

Behind a ring lie its marks, an int64 for each BLOCK of slots: the time of the last of its entries.

An entry at position p lies in slot p & RING_MASK and hangs in chain tag & HEADS_MASK.  Both sides
have the same number of chains, and the two heads of a chain lie beside each other (8 bytes a pair,
left then right): a row probes one and is inserted at the other, at the cost of one cache line.

Invariants.
  1. Positions grow by one an entry; 1 <= TAIL <= HEAD < 2^32 and HEAD - TAIL <= capacity.
     `rebuild` numbers the live entries from 1 again before HEAD can reach 2^32.
  2. Entries at TAIL..HEAD are intact: a live entry is never overwritten.  A head or `next` below
     TAIL is the end of its chain (0 always is), so that eviction touches neither.
  3. Along a chain positions fall.  Times may not: for each live entry, every older live entry of
     the partition has time <= its own + max(DISORDER_OLD, DISORDER_NEW).  A walk may stop at the
     first entry below the probe's lower bound less that disorder.
  4. Rows of equal key meet in the same order whatever the sizes of rings and tables are: newest
     arrival first.  Growth, renumbering and restoring change no output.

Disorder is what was really seen, so a single stray row would lengthen walks for ever; therefore it
is kept in two generations.  Positions below GENERATION are the old one; when the last of them is
evicted the new generation becomes the old.  NEWEST_* is the largest time seen in each.

Kernels take a partition's row by its address: numba counts the references to a row of an array,
with locked instructions (a beat of 128 records in 64 partitions took 21 us, now 7).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.registry import device

RING, HEADS, RING_MASK, HEADS_MASK, TAIL, HEAD, LOG = range(7)
NEWEST_OLD, NEWEST_NEW, DISORDER_OLD, DISORDER_NEW, GENERATION = range(7, 12)
BATCH, BATCH_ROWS, MARKED, LEAVING = 12, 13, 14, 15
FIELDS = 16
"""Width of a partition's row: 128 bytes, so that two workers never share a cache line."""
PART = 8 * FIELDS
ENTRY, NEXT, RECORD_BYTES, PAIR, LINE = 20, 16, 16, 8, 64
"""Sizes in bytes, and where in an entry its link is."""
BLOCK, MARK = 16, 8
"""Entries that have a mark together, and its bytes."""
LOW = POSITION_MAX = 2**32 - 1
AHEAD = 64
"""How many records ahead heads are prefetched.  Members that ask without looking where a batch ends
read so far past it, so that it must be readable."""
PARTITION_SHIFT = 26
"""A tag's bits from this one on are its partition."""
TIME_MIN, TIME_MAX = np.int64(-(2**63)), np.int64(2**63 - 1)


@device
def keep(row: int, field: int, value: int) -> None:
    """`put`, but for what is there already: another CPU's copy of the line stays good."""
    if get(row, field) != value:
        put(row, field, value)


@device
def point_ring(mine: int, records: int, count: int) -> Any:
    """Tell a ring where its records of a beat are; whether it has room for them."""
    put(mine, BATCH, records)
    put(mine, BATCH_ROWS, count)
    last = get(mine, HEAD) + count
    return last - get(mine, TAIL) <= get(mine, RING_MASK) + 1 and last <= LOW


@device
def later(time: int, us: int) -> int:
    """`time + us` for us >= 0, at most TIME_MAX."""
    return time + us if time <= TIME_MAX - us else TIME_MAX


@device
def earlier(time: int, us: int) -> int:
    """`time - us` for us >= 0, at least TIME_MIN."""
    return time - us if time >= TIME_MIN + us else TIME_MIN


@device
def get(part: int, field: int) -> Any:
    """A field of a partition's row, or of another array of int64, by address."""
    return mem.load_i64(part + 8 * field)


@device
def partition_of(entry: int) -> Any:
    """The partition of a record or an entry, by its tag."""
    return np.int64(mem.load_u32(entry + 8)) >> PARTITION_SHIFT


@device
def put(part: int, field: int, value: int) -> None:
    """Set such a field."""
    mem.store_i64(part + 8 * field, value)
