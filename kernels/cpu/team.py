"""Work handed from thread to thread without the interpreter.

A thread that gets its work from Python has to wake, and then to wait until it may run Python: 0.15
to 0.25 ms on a virtual machine, as long as a short beat takes.  Here each thread of a team stays in
`serve`, without the interpreter, at a seat of its own: a piece of memory into which who leads puts
the address of a task (see `kernels.registry.task`) and its argument.  Whoever waits looks at the
other's counter for as long as waking would cost, about, and then sleeps until it is woken: so at
most twice of what is best is spent on waiting, without knowing how long it will be (Karlin,
Manasse, McGeoch and Owicki 1994, "Competitive randomized algorithms for nonuniform problems").

A seat is 256 bytes, its two halves written by one side each, so that no line is written by both:

    TURN      commands given so far; the low half is a futex
    FUNCTION, ARGUMENT   of the last; FUNCTION 0: leave, there is something for Python
    AWAITED   1 where who leads sleeps until the command is done
    DONE      commands done so far; the low half is a futex
    RESULT    of the last; BEGAN_NS, ENDED_NS: when (CLOCK_MONOTONIC)
    ASLEEP    1 where the thread sleeps until there is a command
    CLOCK     16 bytes for clock_gettime

Waking loses nothing: who goes to sleep says so and then lets the kernel compare the counter once
more; the other counts first and then looks whether anybody sleeps; both with sequentially
consistent instructions.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu import atomics, mem
from kernels.cpu.rings import get, put
from kernels.registry import device, kernel

TURN, FUNCTION, ARGUMENT, AWAITED = 0, 8, 16, 24
DONE, RESULT, BEGAN_NS, ENDED_NS, ASLEEP, CLOCK = 128, 136, 144, 152, 160, 168
SEAT_BYTES = 256
CALL_FUNCTION, CALL_ARGUMENT, CALL_RESULT, CALL_BEGAN_NS, CALL_ENDED_NS = range(5)
CALL_FIELDS = 8
"""A row of `calls`: what to call with what; then what it answered, when it was begun and ended."""
LOOKS = 32
"""Looks at a counter between two looks at the clock."""

_ARM = platform.machine() in ("aarch64", "arm64")
_FUTEX = 98 if _ARM else 202
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_MONOTONIC = 1

_long, _int = types.int64, types.int32
_syscall = types.ExternalFunction("syscall", _long(_long, _long, _long, _long, _long, _long, _long))
_clock_gettime = types.ExternalFunction("clock_gettime", _int(_int, _long))


@intrinsic
def pause(typingctx: Any) -> Any:
    """Tell the CPU that the thread does nothing but wait."""

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
    """CLOCK_MONOTONIC, as `time.monotonic_ns` tells it."""
    _clock_gettime(_int(_MONOTONIC), seat + CLOCK)
    return mem.load_i64(seat + CLOCK) * 1_000_000_000 + mem.load_i64(seat + CLOCK + 8)


@device
def wait(counter: int, seen: int, sleeps: int, clock: int, most_ns: int) -> None:
    """Until the counter is not `seen` any more: awake for up to `most_ns`, then asleep, which is
    told at `sleeps`.  `clock` is the waiting thread's seat."""
    if atomics.acquire_i64(counter) != seen:
        return
    until = now_ns(clock) + most_ns
    while True:
        for _ in range(LOOKS):
            if atomics.acquire_i64(counter) != seen:
                return
            pause()
        if now_ns(clock) >= until:
            break
    atomics.add_i64(sleeps, 1)
    while atomics.acquire_i64(counter) == seen:
        _syscall(_FUTEX, counter, _WAIT_PRIVATE, seen & 0xFFFFFFFF, 0, 0, 0)
    atomics.add_i64(sleeps, -1)


@device
def advance(counter: int, sleeps: int) -> None:
    """Count one more, and wake who sleeps until that."""
    atomics.add_i64(counter, 1)
    if atomics.acquire_i64(sleeps) != 0:
        _syscall(_FUTEX, counter, _WAKE_PRIVATE, 1, 0, 0, 0)


@kernel("void(int64, int64)", twin="tests.naive.team.serve")
def serve(seat: int, most_ns: int) -> None:
    """Do what is put into the seat, until there is something for Python."""
    while True:
        wait(seat + TURN, atomics.acquire_i64(seat + DONE), seat + ASLEEP, seat, most_ns)
        function = mem.load_i64(seat + FUNCTION)
        if function != 0:
            mem.store_i64(seat + BEGAN_NS, now_ns(seat))
            mem.store_i64(seat + RESULT, call(function, mem.load_i64(seat + ARGUMENT)))
            mem.store_i64(seat + ENDED_NS, now_ns(seat))
        advance(seat + DONE, seat + AWAITED)
        if function == 0:
            return


@device
def give(seat: int, function: int, argument: int) -> None:
    """Put a command into a seat whose last one is done."""
    mem.store_i64(seat + FUNCTION, function)
    mem.store_i64(seat + ARGUMENT, argument)
    advance(seat + TURN, seat + ASLEEP)


@kernel("void(int64, int64, int64)", twin="tests.naive.team.dismiss")
def dismiss(seats: int, count: int, most_ns: int) -> None:
    """Let the threads of the first `count` seats leave `serve`; those that are still on their way
    to it do so as soon as they are there."""
    for k in range(count):
        seat = seats + SEAT_BYTES * (k + 1)
        wait(seat + DONE, atomics.acquire_i64(seat + TURN) - 1, seat + AWAITED, seats, most_ns)
        give(seat, 0, 0)


@device
def run_all(seats: int, calls: int, count: int, most_ns: int) -> None:
    """All calls side by side, the first of them on this thread; `seats` begins with this thread's,
    and there is one for each call."""
    size = 8 * CALL_FIELDS
    for k in range(1, count):
        seat = seats + SEAT_BYTES * k
        wait(seat + DONE, atomics.acquire_i64(seat + TURN) - 1, seat + AWAITED, seats, most_ns)
        give(seat, get(calls + size * k, CALL_FUNCTION), get(calls + size * k, CALL_ARGUMENT))
    put(calls, CALL_BEGAN_NS, now_ns(seats))
    put(calls, CALL_RESULT, call(get(calls, CALL_FUNCTION), get(calls, CALL_ARGUMENT)))
    put(calls, CALL_ENDED_NS, now_ns(seats))
    for k in range(1, count):
        seat = seats + SEAT_BYTES * k
        wait(seat + DONE, atomics.acquire_i64(seat + TURN) - 1, seat + AWAITED, seats, most_ns)
        put(calls + size * k, CALL_RESULT, mem.load_i64(seat + RESULT))
        put(calls + size * k, CALL_BEGAN_NS, mem.load_i64(seat + BEGAN_NS))
        put(calls + size * k, CALL_ENDED_NS, mem.load_i64(seat + ENDED_NS))


@kernel("void(int64, int64[:, ::1], int64)", twin="tests.naive.team.run")
def run(seats: int, calls: Any, most_ns: int) -> None:
    """`run_all`, of an array."""
    run_all(seats, np.int64(calls.ctypes.data), calls.shape[0], most_ns)
