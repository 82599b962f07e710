"""The handshake join: R flows left to right, S right to left, through a line of lanes.

The ecoJoin paper's multi-core baseline (Teubner and Mueller, "How soccer players would do stream
joins"), here in its low-latency form (Roy, Teubner and Gemulla): a tuple is forwarded through the
whole line at once and stays in one lane, its home, so that a beat's pairs are complete at the end
of the beat, and a lane communicates with its neighbours only.

        R blocks ->  +--------+   R blocks ->   +--------+   R blocks ->   +--------+
    new R   ---->    | lane 0 |  ------------>  | lane 1 |  ------------>  | lane 2 |
                     | R0  S0 |  <------------  | R1  S1 |  <------------  | R2  S2 |   <---- new S
                     +--------+  S blocks, acks +--------+  S blocks, acks +--------+

Lanes run concurrently, on any number of threads, and share queues only: rings of 64
messages with one producer and one consumer, each of which writes one counter.

A block is 64 records of the beat's batch.  On a block of R, lane i
  a. compares it with the segment S_i as it was before this beat;
  b. in lane 0: compares it with the blocks of S that have reached the end of the line;
  c. forwards it to the right, and sends an ack to the left.
On a block of S, lane i
  d. compares it with R_i as it was before this beat;
  e. compares it with the blocks of R in flight: those that have arrived here and are not yet acked
     by the right neighbour (at the right end, all until the beat is over);
  f. forwards it to the left.
In both cases, a block whose home is here is appended to the segment, invisible until the next beat.

Exactly once.  A new tuple passes every lane, so it meets each old tuple of the other side at that
one's home, and nowhere else.  Of two new tuples, R's block r and S's block s, follow s to the left:
at every lane it meets r if r has been there and has not been acked.  The ack for r leaves lane i+1
behind all blocks of S that lane i+1 sent before r came, and before all that it sent afterwards.  So
s meets r at lane i if and only if r came to lane i before s did, and to lane i+1 after s had left:
that is the one place where they cross.  If s reaches lane 0 before r enters there, r finds it by b.

No deadlock.  A lane takes a message only if there is room for what it causes.  Messages to the left
cause only messages to the left, and lane 0 sends none: those queues always drain.  Messages to the
right need room there and for one ack; the right end sends nothing on: so do they.

A queue (`MessageQueue`) is aligned to 64 bytes.  Its counters run mod 2^32.  Towards the right a
message is a block's number; towards the left twice the number, or 1 for an ack.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import atomics, mem
from kernels.cpu.nested_loop import (
    JOB,
    WINDOW,
    add,
    pair_up,
    scan,
)
from kernels.cpu.partition import RECORD_BYTES
from kernels.cpu.records import ADDRESS, I64, U32, field, offsets, size_of, words
from kernels.cpu.rings import earlier, later
from kernels.registry import device, kernel

BLOCK = 64
QUEUE_SLOTS = 64
ACK = 1


class MessageQueue(NamedTuple):
    """A queue of one producer and one consumer; each has a cache line to write to."""

    taken: U32 = field("messages ever taken; the consumer writes it")
    put: U32 = field("messages ever put; the producer writes it", at=64)
    messages: U32 = field(
        "messages, number k in slot k mod QUEUE_SLOTS", at=128, length=QUEUE_SLOTS
    )


class HandshakeLane(NamedTuple):
    """A lane's progress in a beat."""

    left_arrived: I64 = field("blocks of R received")
    left_acked: I64 = field("those of them that the right neighbour has acked")
    right_arrived: I64 = field("blocks of S received")
    pairs: I64 = field("pairs written")


class HandshakeBatch(NamedTuple):
    """A beat's records and the line's queues."""

    left_records: ADDRESS = field("records of R")
    right_records: ADDRESS = field("records of S")
    left_rows: I64 = field("number of R's records")
    right_rows: I64 = field("number of S's records")
    left_turn: I64 = field("home lane of R's block 0, the next ones following in turn")
    right_turn: I64 = field("home lane of S's block 0")
    queues: ADDRESS = field("queues: those to the right of each lane, then those to the left")


QUEUE, LANE, BATCH = offsets(MessageQueue), words(HandshakeLane), words(HandshakeBatch)
QUEUE_BYTES = size_of(MessageQueue)
LANE_FIELDS = 16
"""Length of a lane's row: 128 bytes, so that two lanes never share a cache line."""

DONE, WAITING, FULL = range(3)
SPINS = 400
"""Empty polls after which a lane yields."""


@device
def room(queue: int) -> Any:
    """Whether a queue has room for a message."""
    put, taken = mem.load_u32(queue + QUEUE.put), atomics.acquire_u32(queue + QUEUE.taken)
    return np.uint32(put - taken) < np.uint32(QUEUE_SLOTS)


@device
def slot_at(queue: int, number: Any) -> Any:
    """The address of a message's slot, by the message's number."""
    return queue + QUEUE.messages + 4 * np.int64(number & np.uint32(QUEUE_SLOTS - 1))


@device
def send(queue: int, message: int) -> None:
    """Put a message; the queue has room."""
    put = mem.load_u32(queue + QUEUE.put)
    mem.store_u32(slot_at(queue, put), np.uint32(message))
    atomics.release_u32(queue + QUEUE.put, np.uint32(put + np.uint32(1)))


@device
def first_message(queue: int) -> Any:
    """The oldest message, which stays; -1 for none."""
    put, taken = atomics.acquire_u32(queue + QUEUE.put), mem.load_u32(queue + QUEUE.taken)
    if put == taken:
        return np.int64(-1)
    return np.int64(mem.load_u32(slot_at(queue, taken)))


@device
def forget(queue: int) -> None:
    """Remove the oldest message."""
    taken = mem.load_u32(queue + QUEUE.taken)
    atomics.release_u32(queue + QUEUE.taken, np.uint32(taken + np.uint32(1)))


@device
def blocks(rows: int) -> int:
    """The number of blocks of a batch."""
    return (rows + BLOCK - 1) // BLOCK


@device
def cross(
    record: int,
    first: int,
    last: int,
    swapped: bool,
    job: Any,
    keys: Any,
    pairs: int,
    out_left: Any,
    out_right: Any,
) -> Any:
    """Compare a record with those of the other batch at addresses first..last; -1: no room."""
    back, ahead = (
        (job[JOB.after], job[JOB.before]) if swapped else (job[JOB.before], job[JOB.after])
    )
    base, met_base = (
        (job[JOB.right_base], job[JOB.left_base])
        if swapped
        else (job[JOB.left_base], job[JOB.right_base])
    )
    time, tag = mem.load_i64(record), mem.load_u32(record + 8)
    low, high = earlier(time, back), later(time, ahead)
    row = np.int64(np.uint32(mem.load_u32(record + 12) - np.uint32(base)))
    for at in range(first, last, RECORD_BYTES):
        if mem.load_u32(at + 8) == tag:
            when = mem.load_i64(at)
            if low <= when and when <= high:
                met = np.int64(np.uint32(mem.load_u32(at + 12) - np.uint32(met_base)))
                pairs = pair_up(row, met, swapped, keys, pairs, out_left, out_right)
                if pairs < 0:
                    return pairs
    return pairs


@device
def meet(
    block: int,
    batch: Any,
    swapped: bool,
    window: Any,
    others: Any,
    job: Any,
    keys: Any,
    pairs: int,
    out_left: Any,
    out_right: Any,
) -> Any:
    """Compare a block (of the right where `swapped`) with the visible part of a segment and with
    the blocks others[0]..others[1] of the other batch; returns the end of the pairs, -1 for no
    room."""
    mine, rows = (
        (batch[BATCH.right_records], batch[BATCH.right_rows])
        if swapped
        else (batch[BATCH.left_records], batch[BATCH.left_rows])
    )
    theirs, met = (
        (batch[BATCH.left_records], batch[BATCH.left_rows])
        if swapped
        else (batch[BATCH.right_records], batch[BATCH.right_rows])
    )
    first = theirs + RECORD_BYTES * min(met, BLOCK * others[0])
    last = theirs + RECORD_BYTES * min(met, BLOCK * others[1])
    for i in range(BLOCK * block, min(rows, BLOCK * block + BLOCK)):
        record = mine + RECORD_BYTES * i
        start, stop = window[WINDOW.start], window[WINDOW.visible]
        pairs = scan(record, window, start, stop, swapped, job, keys, pairs, out_left, out_right)
        if pairs >= 0:
            pairs = cross(record, first, last, swapped, job, keys, pairs, out_left, out_right)
        if pairs < 0:
            return pairs
    return pairs


@device
def settle(
    block: int, turn: int, lane: int, lanes: int, window: Any, records: int, rows: int, edges: Any
) -> None:
    """Append a block to its home's segment, if that is here."""
    if (block + turn) % lanes == lane:
        add(window, records, edges, BLOCK * block, min(rows, BLOCK * block + BLOCK))


@device
def queue_right(batch: Any, lanes: int, lane: int) -> Any:
    """The queue from a lane to its right neighbour."""
    return batch[BATCH.queues] + QUEUE_BYTES * lane


@device
def queue_left(batch: Any, lanes: int, lane: int) -> Any:
    """The queue from a lane to its left neighbour."""
    return batch[BATCH.queues] + QUEUE_BYTES * (lanes + lane)


@device
def take_left(
    lane: int,
    lanes: int,
    state: Any,
    batch: Any,
    edges: Any,
    job: Any,
    keys: Any,
    window: Any,
    other: Any,
    out_left: Any,
    out_right: Any,
) -> int:
    """Take the next block of R, if there is one and room for its messages."""
    block = state[LANE.left_arrived]
    if block == blocks(batch[BATCH.left_rows]):
        return WAITING
    if lane > 0:
        if first_message(queue_right(batch, lanes, lane - 1)) < 0:
            return WAITING
        if not room(queue_left(batch, lanes, lane)):
            return WAITING
    if lane < lanes - 1 and not room(queue_right(batch, lanes, lane)):
        return WAITING
    through = (0, state[LANE.right_arrived] if lane == 0 else 0)
    pairs = meet(
        block, batch, False, other, through, job, keys, state[LANE.pairs], out_left, out_right
    )
    if pairs < 0:
        return FULL
    state[LANE.pairs] = pairs
    rows, records = batch[BATCH.left_rows], batch[BATCH.left_records]
    settle(block, batch[BATCH.left_turn], lane, lanes, window, records, rows, edges)
    state[LANE.left_arrived] = block + 1
    if lane > 0:
        forget(queue_right(batch, lanes, lane - 1))
        send(queue_left(batch, lanes, lane), ACK)
    if lane < lanes - 1:
        send(queue_right(batch, lanes, lane), block)
    return DONE


@device
def take_right(
    lane: int,
    lanes: int,
    state: Any,
    batch: Any,
    edges: Any,
    job: Any,
    keys: Any,
    window: Any,
    other: Any,
    out_left: Any,
    out_right: Any,
) -> int:
    """Take the next block of S, or an ack, if there is one and room for its messages."""
    block = state[LANE.right_arrived]
    if lane < lanes - 1:
        message = first_message(queue_left(batch, lanes, lane + 1))
        if message < 0:
            return WAITING
        if message == ACK:
            forget(queue_left(batch, lanes, lane + 1))
            state[LANE.left_acked] += 1
            return DONE
    elif block == blocks(batch[BATCH.right_rows]):
        return WAITING
    if lane > 0 and not room(queue_left(batch, lanes, lane)):
        return WAITING
    flight = (state[LANE.left_acked], state[LANE.left_arrived])
    pairs = meet(
        block, batch, True, other, flight, job, keys, state[LANE.pairs], out_left, out_right
    )
    if pairs < 0:
        return FULL
    state[LANE.pairs] = pairs
    rows, records = batch[BATCH.right_rows], batch[BATCH.right_records]
    settle(block, batch[BATCH.right_turn], lane, lanes, window, records, rows, edges)
    state[LANE.right_arrived] = block + 1
    if lane < lanes - 1:
        forget(queue_left(batch, lanes, lane + 1))
    if lane > 0:
        send(queue_left(batch, lanes, lane), 2 * block)
    return DONE


@device
def over(lane: int, lanes: int, state: Any, batch: Any) -> Any:
    """Whether a lane has processed the whole beat and the queues towards it are empty."""
    left, right = blocks(batch[BATCH.left_rows]), blocks(batch[BATCH.right_rows])
    acked = lane == lanes - 1 or state[LANE.left_acked] == left
    return state[LANE.left_arrived] == left and state[LANE.right_arrived] == right and acked


@kernel(
    "int64(int64, int64, int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1])",
    reference="tests.naive.handshake.work",
)
def work(
    lane: int,
    lanes: int,
    states: Any,
    batch: Any,
    left_edges: Any,
    right_edges: Any,
    job: Any,
    keys: Any,
    left: Any,
    right: Any,
    out_left: Any,
    out_right: Any,
) -> int:
    """Run a lane until the beat is over for it (DONE), no message comes (WAITING: run other lanes,
    then call again) or its output is full (FULL: call again with more room)."""
    state = states[lane]
    spins = 0
    while not over(lane, lanes, state, batch):
        one = take_right(
            lane, lanes, state, batch, right_edges, job, keys, right, left, out_left, out_right
        )
        two = take_left(
            lane, lanes, state, batch, left_edges, job, keys, left, right, out_left, out_right
        )
        if one == FULL or two == FULL:
            return FULL
        if one == WAITING and two == WAITING:
            spins += 1
            if spins == SPINS:
                return WAITING
        else:
            spins = 0
    return DONE
