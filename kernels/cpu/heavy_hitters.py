"""Chains of their own for hot keys, in large rings of `kernels.cpu.rings`.

Where keys are skewed, a hot key's entries fill the chain that its tag falls to, and a record of
another key that falls there has to walk past all of them: hundreds to thousands of links, each of
them a miss, and alone, since few records meet such a chain.  With zipf keys that was a fifth of the
time at 10^7 rows a side.

So a partition with many chains has NAMES more, with a name each: a tag whose name stands there
hangs in that chain instead of its usual one.  Who suffers says which keys are hot: where a walk was
long alone (`kernels.cpu.walk`), the key that it passes gets a chain of its own.  To look for hot
keys among entries that are inserted, every 64th, was 0.9 of the speed with zipf keys at 10^7.

The chain begins as the usual one's head, of both sides, so that what was there before is still met,
and leaves with the window.  A name is given to another key when hardly anything alive hangs in its
chain any more: that is hung back into the usual one.

A name is 1 << 15 and the tag's 15 bits above those that say which of the names it is: together they
hold all the bits that choose a usual chain, so that tags that share a name share that, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.rings import (
    ENTRY,
    HEADS,
    HEADS_MASK,
    NEXT,
    PAIR,
    RING,
    RING_MASK,
    TAIL,
    get,
)
from kernels.registry import device

NAME_BITS = 10
NAMES = 1 << NAME_BITS
"""Chains of a partition that have names: zipf keys at 10^7 1.05 times as fast as with 256, with
4096 1.02 times (medians of eight and of four pairs of processes); at 10^6 no difference."""
TAKEN = 1 << 15
CHAINS_MIN, CHAINS_MAX = 1 << 16, TAKEN << NAME_BITS
"""A partition with fewer chains, or more, has none: where windows are small walks are short."""
NAMES_BYTES = PAIR * NAMES + 2 * NAMES
"""What they take, behind the others' heads: heads, then names (uint16)."""
MERGED_MAX = 32
"""Links that are looked at, at the most, to hang a chain into another."""


@device
def names_of(mine: int) -> Any:
    """The address of a partition's names; 0 where it has none."""
    heads_mask = get(mine, HEADS_MASK)
    if heads_mask < CHAINS_MIN - 1 or heads_mask >= CHAINS_MAX:
        return 0
    return (get(mine, HEADS) & -PAIR) + PAIR * (heads_mask + 1 + NAMES)


@device
def name_of(tag: int) -> Any:
    """What stands where a tag's name does."""
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
    """Hang the live entries of the chain whose head is at `own` into the one whose head is at
    `usual`, positions falling; False, or would it be where not `write`, where that is much to do.

    From an entry on, who walks either of them meets all that was behind it, and maybe more.
    """
    ring, mask, tail = get(mine, RING), get(mine, RING_MASK), get(mine, TAIL)
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
    """Give a tag a chain of its own, if it has none, and its name is free or of a key that has
    become cold; whether that is so."""
    side, heads, names = get(mine, HEADS) & PAIR - 1, get(mine, HEADS) & -PAIR, names_of(mine)
    heads_mask, place = get(mine, HEADS_MASK), tag & NAMES - 1
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
