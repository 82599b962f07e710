"""Client of the root helper: one JSON line per request and reply over a unix socket.

    {"set": "cpu.policy0", "part": "max", "value": "1344000"}    -> {"ok": true}
    {"list": true}                                     -> {"ok": ["cpu.policy0", ...],
                                                           "denied": {"core.1": "why", ...}}
    {"suspend": "mem", "seconds": 57}                  -> {"ok": true}, after the resume
    a failed write                                     -> {"errno": 22, "problem": "..."}
    a request that is not allowed                      -> {"refused": "..."}

No path crosses the socket: the helper discovers the board's files itself.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from governors.actuators.base import Setting
from governors.actuators.suspend import SuspendReply
from governors.errors import NotPermitted
from governors.sysfs import SysfsError, error

TIMEOUT_S = 0.5
"""Longest wait of a beat for a reply; the helper replies within microseconds."""
START_S = 10.0
"""Timeout of the first request, which may start the helper (a second on a small board). No beat
waits for it."""
SUSPEND_S = 60.0
"""Longest time of entering and leaving a suspend: the kernel waits 20 s for tasks to freeze."""
REPLY_MAX = 256 << 10
LIST = b'{"list": true}\n'


class HelperWriter:
    """Writes through the helper at a socket."""

    name = "helper"

    def __init__(
        self, path: Path, settings: Iterable[Setting], permissions: Mapping[str, Any] | None = None
    ) -> None:
        """`permissions`: the reply to `list`, where known (`HelperProbe`); else it is requested
        synchronously.  Raises NotPermitted where no helper replies."""
        self._path = path
        self._socket: socket.socket | None = None
        self._parts = {
            place: (setting.name, part)
            for setting in settings
            for part, place in setting.files().items()
        }
        permissions = permissions or self._request(LIST, str(path), START_S)
        self._known: frozenset[str] = frozenset(permissions["ok"])
        self._denied: dict[str, str] = dict(permissions.get("denied", {}))
        self.why = f"the helper at {path} may write"

    def refusal(self, path: str) -> str:
        """Why the helper would not write the path; empty where it would."""
        name, _ = self._parts.get(path, (path, ""))
        if name in self._known:
            return ""
        if name in self._denied:
            return f"the helper at {self._path} may not write either: {self._denied[name]}"
        return f"the helper at {self._path} knows no {name}"

    def write(self, path: str, text: str) -> None:
        """Write through the helper.  Raises SysfsError with the kernel's errno, or NotPermitted."""
        if path not in self._parts:
            raise NotPermitted(f"{path} belongs to no knob of this board")
        name, part = self._parts[path]
        request = {"set": name, "part": part, "value": text}
        self._request(json.dumps(request).encode() + b"\n", path)

    def request(self, line: bytes, within_s: float) -> dict[str, Any]:
        """The reply to a request that is no write.  Raises NotPermitted."""
        return self._request(line, str(self._path), within_s)

    def close(self) -> None:
        """Disconnect; the next write connects again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _request(self, line: bytes, path: str, within_s: float = TIMEOUT_S) -> dict[str, Any]:
        try:
            try:
                reply = self._exchange(line, within_s)
            except (ConnectionError, EOFError):  # idle for long, or the helper was restarted
                self.close()
                reply = self._exchange(line, within_s)
            answer: dict[str, Any] = json.loads(reply)
        except (OSError, EOFError, ValueError) as problem:
            self.close()
            raise NotPermitted(
                f"the helper at {self._path} does not answer ({problem}); start "
                "edged-governor-helper, or see its log"
            ) from problem
        except (
            BaseException
        ):  # from a signal: the late reply must not be read as that of the next request
            self.close()
            raise
        if "refused" in answer:
            raise NotPermitted(f"the helper refused: {answer['refused']}")
        if "errno" in answer:
            raise error(path, OSError(answer["errno"], answer["problem"]))
        return answer

    def _exchange(self, line: bytes, within_s: float) -> bytes:
        if self._socket is None:
            fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # blocking: a non-blocking connect fails at once while the queue is full
            wait = struct.pack("@ll", 0, int(TIMEOUT_S * 1e6))
            fresh.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
            try:
                fresh.connect(str(self._path))
            except OSError:
                fresh.close()
                raise
            self._socket = fresh
        self._socket.settimeout(within_s)
        self._socket.sendall(line)
        reply = b""
        while not reply.endswith(b"\n"):
            received = self._socket.recv(4096)
            if not received:
                raise EOFError("it hung up")
            reply += received
            if len(reply) > REPLY_MAX:
                raise ValueError("its answer is too long")
        return reply


def suspend_through(path: Path, state: str, seconds: int) -> SuspendReply:
    """Have the helper at a socket suspend the machine; returns after the resume."""
    writer = HelperWriter(path, (), {"ok": ()})
    request = {"suspend": state, "seconds": seconds}
    try:
        writer.request(json.dumps(request).encode() + b"\n", SUSPEND_S + seconds)
    except (NotPermitted, SysfsError) as problem:
        return SuspendReply(str(problem))
    finally:
        writer.close()
    return SuspendReply()


class HelperProbe:
    """Non-blocking query whether a helper is present and what it may write: one `look` sends the
    request, a later one returns the reply.  A helper that is still starting replies later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._reply = b""

    def look(self) -> dict[str, Any] | None:
        """The reply, once, when it has arrived; else None."""
        try:
            if self._socket is None:
                self._dial()
                return None
            received = self._socket.recv(REPLY_MAX)
            self._reply += received
            if received and not self._reply.endswith(b"\n") and len(self._reply) < REPLY_MAX:
                return None
            answer = json.loads(self._reply)
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            answer = None
        self.close()
        return answer if isinstance(answer, dict) and "ok" in answer else None

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._reply = None, b""

    def _dial(self) -> None:
        fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            fresh.connect(str(self._path))
            fresh.send(LIST)
        except OSError:
            fresh.close()
            raise
        self._socket = fresh
