"""As-of joins: each left row meets the right row of its key that is nearest before or after it.

Both sides come with slots (`kernels.cpu.key_slots`), sorted by time.  A walk takes the rows of both
in one order of time and keeps an `AsofKey` in the words of each slot from `word` on.  Left rows
that wait for a later right row are numbered; `waiting` has an `AsofRow` for each number from
`first` on.  Right rows are numbered, too.  Each call does the rows of one lane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu.key_slots import is_mine
from kernels.cpu.records import I64, field, words
from kernels.registry import device, kernel


class AsofKey(NamedTuple):
    """The state of a key."""

    last: I64 = field("number of its latest right row, plus one; 0: none")
    time: I64 = field("time of that row (us)")
    head: I64 = field("number of the newest left row that waits, plus one; 0: none")
    ended: I64 = field("the `head` that the latest right row has found")


class AsofRow(NamedTuple):
    """A left row that waits."""

    next: I64 = field("number of the row of its key before it that waits, plus one; 0: none")
    match: I64 = field("number of the right row found so far, plus one; 0: none")
    gap: I64 = field("distance to that row (us); GAP_NONE: none")
    done: I64 = field("1: no nearer row can come")
    born: I64 = field("its number among all rows, as that of a slot's first row")
    due: I64 = field("latest time of a left row taken before it, and its own (us)")


KEY, ROW = words(AsofKey), words(AsofRow)
GAP_NONE = 2**62
_SIDES = (
    "int64, int64, uint64[::1], int32[::1], int64[::1], uint64[::1], int32[::1], int64[::1],"
    " int64[:, ::1], int64"
)


@device
def take_last(group: Any, word: int, number: int, time: int) -> None:
    """Make a right row its key's latest, unless a late one."""
    if group[word + KEY.last] == 0 or time >= group[word + KEY.time]:
        group[word + KEY.last], group[word + KEY.time] = number + 1, time


@kernel(f"void({_SIDES}, int64, int64, int64[::1])", reference="tests.naive.asof.join")
def match_before(
    lane: int, lanes: int, left_hashes: Any, left_slots: Any, left_times: Any, right_hashes: Any,
    right_slots: Any, right_times: Any, groups: Any, word: int, number: int, tolerance: int,
    match: Any,
) -> None:  # fmt: skip
    """Write the number of each left row's match, the latest right row at its time or before, at
    most `tolerance` us; -1: none.  Right row j has the number `number + j`."""
    j = 0
    for i in range(left_times.size + 1):
        while j < right_times.size and (i == left_times.size or right_times[j] <= left_times[i]):
            if right_slots[j] >= 0 and (lanes == 1 or is_mine(right_hashes[j], lane, lanes)):
                take_last(groups[right_slots[j]], word, number + j, right_times[j])
            j += 1
        if i == left_times.size or not (lanes == 1 or is_mine(left_hashes[i], lane, lanes)):
            continue
        match[i] = -1
        if left_slots[i] >= 0:
            group = groups[left_slots[i]]
            gap = left_times[i] - group[word + KEY.time]
            if group[word + KEY.last] > 0 and 0 <= gap <= tolerance:
                match[i] = group[word + KEY.last] - 1


@device
def decide(row: Any, number: int, decided: Any) -> None:
    """Note that no nearer row can come."""
    row[ROW.done] = 1
    decided[0] += 1
    decided[decided[0]] = number


@device
def end_waits(
    group: Any, word: int, number: int, oldest: int, time: int, tolerance: int, nearest: int,
    times: Any, waiting: Any, first: int, decided: Any,
) -> None:  # fmt: skip
    """Give a right row to the left rows of its key that wait, and to those that the right row of
    the same time before it has ended, where it is `nearest`."""
    again = nearest != 0 and group[word + KEY.last] > oldest and group[word + KEY.time] == time
    if again:
        p = group[word + KEY.ended]
        while p > first:
            row = waiting[p - 1 - first]
            if row[ROW.match] == group[word + KEY.last]:
                row[ROW.match] = number + 1
            p = row[ROW.next]
    else:
        group[word + KEY.ended] = group[word + KEY.head]
    p, tail = group[word + KEY.head], np.int64(0)
    group[word + KEY.head] = 0
    while p > first:
        row = waiting[p - 1 - first]
        after, gap = row[ROW.next], time - times[p - 1 - first]
        if gap < 0:  # the right row is late: this one waits on, in its order
            if tail == 0:
                group[word + KEY.head] = p
            else:
                waiting[tail - 1 - first, ROW.next] = p
            tail = p
        elif row[ROW.done] == 0:
            decide(row, p - 1, decided)
            if gap <= tolerance and (nearest == 0 or gap <= row[ROW.gap]):
                row[ROW.match], row[ROW.gap] = number + 1, gap
        p = after
    if tail != 0:
        waiting[tail - 1 - first, ROW.next] = 0


@kernel(
    f"void({_SIDES}, int64, int64, int64, int64, int64, int64[::1], int64[:, ::1], int64,"
    " int64[::1])",
    reference="tests.naive.asof.join",
)
def match_after(
    lane: int, lanes: int, left_hashes: Any, left_slots: Any, left_times: Any, right_hashes: Any,
    right_slots: Any, right_times: Any, groups: Any, word: int, number: int, oldest: int,
    tolerance: int, nearest: int, left_number: int, times: Any, waiting: Any, first: int,
    decided: Any,
) -> None:  # fmt: skip
    """Have the left rows wait, and find the first right row at their time or after, or the nearest
    one: the later of two as near, and of one time the last.

    Left row i has the number `left_number + i`; `times` and `waiting` begin with the number
    `first`, and the right rows that are kept with `oldest`.  `decided` gets their count and then
    the numbers of left rows that are decided.
    """
    j = 0
    decided[0] = 0
    for i in range(left_times.size + 1):
        while j < right_times.size and (
            i == left_times.size or right_times[j] < left_times[i] + nearest
        ):
            if right_slots[j] >= 0 and (lanes == 1 or is_mine(right_hashes[j], lane, lanes)):
                group, time = groups[right_slots[j]], right_times[j]
                if group[word + KEY.last] <= oldest:
                    group[word + KEY.last] = 0
                end_waits(
                    group, word, number + j, oldest, time, tolerance, nearest, times, waiting,
                    first, decided,
                )  # fmt: skip
                take_last(group, word, number + j, time)
            j += 1
        if i == left_times.size or not (lanes == 1 or is_mine(left_hashes[i], lane, lanes)):
            continue
        row = waiting[left_number + i - first]
        row[ROW.next], row[ROW.match], row[ROW.gap], row[ROW.done] = 0, 0, GAP_NONE, 0
        if left_slots[i] < 0:
            decide(row, left_number + i, decided)
            continue
        group = groups[left_slots[i]]
        gap = left_times[i] - group[word + KEY.time]
        if nearest != 0 and group[word + KEY.last] > oldest and 0 <= gap <= tolerance:
            row[ROW.match], row[ROW.gap] = group[word + KEY.last], gap
        if row[ROW.gap] == 0:
            decide(row, left_number + i, decided)
        else:
            row[ROW.next] = group[word + KEY.head]
            group[word + KEY.head] = left_number + i + 1
