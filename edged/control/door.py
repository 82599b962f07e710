"""The control door: a unix socket that takes commands and answers with JSON documents.

A connection carries one request: a line of JSON `{"cmd": …, …}`, answered by one line of JSON,
either the result or `{"error": text, "kind": …, "where": …, "what": …, "do": …}` with a kind of
`CommandError.KINDS`.  Only `watch` stays open and gets further lines
(`edged.control.subscriptions`).  A command that takes time returns a Future, which another thread
or a later beat resolves.

The daemon serves the door between beats and never waits for a client: both directions are
non-blocking.  Connections beyond CLIENTS_MAX are closed, unless others have been idle for
IDLE_S_MAX without a complete request or without reading; then those are closed.

A JSON text is parsed in one call that holds the interpreter lock: about 1 ms for VALUES_MAX values
in REQUEST_BYTES_MAX.  A larger request is refused unparsed.  The API, the CLI and the demo are
clients of the door; there is no other way into the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from edged.control.subscriptions import Subscriber, Subscriptions
from edged.documents.bounds import check_json
from edged.errors import CommandError, ConfigError, EdgedError, JobError, StoreError
from edged.events.log import Events
from edged.events.publisher import EventPublisher
from edged.platform.clock import Clock

REQUEST_BYTES_MAX = 1 << 20
"""Twice the limit of a job document, whose JSON text may be twice as long as its file."""
VALUES_MAX = 1 << 15
"""A column of a job is one value; this is 30 streams with the most columns that a stream has."""
DISCARDED_BYTES_MAX = 64 << 20
"""Bytes of a request that is too large which are read and discarded, so that its sender gets the
refusal."""
CLIENTS_MAX = 64
IDLE_S_MAX = 10.0

Answer = dict[str, Any]
Handler = Callable[[dict[str, Any]], "Answer | Future[Any]"]
"""Executes a request.  Raises EdgedError; the future of an answer fails with one."""


class _Client:
    """A connection: its request, its unsent answer, and its subscription."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.request = bytearray()
        self.request_bytes = 0
        self.out = bytearray()
        self.is_answered = False
        """Whether the request is complete."""
        self.is_readable = True
        """Whether the client has not closed its end."""
        self.subscriber: Subscriber | None = None
        self.active_s = time.monotonic()
        """When it connected, or last read a part of its answer."""

    def receive(self, data: bytes) -> None:
        """Append to the request; a request that is too large is discarded."""
        self.request_bytes += len(data)
        if self.request_bytes > REQUEST_BYTES_MAX:
            self.request.clear()
        else:
            self.request += data

    def is_idle(self) -> bool:
        """Whether the daemon has waited for this client for longer than IDLE_S_MAX."""
        awaited = not self.is_answered or (self.out and self.subscriber is None)
        return bool(awaited) and time.monotonic() - self.active_s > IDLE_S_MAX


class Door:
    """The daemon's end of the socket.  `fileno` is readable when `serve` has work.

    `handler` executes commands on the thread of `serve`; `status` makes the status document for
    subscribers.
    """

    def __init__(
        self,
        path: Path,
        handler: Handler,
        clock: Clock,
        events: Events,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self.path = path
        self._handler = handler
        self._publisher = EventPublisher(events)
        self._epoll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._resolved: deque[tuple[_Client, Future[Any]]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._subscriptions = Subscriptions(clock, events, status, self._wake)
        self._epoll.register(self._subscriptions.fileno(), select.EPOLLIN)
        self._listener = _listen(path)
        self._epoll.register(self._listener.fileno(), select.EPOLLIN | select.EPOLLET)

    def fileno(self) -> int:
        """The epoll over the listener, the timer and all clients."""
        return self._epoll.fileno()

    def serve(self) -> None:
        """Read requests, execute complete ones, and write answers; never blocks."""
        has_new_clients = False
        for fd, events in self._epoll.poll(0):
            if fd == self._listener.fileno():
                has_new_clients = True
            elif fd == self._wake_fd:
                self._answer_resolved()
            elif fd in self._clients:
                client = self._clients[fd]
                if events & (select.EPOLLHUP | select.EPOLLERR):
                    self._drop(client)
                    continue
                if events & select.EPOLLIN:
                    self._read(client)
                if events & select.EPOLLOUT and fd in self._clients and self._flush(client):
                    self._notify(client)
        if has_new_clients:  # last, so that clients that have just sent do not count as idle
            self._accept()
        if self._subscriptions.due():
            for client in list(self._clients.values()):
                self._notify(client)
            self._subscriptions.arm()

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for client in list(self._clients.values()):
            self._drop(client)
        self._epoll.close()
        self._listener.close()
        os.close(self._wake_fd)
        self._subscriptions.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _accept(self) -> None:
        """Accept all new clients.  Without a free descriptor they wait until the next one comes."""
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                if len(self._clients) >= CLIENTS_MAX:
                    self._drop_idle()
                if len(self._clients) >= CLIENTS_MAX:
                    sock.close()
                    continue
                sock.setblocking(False)
                self._clients[sock.fileno()] = _Client(sock)
                self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _drop_idle(self) -> None:
        for client in [client for client in self._clients.values() if client.is_idle()]:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        try:
            data = client.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if client.is_answered:  # only its end is of interest
            client.is_readable = client.is_readable and bool(data)
            self._await(client)
            return
        client.receive(data)
        if data.endswith(b"\n"):
            client.is_answered, client.active_s = True, time.monotonic()
            self._execute(client)
        elif not data or client.request_bytes > DISCARDED_BYTES_MAX:
            self._drop(client)

    def _execute(self, client: _Client) -> None:
        try:
            if client.request_bytes > REQUEST_BYTES_MAX:
                raise _too_large(f"{client.request_bytes} bytes", f"{REQUEST_BYTES_MAX} bytes")
            request = _request(client.request)
            client.request.clear()
            if request.get("cmd") == "watch":
                client.subscriber = self._subscriptions.begin(request)
                self._notify(client)
                return
            answer = self._handler(request)
        except EdgedError as problem:
            self._send(client, refusal(problem))
        except Exception as problem:  # a defect in a command must not end the daemon
            self._publisher.peer_defect("door", "a client", problem)
            self._send(client, refusal(_defect(problem)))
        else:
            if not isinstance(answer, Future):
                self._send(client, answer)
            elif answer.done():
                self._send(client, _result(answer))
            else:
                answer.add_done_callback(partial(self._on_resolved, client))

    def _on_resolved(self, client: _Client, answer: Future[Any]) -> None:
        self._resolved.append((client, answer))
        self._wake()

    def _answer_resolved(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        while self._resolved:
            client, answer = self._resolved.popleft()
            if client.sock.fileno() in self._clients:
                self._send(client, _result(answer))

    def _send(self, client: _Client, answer: Answer) -> None:
        client.out += json.dumps(answer).encode() + b"\n"
        self._flush(client)

    def _notify(self, client: _Client) -> None:
        """Send a subscriber its next lines, once it has read all earlier ones."""
        if client.subscriber is None:
            return
        while not client.out and (line := self._subscriptions.line(client.subscriber)):
            client.out += line
            if not self._flush(client):
                return

    def _flush(self, client: _Client) -> bool:
        """Send buffered data; False where the connection is closed after that."""
        try:
            sent = client.sock.send(client.out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(client)
            return False
        if sent:
            client.active_s = time.monotonic()
        del client.out[:sent]
        if not client.out and client.subscriber is None:
            self._drop(client)
            return False
        self._await(client)
        return True

    def _await(self, client: _Client) -> None:
        """Poll for the next event of this client; epoll reports its end in any case."""
        readable = select.EPOLLIN if client.is_readable else 0
        writable = select.EPOLLOUT if client.out else 0
        self._epoll.modify(client.sock.fileno(), readable | writable)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.sock.fileno()]
        self._epoll.unregister(client.sock.fileno())
        client.sock.close()
        if client.subscriber is not None:
            self._subscriptions.end(client.subscriber)


def _result(answer: Future[Any]) -> Answer:
    """The document of a future that is done."""
    problem = answer.exception()
    if problem is None:
        result: Answer = answer.result()
        return result
    return refusal(problem if isinstance(problem, EdgedError) else _defect(problem))


def _defect(problem: BaseException) -> CommandError:
    return CommandError("failed", f"{type(problem).__name__}: {problem}", do="report it")


def refusal(problem: EdgedError) -> dict[str, Any]:
    """The answer that reports an error."""
    answer: Answer = {"error": str(problem)}
    if isinstance(problem, CommandError):
        answer |= {"kind": problem.kind, "where": problem.where, "what": problem.what}
        answer["do"] = problem.do
        return answer if problem.retry_s is None else answer | {"retry_s": problem.retry_s}
    if isinstance(problem, JobError):
        where = {"where": problem.path, "what": problem.problem, "do": problem.advice}
        return answer | {"kind": "invalid"} | where
    kind = "invalid" if isinstance(problem, ConfigError) else "failed"
    if isinstance(problem, StoreError) and type(problem).__name__ == "StoreFull":
        return answer | {
            "kind": "busy",
            "where": "",
            "what": str(problem),
            "do": "",
            "retry_s": 1.0,
        }
    return answer | {"kind": kind, "where": "", "what": str(problem), "do": ""}


def ask(path: Path | str, cmd: str, timeout_s: float = 30.0, **arguments: Any) -> Any:
    """Send a request and return its answer.

    Raises CommandError with the kind of an error answer, or `unreachable` where no daemon answers.
    """
    with _connected(path, {"cmd": cmd, **arguments}, timeout_s) as lines:
        for answer in lines:
            return answer
    raise CommandError("unreachable", f"the daemon at {path} ended before it answered")


def watch(
    path: Path | str, interval_ms: int = 1000, since: int | None = None, timeout_s: float = 30.0
) -> Iterator[dict[str, Any]]:
    """The lines of a subscription: `{"snapshot": …}`, `{"event": …}` and `{"missed": n}`.

    Ends with the daemon.  Raises CommandError like `ask`.
    """
    request = {"cmd": "watch", "interval_ms": interval_ms}
    request |= {} if since is None else {"since": since}
    with _connected(path, request, timeout_s) as lines:
        yield from lines


@contextlib.contextmanager
def _connected(
    path: Path | str, request: dict[str, Any], timeout_s: float
) -> Iterator[Iterator[dict[str, Any]]]:
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(timeout_s)
            s.connect(str(path))
            s.sendall(json.dumps(request).encode() + b"\n")
            with s.makefile("rb") as reader:
                yield (_checked(json.loads(line)) for line in reader)
    except (OSError, json.JSONDecodeError) as problem:
        raise CommandError(
            "unreachable", f"no daemon answers at {path}: {problem}; is it running?"
        ) from problem


def _checked(answer: Any) -> Any:
    if isinstance(answer, dict) and "error" in answer:
        raise CommandError(
            str(answer.get("kind", "invalid")), str(answer.get("what", answer["error"])),
            where=str(answer.get("where", "")), do=str(answer.get("do", "")),
            retry_s=answer.get("retry_s"),
        )  # fmt: skip
    return answer


def values_bound(text: bytes | bytearray) -> int:
    """An upper bound of the number of values in a JSON text.  Each value or its key, except the
    outermost, follows one of these characters."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


def _too_large(found: str, most: str) -> CommandError:
    do = "a job has no document of this size: split it into several jobs"
    return CommandError("invalid", f"the request has {found}, more than {most}", do=do)


def _request(text: bytearray) -> dict[str, Any]:
    if (values := values_bound(text)) > VALUES_MAX:
        raise _too_large(f"{values} values", str(VALUES_MAX))
    try:
        check_json("request", text.decode())
        request = json.loads(text)
    except ValueError as problem:  # text that is not UTF-8 is a ValueError
        raise CommandError("invalid", f"the request is not JSON: {problem}") from None
    if not isinstance(request, dict):
        raise CommandError("invalid", "a request is a JSON object with a key `cmd`")
    return request


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    mask = os.umask(0o117)
    try:
        listener.bind(str(path))
    except OSError as problem:
        raise ConfigError(f"cannot listen on {path}: {problem}; choose another --door") from problem
    finally:
        os.umask(mask)
    listener.listen(16)
    return listener
