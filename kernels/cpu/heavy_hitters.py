"""Chains of their own for heavy hitters, in large rings of `kernels.cpu.rings`.

Where keys are skewed, a frequent key's entries fill the chain that its tag falls to.  A record of
another key that falls there walks past all of them, one miss a link.  A partition with many chains
therefore has NAMES more, each with a name.  A tag whose name stands there hangs in that chain
instead of its usual one.

**Promotion.**  A probe that walks a long chain alone reports the key that it skips
(`kernels.cpu.probe`), and `take_name` gives that key a chain.  The chain begins as a copy of the
usual chain's heads, of both sides, so that no entry moves.  A name passes to another key when few
live entries hang in its chain: these are merged back into the usual chain.

A name is 1 << 15 and the 15 tag bits above those that choose the place.  Name and place together
hold all bits that choose a usual chain, so that tags that share a name share that chain, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.records import get
from kernels.cpu.rings import ENTRY, NEXT, PAIR, RING
from kernels.registry import device

NAME_BITS = 10
NAMES = 1 << NAME_BITS
"""Chains of a partition that have names."""
TAKEN = 1 << 15
CHAINS_MIN, CHAINS_MAX = 1 << 16, TAKEN << NAME_BITS
"""Partitions with fewer or more chains have no names: in small windows walks are short."""
NAMES_BYTES = PAIR * NAMES + 2 * NAMES
"""Bytes behind the usual heads: heads of named chains, then names (uint16)."""
MERGED_MAX = 32
"""Links that are followed at most to merge a chain into another."""


@device
def names_of(mine: int) -> Any:
    """The address of a partition's names, 0 where it has none."""
    heads_mask = get(mine, RING.heads_mask)
    if heads_mask < CHAINS_MIN - 1 or heads_mask >= CHAINS_MAX:
        return 0
    return (get(mine, RING.heads) & -PAIR) + PAIR * (heads_mask + 1 + NAMES)


@device
def name_of(tag: int) -> Any:
    """The name of a tag."""
    return tag >> NAME_BITS & TAKEN - 1 | TAKEN


@device
def chain_of(tag: int, heads_mask: int, names: int) -> Any:
    """The number of a tag's chain."""
    if names == 0:
        return tag & heads_mask
    place = tag & NAMES - 1
    named = np.int64(mem.load_u16(names + 2 * place)) == name_of(tag)
    return heads_mask + 1 + place if named else tag & heads_mask


@device
def merge(mine: int, own: int, usual: int, write: bool) -> bool:
    """Merge the live entries of the chain with its head at `own` into the chain with its head at
    `usual`, positions falling.  False where that takes more than MERGED_MAX links; without `write`
    nothing is changed.

    A walk along either chain still meets every entry that it would have met before."""
    ring, mask, tail = get(mine, RING.entries), get(mine, RING.mask), get(mine, RING.tail)
    a, b, to, steps = np.int64(mem.load_u32(own)), np.int64(mem.load_u32(usual)), usual, 0
    while a >= tail and a != b:
        if steps == MERGED_MAX:
            return False
        newer = max(a, b)
        following = ring + ENTRY * (newer & mask) + NEXT
        if write:
            mem.store_u32(to, np.uint32(newer))
        if a > b:
            a = np.int64(mem.load_u32(following))
        else:
            b = np.int64(mem.load_u32(following))
        to = following
        steps += 1
    if write:
        mem.store_u32(to, np.uint32(max(a, b)))
    return True


@device
def take_name(mine: int, other: int, tag: int) -> bool:
    """Give a tag a chain of its own, if its place is free or held by a key that has become cold;
    returns whether the tag got a chain."""
    side, heads = get(mine, RING.heads) & PAIR - 1, get(mine, RING.heads) & -PAIR
    heads_mask, names, place = get(mine, RING.heads_mask), names_of(mine), tag & NAMES - 1
    name, own = names + 2 * place, heads + PAIR * (heads_mask + 1 + place)
    known = np.int64(mem.load_u16(name))
    if known == name_of(tag):
        return False
    if known:
        before = heads + PAIR * (((known & TAKEN - 1) << NAME_BITS | place) & heads_mask)
        for write in (False, True):
            if not merge(mine, own + side, before + side, write):
                return False
            if not merge(other, own + (side ^ 4), before + (side ^ 4), write):
                return False
    mem.store_u16(name, np.uint16(name_of(tag)))
    mem.store_i64(own, mem.load_i64(heads + PAIR * (tag & heads_mask)))
    return True
