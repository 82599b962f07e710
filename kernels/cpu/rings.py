"""The state of the chain join: rings in arrival order, and hash chains through them.

Each side keeps a ring for each of the 64 partitions.  A `Ring` describes one; an array int64[64,
FIELDS] describes a side.  An entry is 20 bytes:

    int64 time (us) | uint32 tag | uint32 row | uint32 next

`next` is the position of the next older entry of the chain.  The entry at position p lies in slot p
& mask and hangs in chain tag & heads_mask.  Behind the ring lie its marks: for each BLOCK of slots
the time of the block's last entry.  A head is the uint32 position of its chain's newest entry.
Both sides have the same number of chains, and the two heads of a chain lie beside each other, left
then right.  A row probes one and is inserted at the other, which costs one cache line.

Invariants.
  1. Positions grow by one an entry; 1 <= tail <= head < 2^32 and head - tail <= capacity.
     `chain.rebuild` renumbers the live entries from 1 before head can reach 2^32.
  2. Entries at tail..head are intact.  A head or `next` below the tail ends its chain; 0 always
     does.  Eviction therefore moves the tail and touches neither heads nor links.
  3. Along a chain positions fall.  Times may rise, by a bounded amount: every older live entry has
     time <= the entry's time + max(disorder_old, disorder_new).  A walk may stop at the first entry
     below the probe's lower bound less that disorder.
  4. Partners come newest arrival first, whatever the sizes of rings and tables.  Growth,
     renumbering and restoring change no output.

Disorder is measured, and kept in two generations, so that one late row does not lengthen walks for
ever.  When the last entry of the old generation leaves, the new one becomes the old.

Kernels take a ring by its address: numba counts references to rows of arrays with locked
instructions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.records import ADDRESS, I64, field, get, put, words
from kernels.registry import device


class Ring(NamedTuple):
    """A partition's ring of one side: 128 bytes, so that two threads never share a cache line."""

    entries: ADDRESS = field("its entries, `mask` + 1 of them, and behind them their marks")
    heads: ADDRESS = field("head of chain 0; the other side's head of a chain is 4 bytes from it")
    mask: I64 = field("entries - 1; their number is a power of two")
    heads_mask: I64 = field("chains - 1; their number is a power of two")
    tail: I64 = field("position of the oldest live entry")
    head: I64 = field("position of the next entry to be written")
    log: ADDRESS = field("of a pool, its log (`kernels.cpu.pool`); 0 where no ring is shared")
    newest_old: I64 = field("latest time of the old generation")
    newest_new: I64 = field("latest time of the new generation")
    disorder_old: I64 = field("how far times fall in the old generation (us)")
    disorder_new: I64 = field("how far times fall in the new generation (us)")
    generation: I64 = field("position of the new generation's first entry")
    batch: ADDRESS = field("this beat's records")
    batch_rows: I64 = field("number of this beat's records")
    marked: I64 = field("position below which blocks have their marks")
    leaving: I64 = field("position below which entries leave with this beat, by their marks")


RING = words(Ring)
FIELDS = 16
PART = 8 * FIELDS
ENTRY, NEXT, RECORD_BYTES, PAIR, LINE = 20, 16, 16, 8, 64
"""Sizes in bytes; NEXT is the offset of an entry's link."""
BLOCK, MARK = 16, 8
"""Entries that share a mark, and the bytes of a mark."""
LOW = POSITION_MAX = 2**32 - 1
AHEAD = 64
"""Records ahead of which heads are prefetched.  A batch must be readable so far past its end."""
PARTITION_SHIFT = 26
"""The bits of a tag from this one on are its partition."""
TIME_MIN, TIME_MAX = np.int64(-(2**63)), np.int64(2**63 - 1)


@device
def point_ring(mine: int, records: int, count: int) -> Any:
    """Set a ring's records of this beat; returns whether the ring has room for them."""
    put(mine, RING.batch, records)
    put(mine, RING.batch_rows, count)
    last = get(mine, RING.head) + count
    return last - get(mine, RING.tail) <= get(mine, RING.mask) + 1 and last <= LOW


@device
def address_of(side: Any, number: int) -> Any:
    """The address of a ring in a side's array."""
    return np.int64(side.ctypes.data) + PART * number


@device
def span(mine: int) -> Any:
    """A ring's entries, mask, tail and head."""
    return (
        get(mine, RING.entries), get(mine, RING.mask), get(mine, RING.tail), get(mine, RING.head),
    )  # fmt: skip


@device
def disorder_of(mine: int) -> Any:
    """How far times fall in a ring (us)."""
    return max(get(mine, RING.disorder_old), get(mine, RING.disorder_new))


@device
def later(time: int, us: int) -> int:
    """`time + us` for us >= 0, at most TIME_MAX."""
    return time + us if time <= TIME_MAX - us else TIME_MAX


@device
def earlier(time: int, us: int) -> int:
    """`time - us` for us >= 0, at least TIME_MIN."""
    return time - us if time >= TIME_MIN + us else TIME_MIN


@device
def partition_of(entry: int) -> Any:
    """The partition of a record or an entry, by its tag."""
    return np.int64(mem.load_u32(entry + 8)) >> PARTITION_SHIFT


@device
def row_of(entry: int, base: int) -> Any:
    """The store row of a record or an entry, where `base` is the number of row 0."""
    return (np.int64(mem.load_u32(entry + 12)) - base) & LOW
