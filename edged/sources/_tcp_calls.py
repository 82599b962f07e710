"""Socket calls for many connections at once: compiled loops over libc that run without the GIL.

The *socket table* has a row for each connection, indexed by its descriptor; queues are arrays of
descriptors.  No call blocks.  Rows that need a Python object are returned to the caller.

    wait      events of an edge-triggered epoll → queue
    receive   queue → bytes in the arena, each after the kept beginning of a message (`tails`)
    keep      unconsumed bytes in the arena → `tails`
    send      acknowledgements → sockets

Cost of a connection with 1000 loopback connections on one thread: 2.0 µs to receive and decode a
message of 50 rows, 4.7 µs to acknowledge it.  The rest is the kernel (`recv` 2 µs, `send` 5 µs).
"""

from __future__ import annotations

import platform
import select
import socket
from typing import Any

from kernels import registry
from kernels.compiler import types
from kernels.cpu.mem import copy_bytes, load_i32, load_u32, store_i64, store_u32

# A row of the socket table.
S_WAY = 0
S_QUEUED = 1  # 1: in the ready queue or in its feed's waiting queue
S_HUNG = 2  # 1: the peer has closed or the connection broke; sent bytes may still be there
S_FEED, S_SLOT = 3, 4
S_TAIL = 5  # bytes kept in its row of `tails`
S_BURST = 6  # bytes received since the socket was last empty
S_BLOCKED = 7  # 1: frames wait until the peer reads
LINE_WIDTH = 8

CLOSED, SINGLE, MANY = 0, 1, 2
"""S_WAY: no connection; received individually; received by `receive`."""
TAIL_BYTES = 4096
"""Longest kept beginning of a message; one page, allocated by first use."""

# A received region, in arena order.
G_FEED, G_SLOT, G_FD, G_START, G_LENGTH = 0, 1, 2, 3, 4
REGION_WIDTH = 5

# What `receive` returns: the rows of `out`, and the length of each.
O_LATER, O_AGAIN, O_HELD, O_SINGLE, O_LOST = 0, 1, 2, 3, 4
OUT_WIDTH = 5

EVENTS_MAX = 1024
EVENT_BYTES = 12 if platform.machine() in ("x86_64", "AMD64", "i686", "i386") else 16
"""struct epoll_event: u32 mask, then (packed on x86) 64 bits whose low 32 are the descriptor."""
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

MODULE = "edged.sources._tcp_calls"


def prepare() -> None:
    """Compile everything here, or load it from numba's cache.  Other argument types raise after
    that."""
    registry.close_loops(MODULE)


@registry.loop("int64(int64, int64, int64[:, ::1], int64[::1], int64, int64[::1])")
def wait(epoll: int, events: int, lines: Any, queue: Any, queued: int, writable: Any) -> Any:
    """Append connections with input after the first `queued` of `queue`; returns the new length.

    `events` is the address of EVENTS_MAX events.  `writable[0]` is the number of connections whose
    peer reads again, `writable[1:]` are their descriptors; when it is full, the rest comes with the
    next call.
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


@registry.loop(
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
    """Receive once from each connection of `queue` that is MANY, while the arena has room.

    `sizes`: least room in the arena to continue, most and least bytes for one connection.
    `budgets`: bytes that each feed may still take.  `totals`: regions, arena bytes used, bytes
    received, tail bytes consumed, largest burst; from index 5 on the length of each row of `out`:
    postponed, to be received from again, without budget, SINGLE, lost.
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


@registry.loop("int64(int64[::1], int64[::1], int64[::1], int64[:, ::1], uint8[:, ::1], int64)")
def keep(fds: Any, starts: Any, left: Any, lines: Any, tails: Any, way: int) -> Any:
    """Keep the `left` bytes at `starts` for each connection and set its S_WAY; returns their sum.

    Bytes that do not fit into a tail stay in `left`; kept ones become 0 there.
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


@registry.loop("int64(int64[::1], int64[::1], int64[::1], int64[:, ::1], int64, int64, int64[::1])")
def send(numbers: Any, seqs: Any, fds: Any, lines: Any, frame: int, kind: int, unsent: Any) -> Any:
    """Send each producer in `numbers` a frame of `kind` with its entry of `seqs`; returns the
    count.

    `fds[number]` is the producer's descriptor or -1, `frame` the address of 16 bytes.  `unsent[i]`
    is -1 if nothing remains to be done, else the number of bytes sent.
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
