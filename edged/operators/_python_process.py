"""One child process of a `python` operator, as the daemon sees it.

A child starts beside the beats: a thread hands it its code, its states and the batches since they
were saved, and wakes the heart when it is ready.  A batch is exchanged within a beat, with a
deadline.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from edged.documents.units import show_duration
from edged.operators.python_child import channel

ENDS_BYTES = 64
"""Of an Arrow stream, beside its schema and its batches."""
START_S = 60.0
"""Longest time that a child may take to load its code and its states."""
_KEPT = ("PATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "TZ", "VIRTUAL_ENV")
"""Environment that a child has of the daemon's: no tokens and no settings."""
_SINGLE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

Bounds = Sequence[tuple[int, int, int]]
"""Partition, first row and end of its rows."""


class ChildFailed(Exception):
    """A child has ended, does not answer in time or answers garbage.

    `partition` was in work (`channel.IDLE`: none).  `killed`: by SIGKILL, which may have come from
    outside.
    """

    def __init__(self, reason: str, partition: int = channel.IDLE, killed: bool = False) -> None:
        self.partition, self.killed = partition, killed
        super().__init__(reason)


@dataclass(frozen=True)
class ChildBatch:
    """A batch for a child: an Arrow stream, and the rows of its partitions."""

    data: bytes
    bounds: Bounds


def batch_of(batch: pa.RecordBatch, bounds: Bounds) -> ChildBatch:
    """A batch as `PythonChild.request` gives it, without a child."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return ChildBatch(sink.getvalue().to_pybytes(), bounds)


@dataclass
class Resumption:
    """What a new child starts from: saved states, and the batches since."""

    states: Mapping[int, bytes] = field(default_factory=dict)
    requests: Sequence[ChildBatch] = ()


class PythonChild:
    """A running child; `ready` after its start.  Made and used on the heart's thread only."""

    def __init__(
        self, code: dict[str, Any], resumption: Resumption, wake: Callable[[], None]
    ) -> None:
        """Start it.  Raises OSError where the system has no room for it."""
        with ExitStack() as opened:
            self._inbox = channel.Area.new("inbox")
            opened.callback(self._inbox.close)
            self._outbox = channel.Area.new("outbox")
            opened.callback(self._outbox.close)
            self._socket, theirs = socket.socketpair()
            opened.callback(self._socket.close)
            files = (theirs.fileno(), self._inbox.file, self._outbox.file)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-s", "-m", "edged.operators.python_child", str(files[0])],
                    pass_fds=files, stdin=subprocess.DEVNULL, env=_environment(), cwd="/",
                )  # fmt: skip
            opened.pop_all()
        self._code = {**code, "inbox": files[1], "outbox": files[2], "parent": os.getpid()}
        self.ready = False
        self.refused = ""
        """Why its start has failed."""
        self.enforced: list[str] = []
        """The limits that the kernel enforces on it."""
        self._number, self._asked = 0, (0, cast(Bounds, ()))
        self._started = threading.Event()
        self._finalizer = weakref.finalize(self, _end, self._process, self._socket)
        call = (resumption, wake)
        threading.Thread(target=self._start, args=call, name="edged-child", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def await_start(self) -> None:
        """Return when it is ready or has failed."""
        self._started.wait()

    def ask(self, batch: pa.RecordBatch, bounds: Bounds, save: bool) -> None:
        """Hand it a batch; `answer` gets the outcome.  Raises ChildFailed."""
        try:
            most = pa.ipc.get_record_batch_size(batch) + batch.schema.serialize().size + ENDS_BYTES
            memory = memoryview(self._inbox.grown(most))[:most]
            sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            self._asked = sink.tell(), bounds
            self._send(*self._asked, save, False)
        except OSError as problem:
            raise ChildFailed(self._why(problem)) from problem

    def request(self) -> ChildBatch:
        """The batch that it was handed last, as a copy."""
        size, bounds = self._asked
        return ChildBatch(bytes(memoryview(self._inbox.of(size))[:size]), bounds)

    def answer(self, deadline_s: float | None) -> Answer:
        """The outcome of the batch; without a deadline wait for ever.  Raises ChildFailed."""
        try:
            found = channel.receive(self._socket, lambda: self._wait(deadline_s))
            outputs = [(n, self._batch(offset, size)) for n, offset, size in found["outputs"]]
            memory = self._outbox
            states = {p: bytes(memory.of(at + n)[at : at + n]) for p, at, n in found["states"]}
            failed = {int(p): str(reason) for p, reason in found["failed"]}
            return Answer(outputs, states, failed, str(found["unsaved"]), int(found["us"]))
        except TimeoutError as problem:
            raise ChildFailed(str(problem), self._outbox.marked()) from problem
        except (OSError, EOFError, ValueError, KeyError, TypeError, pa.ArrowException) as problem:
            why, at = self._why(problem), self._outbox.marked()
            raise ChildFailed(why, at, self._process.poll() == -signal.SIGKILL) from problem

    def save(self) -> Mapping[int, bytes]:
        """The states that have changed since they were saved last.  Raises ChildFailed."""
        try:
            self._send(self._asked[0], (), True, True)
        except OSError as problem:
            raise ChildFailed(self._why(problem)) from problem
        return self.answer(None).states

    def end(self) -> None:
        """Kill it.  Ending again does nothing."""
        if self._finalizer.alive:
            self._finalizer()
            self._started.wait()
            self._inbox.close()
            self._outbox.close()

    def _start(self, resumption: Resumption, wake: Callable[[], None]) -> None:
        """The thread that waits for the child."""
        deadline_s = time.monotonic() + START_S
        try:
            channel.send(self._socket, {"code": self._code})
            found = self._receive(deadline_s)
            if "refused" in found:
                raise ChildFailed(found["refused"])
            self.enforced = found["ready"]["enforced"]
            self._load(resumption, deadline_s)
            self.ready = True
        except ChildFailed as problem:
            self.refused = str(problem)
        except Exception as problem:  # the frames of a user's process may be anything
            self.refused = self._why(problem)
        self._started.set()
        wake()

    def _load(self, resumption: Resumption, deadline_s: float) -> None:
        placed, at = [], 0
        for partition, data in resumption.states.items():
            self._inbox.grown(at + len(data))[at : at + len(data)] = data
            placed.append([partition, at, len(data)])
            at += len(data)
        if placed:
            channel.send(self._socket, {"load": placed})
            self._receive(deadline_s)
        for request in resumption.requests:
            size = len(request.data)
            self._inbox.grown(size)[:size] = request.data
            self._send(size, request.bounds, False, True)
            if failed := self._receive(deadline_s)["failed"]:
                raise ChildFailed(f"fails on rows on which it did not fail before: {failed[0][1]}")

    def _send(self, size: int, bounds: Bounds, save: bool, quiet: bool) -> None:
        self._number += 1
        frame = {"run": self._number, "size": size, "bounds": bounds, "save": save, "quiet": quiet}
        channel.send(self._socket, frame)

    def _receive(self, deadline_s: float) -> Any:
        return channel.receive(self._socket, lambda: self._wait(deadline_s))

    def _wait(self, deadline_s: float | None) -> None:
        if deadline_s is None:
            return
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        left_s = deadline_s - time.monotonic()
        if not poller.poll(max(0, 1000 * left_s)):
            raise TimeoutError("takes longer than its timeout")

    def _batch(self, offset: int, size: int) -> pa.RecordBatch:
        memory = pa.py_buffer(self._outbox.of(offset + size)).slice(offset, size)
        with pa.ipc.open_stream(memory) as opened:
            batch = opened.read_next_batch()
        batch.validate(full=True)
        return batch

    def _why(self, problem: Exception) -> str:
        """Why the child does not answer."""
        if isinstance(problem, TimeoutError):
            return f"does not start within {show_duration(int(1e6 * START_S))}"
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(0.5)
            if code < 0:
                return f"its process was ended by {signal.Signals(-code).name}"
            return f"its process has ended with {code}"
        return f"its process answers garbage: {problem}"


@dataclass(frozen=True)
class Answer:
    """The outcome of a batch."""

    outputs: Sequence[tuple[str, pa.RecordBatch]]
    """By output name, in the order of the partitions.  They lie in shared memory until the next
    batch."""
    states: Mapping[int, bytes]
    failed: Mapping[int, str]
    """Partitions whose rows raised an exception, with reasons."""
    unsaved: str
    """Why the states could not be saved."""
    us: int
    """Time in the child."""


def _environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    path = root if not inherited else f"{root}{os.pathsep}{inherited}"
    kept = {key: os.environ[key] for key in _KEPT if key in os.environ}
    more = {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    return {**kept, **dict.fromkeys(_SINGLE, "1"), **more}


def _end(process: subprocess.Popen[bytes], sock: socket.socket) -> None:
    process.kill()
    process.wait()
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
