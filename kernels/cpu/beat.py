"""A whole beat of the chain join in one call from Python: where records are, who joins them, pairs.

The 64 partitions are cut into contiguous ranges, which the threads of a team take one after the
other (`kernels.cpu.team`).  Each range has a lane, with an output of its own; laid one after the
other, the lanes' pairs are in the order of partitions whatever their number.

How many threads.  From beat to beat it is learnt how long a record takes.  Another thread is worth
having where its share of the work takes longer than handing it over does: some 150 us where it has
to be woken, most of which the waking thread itself loses on a virtual machine, and 1 to 2 us where
it is awake, as it is where beats follow close on each other.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu import mem, pool, pooled, team
from kernels.cpu.chain import PARTITIONS
from kernels.cpu.chunk import (
    BEATS,
    FULL,
    GATHER,
    LEFT_ALL,
    LEFT_BASE,
    LEFT_BATCH,
    LEFT_BOUND,
    LEFT_COUNTS,
    LEFT_TABLE,
    NO_ROOM,
    OUT_LEFT,
    OUT_RIGHT,
    PAIRS,
    RIGHT_ALL,
    RIGHT_BASE,
    RIGHT_BATCH,
    RIGHT_BOUND,
    RIGHT_COUNTS,
    RIGHT_TABLE,
    ROOM,
    ROWS_IN,
    SPREAD,
    begin,
)
from kernels.cpu.rings import (
    BATCH_ROWS,
    LINE,
    PART,
    RECORD_BYTES,
    get,
    keep,
    point_ring,
    put,
)
from kernels.cpu.team import (
    CALL_ARGUMENT,
    CALL_BEGAN_NS,
    CALL_ENDED_NS,
    CALL_FIELDS,
    CALL_FUNCTION,
    CALL_RESULT,
)
from kernels.registry import device, kernel, task

(DESK_JOB, LANES, CALLS, SEATS, THREADS, ALONG, LAYING, ROW_PS, RANGES, WAY,
 WORKED_NS, PATIENCE, POOLED, PAIRS_IN_1024, AT_WORK, WANTED) = range(16)  # fmt: skip
DESK_FIELDS = 24
"""What `desk` (int64[24]) holds.  Addresses: of the job; of the table of lanes; of a row
of `team` calls for each; of the team's seats, and how many threads it has; of the tasks
`chain.join` and `lay`, and (POOLED) `chain.join_pooled`.

What is learnt: ROW_PS, the time of one thread for a record; PAIRS_IN_1024, how many pairs 1024
records have.  The beat at hand: RANGES or pools, the WAY, which is the task that joins them, how
long all threads worked, and AT_WORK, how many they are.  PATIENCE: after how many beats more that
suit partitions had better share rings, or other ones; WANTED, how many rings."""
LAY_LEFT, LAY_RIGHT = 22, 23
"""Two more fields of a lane (see `chunk`): where its pairs are to lie."""
LANE_AT, ANSWER = range(2)
LANE_ROW = 2
"""What the table of lanes (int64[n, 2]) holds: a lane's address; what its task answered."""
FINE_NS = 100_000
"""Work of a thread from which on it is cut finer than into a range each: 90 us of it, cut in eight,
took 61 us with two threads instead of 44."""
MANY = 1 << 14
"""Pairs that are worth all threads to lay out: 128 KB of each side's."""
FEW, TOO_MANY = 64, 128
"""Pairs of 1024 records up to which long beats, too, are pooled, and from which on no longer.
Beats of 10 000 with few matches gained 1.01 to 1.13, with zipf keys 1.10 and 1.19; with one match
it would be 0.78 to 0.91, since partitions' pairs are written twice, and far apart."""
POOLS_MAX = 8
"""Pools of a side at the most."""
EAGER, AT_EASE = 16, 7
"""With pools a thread that is awake is worth having for so many times less work (5 us), since it
finds its lines as it left them; to make a pool for it there must be more (11 us)."""
LEARN = 4
"""A beat changes what is learnt by one part in so many."""


@device
def total(counts: int) -> Any:
    """The sum of the int64[64] at an address."""
    rows = 0
    for p in range(PARTITIONS):
        rows += get(counts, p)
    return rows


@device
def point_all(side: int, records: int, counts: int) -> bool:
    """Tell a side's partitions where their records are; whether they have room."""
    fits = True
    for mine in range(side, side + PART * PARTITIONS, PART):
        count = mem.load_i64(counts)
        fits &= point_ring(mine, records, count)
        records += RECORD_BYTES * count
        counts += 8
    return fits


@device
def deal(desk: int, threads: int) -> None:
    """Cut the partitions into ranges, and set a lane to each; or one to each pool."""
    job, lanes = get(desk, DESK_JOB), get(desk, LANES)
    lefts, rights = get(job, LEFT_TABLE), get(job, RIGHT_TABLE)
    rows, ranges, pools = get(job, ROWS_IN), threads, pool.count_of(lefts)
    put(desk, AT_WORK, threads)
    put(desk, WORKED_NS, 0)
    for row in range(lanes, lanes + 8 * LANE_ROW * pools, 8 * LANE_ROW):
        put(row, ANSWER, FULL)
    if pools:
        put(desk, RANGES, pools)
        return
    if threads > 1 and rows * get(desk, ROW_PS) // 1000 >= FINE_NS * threads:
        ranges *= team.SHARES
    put(desk, RANGES, ranges)
    p, seen = 0, 0
    for k in range(ranges):
        first, aim = p, rows * (k + 1) // ranges
        if ranges > threads:
            aim = team.share(rows, threads, k + 1)
        if k == ranges - 1:
            p = PARTITIONS
        while p < PARTITIONS:
            more = get(lefts + PART * p, BATCH_ROWS) + get(rights + PART * p, BATCH_ROWS)
            if seen + more // 2 > aim:
                break
            seen += more
            p += 1
        row = lanes + 8 * LANE_ROW * k
        begin(get(row, LANE_AT), first, p)
        put(row, ANSWER, FULL)


@device
def call_all(desk: int, function: int, threads: int) -> bool:
    """Call a task for each lane that it answered FULL for; whether it does so no more."""
    lanes, calls, done = get(desk, LANES), get(desk, CALLS), True
    end, call = lanes + 8 * LANE_ROW * get(desk, RANGES), calls
    for row in range(lanes, end, 8 * LANE_ROW):
        if get(row, ANSWER) == FULL:
            keep(call, CALL_FUNCTION, function)
            keep(call, CALL_ARGUMENT, get(row, LANE_AT))
            call += 8 * CALL_FIELDS
    if call == calls:
        return True
    team.run_all(get(desk, SEATS), calls, (call - calls) // (8 * CALL_FIELDS), threads)
    call = calls
    for row in range(lanes, end, 8 * LANE_ROW):
        if get(row, ANSWER) == FULL:
            put(row, ANSWER, get(call, CALL_RESULT))
            done &= get(call, CALL_RESULT) != FULL
            worked_ns = get(call, CALL_ENDED_NS) - get(call, CALL_BEGAN_NS)
            put(desk, WORKED_NS, get(desk, WORKED_NS) + worked_ns)
            call += 8 * CALL_FIELDS
    return done


@device
def pools_for(threads: int) -> int:
    """How many pools a side should have: the power of two that is not above the threads."""
    pools = 1
    while 2 * pools <= min(threads, POOLS_MAX):
        pools *= 2
    return pools


@device
def poolable(desk: int, rows: int, pools: int, wanted: int) -> bool:
    """Whether a beat of so many rows is for as many pools as there are, or for new ones (0): short
    ones are, others if few match and there is a pool for each thread."""
    if pools > get(desk, THREADS):  # so many lanes there are
        return False
    few = get(desk, PAIRS_IN_1024) < (TOO_MANY if pools else FEW)
    each = pools == 0 or pools >= wanted
    return rows <= (pooled.RECORDS_MAX if few and each else pool.SHORT)


@device
def choose(desk: int, rows: int, pools: int) -> Any:
    """Choose the way that a beat of so many rows is joined, where there are so many pools; how many
    threads join it, or SPREAD or GATHER, where that is to be done first."""
    seats, work_ns = get(desk, SEATS), rows * get(desk, ROW_PS) // 1000
    awake = team.awake(seats)
    eager = team.threads_for(seats, work_ns, awake, EAGER)
    wanted = pools_for(team.threads_for(seats, work_ns, awake, AT_EASE))
    wanted = min(max(pools, wanted), pools_for(eager))
    fits = poolable(desk, rows, pools, wanted)
    if pools and not fits:
        return SPREAD
    if fits and pools != wanted:
        put(desk, WANTED, wanted)
        put(desk, PATIENCE, get(desk, PATIENCE) - 1)
        if get(desk, PATIENCE) == 0:
            return GATHER
    if pools:
        put(desk, WAY, get(desk, POOLED))
        return min(eager, pools)
    threads = team.threads_for(seats, work_ns, awake, 1)
    put(desk, WAY, get(desk, ALONG))
    return threads


@device
def undo_all(lefts: int, rights: int) -> None:
    """Take back what the beat at hand did to pools, all of which have begun with it."""
    for k in range(pool.count_of(lefts)):
        pool.undo(lefts + PART * k)
        pool.undo(rights + PART * k)


@device
def learn_pairs(desk: int, pairs: int) -> None:
    """How many of the beat's records matched."""
    rows, old = get(get(desk, DESK_JOB), ROWS_IN), get(desk, PAIRS_IN_1024)
    if rows:
        put(desk, PAIRS_IN_1024, old + (1024 * pairs // rows - old) // LEARN)


@device
def learn(desk: int) -> None:
    """What the beat at hand says of the next ones."""
    rows, old = get(get(desk, DESK_JOB), ROWS_IN), get(desk, ROW_PS)
    if rows:
        put(desk, ROW_PS, old + (1000 * get(desk, WORKED_NS) // rows - old) // LEARN)


@task(reference="tests.naive.chain.lay")
def lay(lane: int) -> int:
    """Copy a lane's pairs to where they are to lie."""
    copy_pairs(lane, get(lane, LAY_LEFT), get(lane, LAY_RIGHT))
    return 0


@device
def copy_pairs(lane: int, left: int, right: int) -> None:
    """Copy a lane's pairs to `left` and `right`."""
    size = 8 * get(lane, PAIRS)
    mem.copy_bytes(left, get(lane, OUT_LEFT), size)
    mem.copy_bytes(right, get(lane, OUT_RIGHT), size)


@device
def lay_out(desk: int) -> Any:
    """Lay the lanes' pairs one after the other, behind the first lane's; how many there are, or
    FULL where that lane has no room."""
    lanes, ranges, pairs = get(desk, LANES), get(desk, RANGES), 0
    first = get(lanes, LANE_AT)
    left, right, room = get(first, OUT_LEFT), get(first, OUT_RIGHT), get(first, ROOM)
    rest, end = lanes + 8 * LANE_ROW, lanes + 8 * LANE_ROW * ranges
    for row in range(lanes, end, 8 * LANE_ROW):
        pairs += get(get(row, LANE_AT), PAIRS)
    if pairs > room:
        return FULL
    at, few = 8 * get(first, PAIRS), pairs <= MANY
    for row in range(rest, end, 8 * LANE_ROW):
        lane = get(row, LANE_AT)
        if few:
            copy_pairs(lane, left + at, right + at)
        elif get(lane, PAIRS):
            put(lane, LAY_LEFT, left + at)
            put(lane, LAY_RIGHT, right + at)
            put(row, ANSWER, FULL)
        at += 8 * get(lane, PAIRS)
    if not few:
        call_all(desk, get(desk, LAYING), get(desk, THREADS))
    return pairs


@device
def refusal(desk: int) -> Any:
    """What a lane answered that cannot join its part of the beat; 0 where none did."""
    answer, lanes = 0, get(desk, LANES)
    for row in range(lanes, lanes + 8 * LANE_ROW * get(desk, RANGES), 8 * LANE_ROW):
        if get(row, ANSWER) in (SPREAD, NO_ROOM):
            answer = get(row, ANSWER)
    return answer


@device
def finish(desk: int) -> Any:
    """Join from where all lanes stand; how many pairs, FULL, or SPREAD or NO_ROOM."""
    done = call_all(desk, get(desk, WAY), get(desk, AT_WORK))
    if refusal(desk):
        return refusal(desk)
    if not done:
        return FULL
    if get(desk, THREADS) == 1:
        return get(get(desk, LANES), ANSWER)
    if get(desk, WORKED_NS):
        learn(desk)
        put(desk, WORKED_NS, 0)
    pairs = lay_out(desk)
    team.leave_off(get(desk, SEATS))
    return pairs


@kernel("int64(int64)", reference="tests.naive.chain.join")
def resume(desk: int) -> Any:
    """Go on after FULL, with more room: for the lanes that answered so, or the first of all."""
    pairs = finish(desk)
    if pairs >= 0:
        learn_pairs(desk, pairs)
    return pairs


@kernel(
    "int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)",
    reference="tests.naive.chain.join",
)
def beat(
    desk: int,
    left: int,
    left_counts: int,
    right: int,
    right_counts: int,
    left_base: int,
    right_base: int,
    left_bound: int,
    right_bound: int,
    everything: int,
) -> Any:
    """Join both sides' records, which are given by address, as are the counts of each partition's.

    Bit 0 of `everything` says that all of the left's are dead afterwards, bit 1 the right's.
    Returns the number of pairs, which lie in the first lane's output; FULL; or what is to be done
    before it is called again: NO_ROOM, the rings must grow; SPREAD, they must be taken apart;
    GATHER, they are to be pooled, or in another number of pools.
    """
    job = get(desk, DESK_JOB)
    if get(desk, AT_WORK) > 1:
        mem.prefetch_to_write(job)
        mem.prefetch_to_write(job + LINE)
        team.expect(get(desk, SEATS))
    rows = total(left_counts) + total(right_counts)
    lefts, rights = get(job, LEFT_TABLE), get(job, RIGHT_TABLE)
    pools = pool.count_of(lefts)
    if pools == 0:
        fits = point_all(lefts, left, left_counts)
        if not (point_all(rights, right, right_counts) and fits):
            return NO_ROOM
    threads = choose(desk, rows, pools)
    if threads < 0:
        return threads
    left_gone, right_gone = get(job, LEFT_BOUND), get(job, RIGHT_BOUND)
    put(job, LEFT_BATCH, left)
    put(job, LEFT_COUNTS, left_counts)
    put(job, RIGHT_BATCH, right)
    put(job, RIGHT_COUNTS, right_counts)
    put(job, LEFT_BASE, left_base)
    put(job, RIGHT_BASE, right_base)
    put(job, LEFT_BOUND, left_bound)
    put(job, RIGHT_BOUND, right_bound)
    put(job, LEFT_ALL, everything & 1)
    put(job, RIGHT_ALL, everything >> 1)
    put(job, ROWS_IN, rows)
    put(job, BEATS, get(job, BEATS) + 1)
    deal(desk, threads)
    pairs = finish(desk)
    if refusal(desk):  # it is as if it was not joined
        undo_all(lefts, rights)
        put(job, LEFT_BOUND, left_gone)
        put(job, RIGHT_BOUND, right_gone)
    if pairs >= 0:
        learn_pairs(desk, pairs)
    return pairs
