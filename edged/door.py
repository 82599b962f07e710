"""The control door: a unix socket with commands in and immutable snapshots out.

One request a connection: a line of JSON `{"cmd": …, …}`, answered by one line of JSON, either the
result or `{"error": …}`.  The daemon serves it between beats and never waits for a slow client:
both directions are non-blocking, a request is at most 1 MiB, and clients beyond 64 are turned away.
The API, the CLI and the demo are its clients; nothing else reaches into the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edged.errors import ConfigError, EdgedError

REQUEST_BYTES_MAX = 1 << 20
CLIENTS_MAX = 64

Handler = Callable[[dict[str, Any]], Any]


class Door:
    """The daemon's end.  `fileno` is readable when `serve` has something to do."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self.path = path
        self._handler = handler
        self._epoll = select.epoll()
        self._clients: dict[int, tuple[socket.socket, bytearray]] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        mask = os.umask(0o117)
        try:
            self._listener.bind(str(path))
        except OSError as problem:
            raise ConfigError(
                f"cannot listen on {path}: {problem}; choose another --door"
            ) from problem
        finally:
            os.umask(mask)
        self._listener.listen(16)
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """The epoll over the listener and all clients."""
        return self._epoll.fileno()

    def serve(self) -> None:
        """Take what has come, answer what is complete; never blocks."""
        for fd, events in self._epoll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
            elif events & select.EPOLLOUT:
                self._flush(fd)
            else:
                self._read(fd)

    def close(self) -> None:
        """Turn everybody away and remove the socket."""
        for fd in list(self._clients):
            self._drop(fd)
        self._epoll.close()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if len(self._clients) >= CLIENTS_MAX:
            client.close()
            return
        client.setblocking(False)
        self._clients[client.fileno()] = (client, bytearray())
        self._epoll.register(client.fileno(), select.EPOLLIN)

    def _read(self, fd: int) -> None:
        client, request = self._clients[fd]
        try:
            data = client.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        request += data
        if request.endswith(b"\n"):
            request[:] = json.dumps(self._answer(bytes(request))).encode() + b"\n"
            self._epoll.modify(fd, select.EPOLLOUT)
            self._flush(fd)
        elif not data or len(request) > REQUEST_BYTES_MAX:
            self._drop(fd)

    def _answer(self, request: bytes) -> Any:
        try:
            document = json.loads(request)
        except (ValueError, RecursionError) as problem:  # text that is not UTF-8 is a ValueError
            return {"error": f"the request is not JSON: {problem}"}
        if not isinstance(document, dict):
            return {"error": "a request is a JSON object with a key `cmd`"}
        try:
            return self._handler(document)
        except EdgedError as problem:
            return {"error": str(problem)}

    def _flush(self, fd: int) -> None:
        client, answer = self._clients[fd]
        try:
            sent = client.send(answer)
        except BlockingIOError:
            return
        except OSError:
            self._drop(fd)
            return
        del answer[:sent]
        if not answer:
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        client, _ = self._clients.pop(fd)
        self._epoll.unregister(fd)
        client.close()


def ask(path: Path | str, cmd: str, timeout_s: float = 30.0, **arguments: Any) -> Any:
    """A client's request; raises ConfigError where nobody answers or the answer is an error."""
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(timeout_s)
            s.connect(str(path))
            s.sendall(json.dumps({"cmd": cmd, **arguments}).encode() + b"\n")
            with s.makefile("rb") as reader:
                answer = json.loads(reader.readline() or b"{}")
    except (OSError, json.JSONDecodeError) as problem:
        raise ConfigError(f"no daemon answers at {path}: {problem}; is it running?") from problem
    if isinstance(answer, dict) and "error" in answer:
        raise ConfigError(str(answer["error"]))
    return answer
