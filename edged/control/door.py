"""The control door: a unix socket with commands in and immutable snapshots out.

One request a connection: a line of JSON `{"cmd": …, …}`, answered by one line of JSON, either the
result or `{"error": text, "kind": …, "where": …, "what": …, "do": …}` with a kind of
`CommandError.KINDS`.  `watch` alone stays and is told more (see `edged.control.watchers`).  The
daemon serves the door between beats and never waits for a client: both directions are
non-blocking, and clients beyond CLIENTS_MAX are turned away, unless others have kept their places
for SILENT_S without a whole request or without reading.  What takes time is answered `Later`, from
another thread or after a beat.

A JSON text is parsed at one go, with the interpreter held, on whatever thread: 1 ms or so for
VALUES_MAX values in REQUEST_BYTES_MAX.  A request of more of either is refused unparsed.
The API, the CLI and the demo are its clients; nothing else reaches into the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edged.control.watchers import Watcher, Watching
from edged.errors import CommandError, ConfigError, EdgedError, JobError, StoreError

REQUEST_BYTES_MAX = 1 << 20
"""A job document is at most half of that; as JSON text it may take twice what it took in a file."""
VALUES_MAX = 1 << 15
"""A column of a job is one value: this is 30 streams of as many columns as a stream may have."""
FORGOTTEN_BYTES_MAX = 64 << 20
"""Of a request that is too large, so much is read and forgotten, so that its sender hears why."""
CLIENTS_MAX = 64
SILENT_S = 10.0

Handler = Callable[[dict[str, Any]], Any]


class Later:
    """An answer that comes later: `done`, once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.answer: Any = None
        self.ready = False
        """Whether `answer` is there."""
        self._tell: Callable[[], None] | None = None

    def done(self, answer: Any) -> None:
        """The answer, or the error."""
        with self._lock:
            self.answer, self.ready = answer, True
            tell = self._tell
        if tell is not None:
            tell()

    def then(self, tell: Callable[[Any], None]) -> None:
        """Call `tell` with the answer as soon as it is there, on the thread that has it."""
        with self._lock:
            self._tell = lambda: tell(self.answer)
            ready = self.ready
        if ready:
            tell(self.answer)


class _Client:
    """A connection: what it asked, what it is still to get, and whether it watches."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.asked = bytearray()
        self.asked_bytes = 0
        self.out = bytearray()
        self.answered = False
        self.listened = True
        """Whether it may still say something."""
        self.watcher: Watcher | None = None
        self.moved_s = time.monotonic()
        """When it came, or has last taken some of its answer."""

    def ask(self, data: bytes) -> None:
        """More of its request; of one that is too large nothing is kept."""
        self.asked_bytes += len(data)
        if self.asked_bytes > REQUEST_BYTES_MAX:
            self.asked.clear()
        else:
            self.asked += data

    def silent(self) -> bool:
        """Whether the daemon has waited long for it, and not it for the daemon."""
        waited_for = not self.answered or (self.out and self.watcher is None)
        return bool(waited_for) and time.monotonic() - self.moved_s > SILENT_S


class Door:
    """The daemon's end.  `fileno` is readable when `serve` has something to do."""

    def __init__(self, path: Path, handler: Handler, watching: Watching | None = None) -> None:
        self.path = path
        self._handler = handler
        self._watching = watching
        self._epoll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._late: deque[tuple[_Client, Any]] = deque()
        self._kick = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._kick, select.EPOLLIN)
        if watching is not None:
            watching.wake = self._wake
            self._epoll.register(watching.fileno(), select.EPOLLIN)
        self._listener = _listen(path)
        self._epoll.register(self._listener.fileno(), select.EPOLLIN | select.EPOLLET)

    def fileno(self) -> int:
        """The epoll over the listener, the timer and all clients."""
        return self._epoll.fileno()

    def serve(self) -> None:
        """Take what has come, answer what is complete; never blocks."""
        arrived = False
        for fd, events in self._epoll.poll(0):
            if fd == self._listener.fileno():
                arrived = True
            elif fd == self._kick:
                self._answer_late()
            elif fd in self._clients:
                client = self._clients[fd]
                if events & (select.EPOLLHUP | select.EPOLLERR):
                    self._drop(client)
                    continue
                if events & select.EPOLLIN:
                    self._read(client)
                if events & select.EPOLLOUT and fd in self._clients and self._flush(client):
                    self._tell(client)
        if arrived:  # now that whoever has said something is no longer silent
            self._accept()
        if self._watching is not None and self._watching.due():
            for client in list(self._clients.values()):
                self._tell(client)
            self._watching.arm()

    def close(self) -> None:
        """Turn everybody away and remove the socket."""
        for client in list(self._clients.values()):
            self._drop(client)
        self._epoll.close()
        self._listener.close()
        os.close(self._kick)
        if self._watching is not None:
            self._watching.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _wake(self) -> None:
        os.eventfd_write(self._kick, 1)

    def _accept(self) -> None:
        """All who have come; without a free descriptor they wait until the next one comes."""
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                if len(self._clients) >= CLIENTS_MAX:
                    self._send_away_the_silent()
                if len(self._clients) >= CLIENTS_MAX:
                    sock.close()
                    continue
                sock.setblocking(False)
                self._clients[sock.fileno()] = _Client(sock)
                self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _send_away_the_silent(self) -> None:
        for client in [client for client in self._clients.values() if client.silent()]:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        try:
            data = client.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if client.answered:  # whoever has asked has nothing more to say
            client.listened = client.listened and bool(data)
            self._await(client)
            return
        client.ask(data)
        if data.endswith(b"\n"):
            client.answered, client.moved_s = True, time.monotonic()
            self._answer(client)
        elif not data or client.asked_bytes > FORGOTTEN_BYTES_MAX:
            self._drop(client)

    def _answer(self, client: _Client) -> None:
        try:
            if client.asked_bytes > REQUEST_BYTES_MAX:
                raise _too_large(f"{client.asked_bytes} bytes", f"{REQUEST_BYTES_MAX} bytes")
            request = _request(client.asked)
            client.asked.clear()
            if request.get("cmd") == "watch" and self._watching is not None:
                client.watcher = self._watching.begin(request)
                self._tell(client)
                return
            answer = self._handler(request)
        except EdgedError as problem:
            answer = problem
        except Exception as problem:  # a defect in what carries it out ends no daemon
            answer = CommandError("failed", f"{type(problem).__name__}: {problem}", do="report it")
        if isinstance(answer, Later) and answer.ready:
            answer = answer.answer
        if isinstance(answer, Later):
            answer.then(lambda late: self._answered_late(client, late))
        else:
            self._say(client, answer)

    def _answered_late(self, client: _Client, answer: Any) -> None:
        self._late.append((client, answer))
        self._wake()

    def _answer_late(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._kick)
        while self._late:
            client, answer = self._late.popleft()
            if client.sock.fileno() in self._clients:
                self._say(client, answer)

    def _say(self, client: _Client, answer: Any) -> None:
        document = refusal(answer) if isinstance(answer, EdgedError) else answer
        client.out += json.dumps(document).encode() + b"\n"
        self._flush(client)

    def _tell(self, client: _Client) -> None:
        """Whoever watches and has taken all that he was told is told what is new."""
        if client.watcher is None or self._watching is None:
            return
        while not client.out and (line := self._watching.line(client.watcher)):
            client.out += line
            if not self._flush(client):
                return

    def _flush(self, client: _Client) -> bool:
        """Send what waits; False where the client is gone."""
        try:
            sent = client.sock.send(client.out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(client)
            return False
        if sent:
            client.moved_s = time.monotonic()
        del client.out[:sent]
        if not client.out and client.watcher is None:
            self._drop(client)
            return False
        self._await(client)
        return True

    def _await(self, client: _Client) -> None:
        """Hear of what this client does next; of its end in any case."""
        events = (select.EPOLLIN if client.listened else 0) | (select.EPOLLOUT if client.out else 0)
        self._epoll.modify(client.sock.fileno(), events)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.sock.fileno()]
        self._epoll.unregister(client.sock.fileno())
        client.sock.close()
        if client.watcher is not None and self._watching is not None:
            self._watching.end(client.watcher)


def refusal(problem: EdgedError) -> dict[str, Any]:
    """The answer that tells of an error."""
    told: dict[str, Any] = {"error": str(problem)}
    if isinstance(problem, CommandError):
        told |= {"kind": problem.kind, "where": problem.where, "what": problem.what}
        told["do"] = problem.do
        return told if problem.retry_s is None else told | {"retry_s": problem.retry_s}
    if isinstance(problem, JobError):
        where = {"where": problem.path, "what": problem.problem, "do": problem.advice}
        return told | {"kind": "invalid"} | where
    kind = "invalid" if isinstance(problem, ConfigError) else "failed"
    if isinstance(problem, StoreError) and type(problem).__name__ == "StoreFull":
        return told | {"kind": "busy", "where": "", "what": str(problem), "do": "", "retry_s": 1.0}
    return told | {"kind": kind, "where": "", "what": str(problem), "do": ""}


def ask(path: Path | str, cmd: str, timeout_s: float = 30.0, **arguments: Any) -> Any:
    """A client's request; raises CommandError where the answer is an error, with its kind, or
    (`unreachable`) where nobody answers."""
    with _connected(path, {"cmd": cmd, **arguments}, timeout_s) as lines:
        for answer in lines:
            return answer
    raise CommandError("unreachable", f"the daemon at {path} ended before it answered")


def watch(
    path: Path | str, interval_ms: int = 1000, since: int | None = None, timeout_s: float = 30.0
) -> Iterator[dict[str, Any]]:
    """What a watching client is told, line by line: `{"snapshot": …}`, `{"event": …}` and
    `{"missed": n}`; ends with the daemon.  Raises CommandError like `ask`."""
    asked = {"cmd": "watch", "interval_ms": interval_ms}
    with _connected(path, asked | ({} if since is None else {"since": since}), timeout_s) as lines:
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


def work(text: bytes | bytearray) -> int:
    """As many values as a JSON text can have at most: each of them, or its key, stands behind one
    of these signs, but for the outermost."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


def _too_large(found: str, most: str) -> CommandError:
    do = "a job has no document of this size: split it into several jobs"
    return CommandError("invalid", f"the request has {found}, more than {most}", do=do)


def _request(text: bytearray) -> dict[str, Any]:
    if (values := work(text)) > VALUES_MAX:
        raise _too_large(f"{values} values", str(VALUES_MAX))
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as problem:  # text that is not UTF-8 is a ValueError
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
