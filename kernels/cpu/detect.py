"""Patterns of steps: rows of a key that satisfy one condition after the other, within a time.

A row that satisfies the first step's condition starts an attempt; the first row after it that
satisfies the next step's condition advances it, until the last step is a match.  Attempts of a key
that have reached the same step advance together, so that they form a chain, newest first, whose
head is a word of the key's slot (`kernels.cpu.key_slots`): number plus one of the row that started
it, 0 for none.  `nodes` has a row of words for each kept row: the next older attempt of its chain,
then the rows of steps 1, 2, …, as numbers plus one.  Every chain is older than those of earlier
steps.  Rows are numbered; the first in memory is `base`, and attempts that started before the
number `oldest` are no more.  Newest first is by number: a late row may be over its time where those
behind it are not, so that a chain is followed to its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.key_slots import is_mine
from kernels.registry import device, kernel

MATCHES, ATTEMPTS, BROKEN = range(3)
"""Places in `counts`."""


@device
def has(bits: Any, step: int) -> Any:
    """Whether the bit of a step is set."""
    return (bits >> np.uint64(step)) & np.uint64(1) != np.uint64(0)


@device
def advance(
    group: Any, word: int, step: int, number: int, time: int, within: int, base: int, oldest: int,
    nodes: Any, times: Any,
) -> None:  # fmt: skip
    """Advance the attempts that wait for a step, but those that are over their time."""
    p, head, tail = group[word + step - 1], np.int64(0), np.int64(0)
    group[word + step - 1] = 0
    while p > oldest:
        row = p - 1 - base
        if time - times[row] <= within:
            nodes[row, step] = number + 1
            if tail == 0:
                head = p
            else:
                nodes[tail - 1 - base, 0] = p
            tail = p
        p = nodes[row, 0]
    if tail != 0:
        nodes[tail - 1 - base, 0] = group[word + step]
        group[word + step] = head


@device
def complete(
    group: Any, word: int, step: int, number: int, time: int, within: int, base: int, oldest: int,
    nodes: Any, times: Any, single: int, found: Any, counts: Any,
) -> Any:  # fmt: skip
    """Make matches of the attempts that wait for the last step: of all, or `single`, of the oldest.

    Returns whether there is one.
    """
    p, first = group[word + step - 1], counts[MATCHES]
    group[word + step - 1] = 0
    while p > oldest:
        row = p - 1 - base
        if time - times[row] <= within:
            at = first if single != 0 else counts[MATCHES]
            found[at, 0] = p - 1
            for s in range(1, step):
                found[at, s] = nodes[row, s] - 1
            found[at, step] = number
            counts[MATCHES] = at + 1
        p = nodes[row, 0]
    return counts[MATCHES] > first


@device
def break_off(
    group: Any, word: int, step: int, time: int, within: int, base: int, oldest: int, nodes: Any,
    times: Any, counts: Any,
) -> None:  # fmt: skip
    """Give up the attempts that wait for a step."""
    p = group[word + step - 1]
    group[word + step - 1] = 0
    while p > oldest:
        row = p - 1 - base
        counts[BROKEN] += time - times[row] <= within
        p = nodes[row, 0]


@kernel(
    "void(uint64[::1], int64, int64, int32[::1], int64[::1], uint64[::1], uint64[::1],"
    " int64[:, ::1], int64, int64, int64, int64, int64, int64, int64[:, ::1], int64[::1],"
    " int64[:, ::1], int64[::1])",
    reference="tests.naive.detect.matches",
)
def take_steps(
    hashes: Any, lane: int, lanes: int, slots: Any, wanted: Any, wheres: Any, unlesses: Any,
    groups: Any, word: int, within: int, single: int, number: int, base: int, oldest: int,
    nodes: Any, times: Any, found: Any, counts: Any,
) -> None:  # fmt: skip
    """Take the lane's rows, in order.  Row i has the number `number + i`, the time `wanted[i]`, and
    a bit for each step whose condition it satisfies (`wheres`) or that it forbids (`unlesses`).

    `found` gets the numbers of each match's rows, `counts` how many.  `single`: a match ends all
    attempts of its key, and its last row starts none.
    """
    last = found.shape[1] - 1
    for i in range(wanted.size):
        if lanes > 1 and not is_mine(hashes[i], lane, lanes):
            continue
        group, time, row = groups[slots[i]], wanted[i], number + i - base
        for s in range(nodes.shape[1]):
            nodes[row, s] = 0
        over = False
        for step in range(last, 0, -1):
            if over or group[word + step - 1] == 0:
                continue
            if has(wheres[i], step) and step == last:
                matched = complete(
                    group, word, step, number + i, time, within, base, oldest, nodes, times,
                    single, found, counts,
                )  # fmt: skip
                over = matched and single != 0
            elif has(wheres[i], step):
                advance(group, word, step, number + i, time, within, base, oldest, nodes, times)
            elif has(unlesses[i], step):
                break_off(group, word, step, time, within, base, oldest, nodes, times, counts)
        if over:
            for step in range(last):
                group[word + step] = 0
        elif has(wheres[i], 0):
            counts[ATTEMPTS] += 1
            nodes[row, 0] = group[word]
            group[word] = number + i + 1
