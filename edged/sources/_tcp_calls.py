"""System calls for many connections at once: compiled loops over libc that run without the GIL.

A connection's *line* is a row of a table indexed by its descriptor; queues are arrays of
descriptors.  Nothing here blocks, and nothing here decides what needs a Python object: those lines
are handed back.

    wait      events of an edge-triggered epoll → queue
    receive   queue → bytes in the arena, each behind what its line had kept (`tails`)
    keep      what decoding left over in the arena → `tails`
    send      acknowledgements → sockets

Measured on one thread with 1000 loopback connections, before this was here and with it: a message
of 50 rows each, 6.0 → 2.0 µs a connection to receive and decode and 8.3 → 4.7 to acknowledge; ten
messages each and the beginning of one more, 13.2 → 9.2 and 7.8 → 6.4.  What is left is the kernel's
(`recv` 2, `send` 5) and the decoding, and none of it is done with the GIL held.
"""

from __future__ import annotations

import platform
import select
import socket
from collections.abc import Callable
from typing import Any

import numba
from numba import types

from kernels.cpu.mem import copy_bytes, load_i32, load_u32, store_i64, store_u32

# A line.
S_WAY = 0
S_QUEUED = 1  # 1: it is in the ready queue or in its feed's waiting one
S_HUNG = 2  # 1: the peer has closed, or the connection broke; what it sent may still be there
S_FEED, S_SLOT = 3, 4
S_TAIL = 5  # bytes kept in its row of `tails`
S_BURST = 6  # bytes received since the socket was last found empty
S_BLOCKED = 7  # 1: frames wait for the peer to read
LINE_WIDTH = 8

CLOSED, SINGLE, MANY = 0, 1, 2
"""S_WAY: no connection; one that is received from by itself; one that is received from here."""
TAIL_BYTES = 4096
"""Largest beginning of a message that a line keeps: a page, touched when first used."""

# A region that was received, in the order in which it lies in the arena.
G_FEED, G_SLOT, G_FD, G_START, G_LENGTH = 0, 1, 2, 3, 4
REGION_WIDTH = 5

# What `receive` hands back: rows of `out`, and how many are in each.
O_LATER, O_AGAIN, O_HELD, O_SINGLE, O_LOST = 0, 1, 2, 3, 4
OUT_WIDTH = 5

EVENTS_MAX = 1024
EVENT_BYTES = 12 if platform.machine() in ("x86_64", "AMD64", "i686", "i386") else 16
"""struct epoll_event: u32 mask, then (packed on x86) 64 bits of which the low 32 are our fd."""
_DATA_AT = EVENT_BYTES - 8
_OUT = int(select.EPOLLOUT)
_GONE = int(select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP)
_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_EAGAIN, _EINTR = 11, 4
ACK_BYTES = 16

_int, _size = types.int32, types.int64
_recv = types.ExternalFunction("recv", _size(_int, _size, _size, _int))
_send = types.ExternalFunction("send", _size(_int, _size, _size, _int))
_epoll_wait = types.ExternalFunction("epoll_wait", _int(_int, _size, _int, _int))
_errno_at = types.ExternalFunction("__errno_location", _size())

_SIGNATURES: list[tuple[Any, str]] = []


def _compiled(signature: str) -> Callable[[Callable[..., Any]], Any]:
    def register(function: Callable[..., Any]) -> Any:
        loop = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
        _SIGNATURES.append((loop, signature))
        return loop

    return register


def prepare() -> None:
    """Compile everything here, or load it from numba's cache; other types are refused then."""
    while _SIGNATURES:
        loop, signature = _SIGNATURES.pop()
        loop.compile(signature)
        loop.disable_compile()


@_compiled("int64(int64, int64, int64[:, ::1], int64[::1], int64, int64[::1])")
def wait(epoll: int, events: int, lines: Any, queue: Any, queued: int, writable: Any) -> Any:
    """Put lines with input behind the first `queued` of `queue`; returns how many are in it then.

    `events` is the address of EVENTS_MAX events.  `writable[1:]` is filled with lines whose peer
    reads again, `writable[0]` says how many; when that is full, the rest is for the next call.
    """
    writable[0] = 0
    while writable[0] + EVENTS_MAX < writable.size:
        got = _epoll_wait(types.int32(epoll), events, types.int32(EVENTS_MAX), types.int32(0))
        for i in range(got):
            at = events + i * EVENT_BYTES
            mask, fd = load_u32(at), load_i32(at + _DATA_AT)
            if fd >= lines.shape[0] or lines[fd, S_WAY] == CLOSED:
                continue
            if mask & _GONE:
                lines[fd, S_HUNG] = 1
            if mask & _OUT:
                writable[0] += 1
                writable[writable[0]] = fd
            if mask != _OUT and lines[fd, S_QUEUED] == 0:
                lines[fd, S_QUEUED] = 1
                queue[queued] = fd
                queued += 1
        if got < EVENTS_MAX:
            break
    return queued


@_compiled(
    "void(int64[::1], int64[:, ::1], uint8[:, ::1], int64[::1], int64, int64, int64[::1],"
    " int64[:, ::1], int64[:, ::1], int64[::1])"
)
def receive(
    queue: Any,
    lines: Any,
    tails: Any,
    budgets: Any,
    arena: int,
    arena_bytes: int,
    sizes: Any,
    regions: Any,
    out: Any,
    totals: Any,
) -> None:
    """Receive once from each line of `queue` that is MANY, while the arena at `arena` has room.

    `sizes` = smallest room to go on with, most for one line, least for one line.  `budgets` are
    the bytes that each feed may still take.  `totals` = regions, arena bytes used, bytes received,
    tail bytes used up, largest burst, and from 5 on how many are in each row of `out`: left for
    later, to be received from again, without budget, SINGLE, and lost.
    """
    totals[:] = 0
    for fd in queue:
        way, feed, tail = lines[fd, S_WAY], lines[fd, S_FEED], lines[fd, S_TAIL]
        to = -1
        start = totals[1] + tail
        if way == CLOSED:
            lines[fd, S_QUEUED] = 0
            continue
        if feed >= 0 and budgets[feed] <= 0:
            to = O_HELD
        elif way == SINGLE:
            to = O_SINGLE
        elif arena_bytes - start < sizes[0]:
            to = O_LATER
        if to >= 0:
            out[to, totals[5 + to]] = fd
            totals[5 + to] += 1
            continue
        copy_bytes(arena + totals[1], tails[fd].ctypes.data, tail)
        wanted = min(arena_bytes - start, max(min(sizes[1], budgets[feed]), sizes[2]))
        got = _recv(types.int32(fd), arena + start, wanted, types.int32(_FLAGS))
        to = -1
        if got < 0:
            errno = load_i32(_errno_at())
            got = 0
            to = O_AGAIN if errno == _EINTR else -1 if errno == _EAGAIN else O_LOST
        elif got == 0:
            to = O_LOST
        elif got == wanted or lines[fd, S_HUNG]:
            to = O_AGAIN
        lines[fd, S_QUEUED] = int(to == O_AGAIN)
        if to >= 0:
            out[to, totals[5 + to]] = fd
            totals[5 + to] += 1
        if got == 0:
            continue
        lines[fd, S_BURST] += got
        totals[4] = max(totals[4], lines[fd, S_BURST])
        if got < wanted:
            lines[fd, S_BURST] = 0
        row = regions[totals[0]]
        row[G_FEED], row[G_SLOT], row[G_FD] = feed, lines[fd, S_SLOT], fd
        row[G_START], row[G_LENGTH] = arena + totals[1], tail + got
        lines[fd, S_TAIL] = 0
        budgets[feed] -= tail + got
        totals[0] += 1
        totals[1] += (tail + got + 7) & ~7
        totals[2] += got
        totals[3] += tail


@_compiled("int64(int64[::1], int64[::1], int64[::1], int64[:, ::1], uint8[:, ::1], int64)")
def keep(fds: Any, starts: Any, left: Any, lines: Any, tails: Any, way: int) -> Any:
    """Keep the `left` bytes at `starts` for each line, which goes `way` then; returns their sum.

    What is longer than a tail stays in `left`, what was kept becomes 0 there.
    """
    total = 0
    for i in range(fds.size):
        if left[i] <= TAIL_BYTES:
            fd = fds[i]
            copy_bytes(tails[fd].ctypes.data, starts[i], left[i])
            lines[fd, S_TAIL], lines[fd, S_WAY] = left[i], way
            total += left[i]
            left[i] = 0
    return total


@_compiled("int64(int64[::1], int64[::1], int64[::1], int64[:, ::1], int64, int64, int64[::1])")
def send(numbers: Any, seqs: Any, fds: Any, lines: Any, frame: int, kind: int, unsent: Any) -> Any:
    """Send each producer in `numbers` its frame of `kind` with `seqs`; returns how many are sent.

    `fds[number]` is a producer's descriptor or -1, `frame` 16 bytes of memory.  `unsent[i]` = -1
    where there is nothing more to do, else the bytes of the frame that were sent.
    """
    done = 0
    store_u32(frame, types.uint32(kind))
    store_u32(frame + 4, types.uint32(8))
    for i in range(numbers.size):
        unsent[i] = -1
        fd = fds[numbers[i]] if numbers[i] < fds.size else -1
        if fd < 0:
            continue
        if lines[fd, S_BLOCKED]:
            unsent[i] = 0
            continue
        store_i64(frame + 8, seqs[i])
        sent = _send(types.int32(fd), frame, ACK_BYTES, types.int32(_FLAGS))
        if sent == ACK_BYTES:
            done += 1
        else:
            unsent[i] = max(sent, 0)
    return done
