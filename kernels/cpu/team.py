"""Work handed from thread to thread in compiled code.

A thread that gets work from Python must wake up and then wait for the interpreter: 0.15 to 0.25 ms
on a virtual machine, as long as a short beat.  Each thread of a team therefore stays in `serve`,
which holds no interpreter lock, at a seat of its own.  The leader publishes a table of calls (a
task, see `kernels.registry.task`, and its argument).  All threads, the leader included, claim the
next call with an atomic decrement until none is left, so that no thread waits for one that wakes
late or whose core is slower or shared.  `share` says how to cut work into calls.

A waiting thread spins for about the time of a wake-up, and then sleeps.  It spends at most twice
the optimum, without knowing how long it will wait (Karlin, Manasse, McGeoch and Owicki 1994,
"Competitive randomized algorithms for nonuniform problems").

The first seat is the leader's.  It describes the team and the work:

    COUNT                the threads, the leader included
    PATIENCE_NS          how long the leader spins for the others
    AWAKE_NS             how long the others spin for work
    ASLEEP_WORTH_NS, AWAKE_WORTH_NS   work that is worth a sleeping thread, and an awake one
    CALLS, CALL_COUNT    the table
    TICKETS              calls that are not claimed; none if below 1
    PENDING              calls that are not done; a futex of the leader; AWAITED: 1 if it sleeps
    LAST_NS              when the team's last work was done; on a line that no other thread reads

The other seats have 256 bytes as well.  The leader writes the first half, apart from what seldom
changes, and the thread writes the second, so that no line moves between cores without need:

    TURN      incremented for new work; its low half is a futex
    LEAVE     1 if the thread must return to Python; the thread resets it
    ASLEEP    1 while the thread sleeps
    SEEN      TURN when the thread last read it
    CLOCK     16 bytes for clock_gettime, in every seat

No wake-up is lost.  A thread that goes to sleep sets its flag, and the kernel compares the counter
once more; the other side changes the counter first and then reads the flag.  Both use sequentially
consistent instructions.  The table changes only when all of its calls are done: a thread that comes
late finds no ticket, or one of the next table.
"""

from __future__ import annotations

import platform
from typing import Any, NamedTuple

import numpy as np

from kernels.compiler import cgutils, intrinsic, ir, types
from kernels.cpu import atomics, mem
from kernels.cpu.records import ADDRESS, I64, field, get, keep, put, words
from kernels.registry import device, kernel

COUNT, PATIENCE_NS, AWAKE_NS, ASLEEP_WORTH_NS, AWAKE_WORTH_NS = 0, 8, 16, 24, 32
CALLS, CALL_COUNT, TICKETS, PENDING, AWAITED = 48, 56, 128, 136, 144
TURN, LEAVE, ASLEEP, SEEN = 0, 8, 16, 128
LAST_NS, CLOCK = 192, 208
SEAT_BYTES = 256


class TaskCall(NamedTuple):
    """A row of the table of calls: 128 bytes, so that no two threads write to one cache line."""

    function: ADDRESS = field("task to call")
    argument: I64 = field("its argument")
    result: I64 = field("what it answered")
    began_ns: I64 = field("when it began (CLOCK_MONOTONIC)")
    ended_ns: I64 = field("when it ended")


CALL = words(TaskCall)
CALL_FIELDS = 16
SHARES = 4
"""Calls for each thread."""
LOOKS = 32
"""Reads of a counter between two reads of the clock."""

_ARM = platform.machine() in ("aarch64", "arm64")
_FUTEX = 98 if _ARM else 202
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_MONOTONIC = 1

_long, _int = types.int64, types.int32
_syscall = types.ExternalFunction("syscall", _long(_long, _long, _long, _long, _long, _long, _long))
_clock_gettime = types.ExternalFunction("clock_gettime", _int(_int, _long))


@intrinsic
def pause(typingctx: Any) -> Any:
    """Hint to the CPU that the thread spins."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds, values = ([ir.IntType(32)], [15]) if _ARM else ([], [])
        name = "llvm.aarch64.isb" if _ARM else "llvm.x86.sse2.pause"
        hint = ir.FunctionType(ir.VoidType(), kinds)
        function = cgutils.get_or_insert_function(builder.module, hint, name)
        builder.call(function, [ir.Constant(k, v) for k, v in zip(kinds, values, strict=True)])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call(typingctx: Any, function: Any, argument: Any) -> Any:
    """Call the `int64(int64)` at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(args[0], ir.FunctionType(word, [word]).as_pointer())
        return builder.call(pointer, [args[1]])

    return types.int64(types.int64, types.int64), codegen


@device
def now_ns(seat: int) -> Any:
    """CLOCK_MONOTONIC, the clock of `time.monotonic_ns`."""
    _clock_gettime(_int(_MONOTONIC), seat + CLOCK)
    return mem.load_i64(seat + CLOCK) * 1_000_000_000 + mem.load_i64(seat + CLOCK + 8)


@device
def looked(counter: int, seen: int, same: bool, seat: int, most_ns: int) -> bool:
    """Spin for up to `most_ns` while a counter is `seen` (`same`), or until it is; returns whether
    that has ended.  `seat` is the waiting thread's."""
    if (atomics.acquire_i64(counter) == seen) != same:
        return True
    until = now_ns(seat) + most_ns
    while True:
        for _ in range(LOOKS):
            if (atomics.acquire_i64(counter) == seen) != same:
                return True
            pause()
        if now_ns(seat) >= until:
            return False


@device
def sleep(counter: int, value: int) -> None:
    """Sleep at a counter until woken, unless its value is not `value` any more."""
    _syscall(_FUTEX, counter, _WAIT_PRIVATE, value & 0xFFFFFFFF, 0, 0, 0)


@device
def wake(counter: int, sleeps: int) -> None:
    """Wake the thread that sleeps at a counter, if the flag at `sleeps` is set; the counter was
    changed before."""
    if atomics.ordered_i64(sleeps) != 0:
        _syscall(_FUTEX, counter, _WAKE_PRIVATE, 1, 0, 0, 0)


@device
def take_part(seats: int, seat: int) -> None:
    """Claim and run calls until none is left."""
    while True:
        left = atomics.add_i64(seats + TICKETS, -1)
        if left < 1:
            return
        at = mem.load_i64(seats + CALLS)
        at += 8 * CALL_FIELDS * (mem.load_i64(seats + CALL_COUNT) - left)
        put(at, CALL.began_ns, now_ns(seat))
        put(at, CALL.result, call(get(at, CALL.function), get(at, CALL.argument)))
        put(at, CALL.ended_ns, now_ns(seat))
        if atomics.add_i64(seats + PENDING, -1) == 1:
            wake(seats + PENDING, seats + AWAITED)


@kernel("void(int64, int64)", reference="tests.naive.team.run")
def serve(seats: int, number: int) -> None:
    """Run calls of all tables, until the thread must return to Python."""
    seat = seats + SEAT_BYTES * number
    while True:
        seen = mem.load_i64(seat + SEEN)
        if not looked(seat + TURN, seen, True, seat, mem.load_i64(seats + AWAKE_NS)):
            atomics.add_i64(seat + ASLEEP, 1)
            while atomics.ordered_i64(seat + TURN) == seen:
                sleep(seat + TURN, seen)
            atomics.add_i64(seat + ASLEEP, -1)
        mem.store_i64(seat + SEEN, atomics.acquire_i64(seat + TURN))
        if atomics.acquire_i64(seat + LEAVE) == 1:
            atomics.release_i64(seat + LEAVE, 0)
            return
        take_part(seats, seat)


@device
def nudge(seat: int) -> None:
    """Announce new work to a thread."""
    atomics.add_i64(seat + TURN, 1)
    wake(seat + TURN, seat + ASLEEP)


@kernel("void(int64, int64)", reference="tests.naive.team.run")
def dismiss(seats: int, count: int) -> None:
    """Make the first `count` threads leave `serve`, also those that have not reached it yet.  None
    of them may have an earlier dismissal that it has not followed."""
    for k in range(1, count + 1):
        atomics.release_i64(seats + SEAT_BYTES * k + LEAVE, 1)
        nudge(seats + SEAT_BYTES * k)


@device
def awake(seats: int) -> Any:
    """Whether there are other threads and one is awake, or would be: work was done just now."""
    count = mem.load_i64(seats + COUNT)
    if count == 1:
        return False
    found = now_ns(seats) - mem.load_i64(seats + LAST_NS) < mem.load_i64(seats + AWAKE_NS)
    for k in range(1, count):
        found |= atomics.acquire_i64(seats + SEAT_BYTES * k + ASLEEP) == 0
    return found


@device
def threads_for(seats: int, work_ns: int, others_awake: bool, eager: int) -> Any:
    """The number of threads that some work is worth; work counts `eager` times if others are
    awake."""
    worth_ns = mem.load_i64(seats + ASLEEP_WORTH_NS)
    if others_awake:
        worth_ns = mem.load_i64(seats + AWAKE_WORTH_NS)
        work_ns *= eager
    return min(mem.load_i64(seats + COUNT), max(1, work_ns // worth_ns))


@device
def expect(seats: int) -> None:
    """Prefetch the line that handing over work writes first."""
    mem.prefetch_to_write(seats + TICKETS)


@device
def share(size: int, threads: int, k: int) -> Any:
    """Where call `k` begins, of the SHARES * threads that work of `size` is cut into (one, for one
    thread).  Each round of calls has half of the remaining work, so that threads of any speed end
    together (Hummel, Schonberg and Flynn 1992, "Factoring"); the last round has all of it."""
    if threads == 1:
        return size * k
    whole, parts = k // threads, k % threads
    done = 8 * threads - ((8 * threads) >> min(whole, SHARES - 1))
    each = 8 >> min(whole + 1, SHARES - 1)
    return size * (done + each * parts + (threads if whole == SHARES else 0)) // (8 * threads)


@device
def leave_off(seats: int) -> None:
    """Note that the team's work is done for now."""
    if mem.load_i64(seats + COUNT) > 1:
        mem.store_i64(seats + LAST_NS, now_ns(seats))


@device
def run_all(seats: int, calls: int, count: int, threads: int) -> None:
    """Run all calls of a table on `threads` threads of the team, this one included."""
    keep(seats + CALLS, 0, calls)
    keep(seats + CALL_COUNT, 0, count)
    atomics.release_i64(seats + PENDING, count)
    atomics.release_i64(seats + TICKETS, count)
    for k in range(1, min(threads, count)):
        nudge(seats + SEAT_BYTES * k)
    take_part(seats, seats)
    if looked(seats + PENDING, 0, False, seats, mem.load_i64(seats + PATIENCE_NS)):
        return
    atomics.add_i64(seats + AWAITED, 1)
    while True:
        left = atomics.ordered_i64(seats + PENDING)
        if left == 0:
            break
        sleep(seats + PENDING, left)
    atomics.add_i64(seats + AWAITED, -1)


@kernel("void(int64, int64[:, ::1])", reference="tests.naive.team.run")
def run(seats: int, calls: Any) -> None:
    """`run_all` of an array, on all threads."""
    run_all(seats, np.int64(calls.ctypes.data), calls.shape[0], mem.load_i64(seats + COUNT))
