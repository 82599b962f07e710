"""A whole beat of the chain join, in one call from Python.

The 64 partitions are cut into contiguous ranges, which the threads of a team take one after the
other (`kernels.cpu.team`).  Each range has a lane with an output of its own.  Laid one after the
other, the lanes' pairs are in the order of partitions, whatever the number of lanes and threads.

The time of a record is learnt from beat to beat.  Another thread is used where its share of the
work takes longer than handing it over: some 150 us for a thread that sleeps, 1 to 2 us for one that
is awake.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kernels.cpu import mem, pool, pooled, team
from kernels.cpu.chunk import FULL, GATHER, JOB, LANE, NO_ROOM, SPREAD, begin
from kernels.cpu.insert import point_all
from kernels.cpu.partition import PARTITIONS
from kernels.cpu.records import ADDRESS, I64, field, get, keep, put, words
from kernels.cpu.rings import LINE, PART, RING
from kernels.cpu.team import CALL, CALL_FIELDS
from kernels.registry import device, kernel, task


class Desk(NamedTuple):
    """What joins a beat, and what is learnt from beat to beat."""

    job: ADDRESS = field("the JoinJob (`kernels.cpu.chunk`)")
    lanes: ADDRESS = field("the table of lanes: a Dealt each")
    calls: ADDRESS = field("a call of the team for each lane (`kernels.cpu.team`)")
    seats: ADDRESS = field("the team's seats")
    threads: I64 = field("threads of the team")
    pipeline: ADDRESS = field("the task `chain.join`")
    lay: ADDRESS = field("the task `lay`")
    row_ps: I64 = field("time of one thread for a record (ps), learnt")
    ranges: I64 = field("ranges of partitions, or pools, of this beat")
    task: ADDRESS = field("the task that joins this beat")
    worked_ns: I64 = field("time of all threads in this beat")
    patience: I64 = field("suitable beats to come before pools are made")
    pooled: ADDRESS = field("the task `pooled.join`")
    pairs_in_1024: I64 = field("pairs of 1 024 records, learnt")
    at_work: I64 = field("threads that join this beat")
    wanted: I64 = field("pools that suit this beat")


class Dealt(NamedTuple):
    """A row of the table of lanes."""

    lane: ADDRESS = field("the LaneState")
    answer: I64 = field("what its task answered")


DESK, DEALT = words(Desk), words(Dealt)
DESK_FIELDS, DEALT_FIELDS = 24, 2
FINE_NS = 100_000
"""Work of a thread (ns) from which on it is cut into SHARES ranges instead of one."""
MANY = 1 << 14
"""Pairs from which on all threads lay them out."""
FEW, TOO_MANY = 64, 128
"""Pairs of 1 024 records up to which long beats are pooled, and from which on they no longer are:
pairs of pools are written twice, and far apart."""
POOLS_MAX = 8
"""Pools of a side at most."""
EAGER, AT_EASE = 16, 7
"""Factors of the work in pools that decide whether an awake thread is used (5 us of work), and
whether a pool is made for it (11 us)."""
LEARN = 4
"""A beat has this part, 1 in LEARN, in what is learnt."""


@device
def total(counts: int) -> Any:
    """The sum of the int64[64] at an address."""
    rows = 0
    for p in range(PARTITIONS):
        rows += get(counts, p)
    return rows


@device
def deal(desk: int, threads: int) -> None:
    """Cut the partitions into ranges, or by pools, and set a lane to each."""
    job, lanes = get(desk, DESK.job), get(desk, DESK.lanes)
    lefts, rights = get(job, JOB.left_table), get(job, JOB.right_table)
    rows, ranges, pools = get(job, JOB.rows), threads, pool.count_of(lefts)
    put(desk, DESK.at_work, threads)
    put(desk, DESK.worked_ns, 0)
    for row in range(lanes, lanes + 8 * DEALT_FIELDS * pools, 8 * DEALT_FIELDS):
        put(row, DEALT.answer, FULL)
    if pools:
        put(desk, DESK.ranges, pools)
        return
    if threads > 1 and rows * get(desk, DESK.row_ps) // 1000 >= FINE_NS * threads:
        ranges *= team.SHARES
    put(desk, DESK.ranges, ranges)
    p, seen = 0, 0
    for k in range(ranges):
        first, aim = p, rows * (k + 1) // ranges
        if ranges > threads:
            aim = team.share(rows, threads, k + 1)
        if k == ranges - 1:
            p = PARTITIONS
        while p < PARTITIONS:
            more = get(lefts + PART * p, RING.batch_rows) + get(rights + PART * p, RING.batch_rows)
            if seen + more // 2 > aim:
                break
            seen += more
            p += 1
        row = lanes + 8 * DEALT_FIELDS * k
        begin(get(row, DEALT.lane), first, p)
        put(row, DEALT.answer, FULL)


@device
def call_all(desk: int, function: int, threads: int) -> bool:
    """Call a task for each lane whose answer is FULL; returns whether none answers FULL again."""
    lanes, calls, done = get(desk, DESK.lanes), get(desk, DESK.calls), True
    end, call = lanes + 8 * DEALT_FIELDS * get(desk, DESK.ranges), calls
    for row in range(lanes, end, 8 * DEALT_FIELDS):
        if get(row, DEALT.answer) == FULL:
            keep(call, CALL.function, function)
            keep(call, CALL.argument, get(row, DEALT.lane))
            call += 8 * CALL_FIELDS
    if call == calls:
        return True
    team.run_all(get(desk, DESK.seats), calls, (call - calls) // (8 * CALL_FIELDS), threads)
    call = calls
    for row in range(lanes, end, 8 * DEALT_FIELDS):
        if get(row, DEALT.answer) == FULL:
            put(row, DEALT.answer, get(call, CALL.result))
            done &= get(call, CALL.result) != FULL
            worked_ns = get(call, CALL.ended_ns) - get(call, CALL.began_ns)
            put(desk, DESK.worked_ns, get(desk, DESK.worked_ns) + worked_ns)
            call += 8 * CALL_FIELDS
    return done


@device
def pools_for(threads: int) -> int:
    """The number of pools for so many threads: the largest power of two that is not above it."""
    pools = 1
    while 2 * pools <= min(threads, POOLS_MAX):
        pools *= 2
    return pools


@device
def poolable(desk: int, rows: int, pools: int, wanted: int) -> bool:
    """Whether a beat of `rows` records can be joined in the pools that there are, or is worth new
    ones (`pools` 0): short beats are; longer ones if few records match and each thread has a
    pool."""
    if pools > get(desk, DESK.threads):  # there are fewer lanes
        return False
    few = get(desk, DESK.pairs_in_1024) < (TOO_MANY if pools else FEW)
    each = pools == 0 or pools >= wanted
    return rows <= (pooled.RECORDS_MAX if few and each else pool.SHORT)


@device
def choose(desk: int, rows: int, pools: int) -> Any:
    """Choose the task that joins a beat of `rows` records; returns the number of threads, or SPREAD
    or GATHER where that must be done first."""
    seats, work_ns = get(desk, DESK.seats), rows * get(desk, DESK.row_ps) // 1000
    awake = team.awake(seats)
    eager = team.threads_for(seats, work_ns, awake, EAGER)
    wanted = pools_for(team.threads_for(seats, work_ns, awake, AT_EASE))
    wanted = min(max(pools, wanted), pools_for(eager))
    fits = poolable(desk, rows, pools, wanted)
    if pools and not fits:
        return SPREAD
    if fits and pools != wanted:
        put(desk, DESK.wanted, wanted)
        put(desk, DESK.patience, get(desk, DESK.patience) - 1)
        if get(desk, DESK.patience) == 0:
            return GATHER
    if pools:
        put(desk, DESK.task, get(desk, DESK.pooled))
        return min(eager, pools)
    threads = team.threads_for(seats, work_ns, awake, 1)
    put(desk, DESK.task, get(desk, DESK.pipeline))
    return threads


@device
def learn(desk: int, place: int, found: int) -> None:
    """Let this beat's part of what is learnt of a record count: `found` of all its records."""
    rows, old = get(get(desk, DESK.job), JOB.rows), get(desk, place)
    if rows:
        put(desk, place, old + (found // rows - old) // LEARN)


@task(reference="tests.naive.chain.lay")
def lay(lane: int) -> int:
    """Copy a lane's pairs to `lay_left` and `lay_right`."""
    copy_pairs(lane, get(lane, LANE.lay_left), get(lane, LANE.lay_right))
    return 0


@device
def copy_pairs(lane: int, left: int, right: int) -> None:
    """Copy a lane's pairs to `left` and `right`."""
    size = 8 * get(lane, LANE.pairs)
    mem.copy_bytes(left, get(lane, LANE.out_left), size)
    mem.copy_bytes(right, get(lane, LANE.out_right), size)


@device
def lay_out(desk: int) -> Any:
    """Lay the lanes' pairs one after the other, behind the first lane's; returns their number, or
    FULL where that lane has no room."""
    lanes, ranges, pairs = get(desk, DESK.lanes), get(desk, DESK.ranges), 0
    first = get(lanes, DEALT.lane)
    left, right, room = get(first, LANE.out_left), get(first, LANE.out_right), get(first, LANE.room)
    rest, end = lanes + 8 * DEALT_FIELDS, lanes + 8 * DEALT_FIELDS * ranges
    for row in range(lanes, end, 8 * DEALT_FIELDS):
        pairs += get(get(row, DEALT.lane), LANE.pairs)
    if pairs > room:
        return FULL
    at, few = 8 * get(first, LANE.pairs), pairs <= MANY
    for row in range(rest, end, 8 * DEALT_FIELDS):
        lane = get(row, DEALT.lane)
        if few:
            copy_pairs(lane, left + at, right + at)
        elif get(lane, LANE.pairs):
            put(lane, LANE.lay_left, left + at)
            put(lane, LANE.lay_right, right + at)
            put(row, DEALT.answer, FULL)
        at += 8 * get(lane, LANE.pairs)
    if not few:
        call_all(desk, get(desk, DESK.lay), get(desk, DESK.threads))
    return pairs


@device
def refusal(desk: int) -> Any:
    """SPREAD or NO_ROOM, if a lane answered so; else 0."""
    answer, lanes = 0, get(desk, DESK.lanes)
    for row in range(lanes, lanes + 8 * DEALT_FIELDS * get(desk, DESK.ranges), 8 * DEALT_FIELDS):
        if get(row, DEALT.answer) in (SPREAD, NO_ROOM):
            answer = get(row, DEALT.answer)
    return answer


@device
def finish(desk: int) -> Any:
    """Join from where the lanes stand; returns the number of pairs, FULL, SPREAD or NO_ROOM."""
    done = call_all(desk, get(desk, DESK.task), get(desk, DESK.at_work))
    refused = refusal(desk)
    if refused:
        return refused
    if not done:
        return FULL
    if get(desk, DESK.threads) == 1:
        return get(get(desk, DESK.lanes), DEALT.answer)
    if get(desk, DESK.worked_ns):
        learn(desk, DESK.row_ps, 1000 * get(desk, DESK.worked_ns))
        put(desk, DESK.worked_ns, 0)
    pairs = lay_out(desk)
    team.leave_off(get(desk, DESK.seats))
    return pairs


@kernel("int64(int64)", reference="tests.naive.chain.join")
def resume(desk: int) -> Any:
    """Continue after FULL, with more room in the lanes that were full, or in the first."""
    pairs = finish(desk)
    if pairs >= 0:
        learn(desk, DESK.pairs_in_1024, 1024 * pairs)
    return pairs


@kernel(
    "int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)",
    reference="tests.naive.chain.join",
)
def beat(
    desk: int, left: int, left_counts: int, right: int, right_counts: int, left_base: int,
    right_base: int, left_bound: int, right_bound: int, everything: int,
) -> Any:  # fmt: skip
    """Join the records of both sides, given by address, as are their counts for each partition.

    Bit 0 of `everything` says that all of the left's rows leave after the beat, bit 1 the right's.
    Returns the number of pairs, which lie in the first lane's output; FULL: call `resume` with more
    room; NO_ROOM: the rings must grow; SPREAD: pools must be taken apart; GATHER: (another number
    of) pools must be made.  After the last three the beat has changed nothing and is called again.
    """
    job = get(desk, DESK.job)
    if get(desk, DESK.at_work) > 1:
        mem.prefetch_to_write(job)
        mem.prefetch_to_write(job + LINE)
        team.expect(get(desk, DESK.seats))
    rows = total(left_counts) + total(right_counts)
    lefts, rights = get(job, JOB.left_table), get(job, JOB.right_table)
    pools = pool.count_of(lefts)
    if pools == 0 and point_all(lefts, left, left_counts) + point_all(rights, right, right_counts):
        return NO_ROOM
    threads = choose(desk, rows, pools)
    if threads < 0:
        return threads
    left_gone, right_gone = get(job, JOB.left_bound), get(job, JOB.right_bound)
    put(job, JOB.left_batch, left)
    put(job, JOB.left_counts, left_counts)
    put(job, JOB.right_batch, right)
    put(job, JOB.right_counts, right_counts)
    put(job, JOB.left_base, left_base)
    put(job, JOB.right_base, right_base)
    put(job, JOB.left_bound, left_bound)
    put(job, JOB.right_bound, right_bound)
    put(job, JOB.left_all, everything & 1)
    put(job, JOB.right_all, everything >> 1)
    put(job, JOB.rows, rows)
    put(job, JOB.beats, get(job, JOB.beats) + 1)
    deal(desk, threads)
    pairs = finish(desk)
    if pairs in (SPREAD, NO_ROOM):  # the beat counts as not joined
        for k in range(pools):
            pool.undo(lefts + PART * k)
            pool.undo(rights + PART * k)
        put(job, JOB.left_bound, left_gone)
        put(job, JOB.right_bound, right_gone)
    if pairs >= 0:
        learn(desk, DESK.pairs_in_1024, 1024 * pairs)
    return pairs
