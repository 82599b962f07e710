"""The daemon's side of the uplink: starts the child, tells it pages, hears of acks."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError
from edged.uplink.sender import Sender

if TYPE_CHECKING:
    from edged.store.backlog import PageRef

REQUEST_BYTES = 4 << 20
LANES = 4
TIMEOUT_S = 30.0
_REFS_A_LINE = 256
_READ_BYTES = 1 << 18
_END_SECONDS = 5.0


class Uplink:
    """Sends pages to the collector at `url` in the name of `device`.

    `session` is the store's (counter, nonce), `schemas` are (stream, version, JSON text) of all
    streams that pages may be of, `ca` is a file of certificates to trust for https in place of the
    system's.  `lanes` requests of at most about `request_bytes` each are under way at a time, and a
    centre that is silent for `timeout_s` has not answered.  No method but `close` blocks.  Not for
    use by several threads.

    Call `poll` whenever `fileno()` is readable.  When `restart_if_dead` returns True, a new child
    knows of no pages: offer everything that is pending again, which repeats nothing at the centre.
    """

    def __init__(
        self,
        url: str,
        device: str,
        token: str | None,
        epoch: int,
        session: tuple[int, int],
        schemas: Sequence[tuple[str, int, str]],
        *,
        ca: str | None = None,
        lanes: int = LANES,
        request_bytes: int = REQUEST_BYTES,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"the collector's address {url!r} must begin with http:// or https://"
            )
        self._config = {
            "url": url,
            "device": device,
            "token": token,
            "epoch": epoch,
            "session": list(session),
            "schemas": [list(s) for s in schemas],
            "ca": ca,
            "lanes": lanes,
            "request_bytes": request_bytes,
            "timeout_s": timeout_s,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._out: deque[memoryview] = deque()
        self._rest = b""
        self._alive = False
        self._starts = 0
        self._last_ack_s: float | None = None
        self._status = Sender((), lambda: 0.0, request_bytes).status()

    def start(self) -> None:
        """Start the child."""
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edged.uplink", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = ours
        self._out.clear()
        self._rest = b""
        self._alive = True
        self._starts += 1
        self._say({"config": self._config})

    def fileno(self) -> int:
        """A descriptor that becomes readable when `poll` has something; changes with a restart."""
        return -1 if self._channel is None else self._channel.fileno()

    def wants_write(self) -> bool:
        """Whether something waits for the descriptor to become writable; `poll` sends it too."""
        return bool(self._out)

    def offer(self, refs: Iterable[PageRef]) -> None:
        """Pages to send, or the new places of pages; each partition's in the order of seq."""
        rest = iter(refs)
        while batch := list(islice(rest, _REFS_A_LINE)):
            files = [
                [file, [[r.key.stream, r.key.partition, r.key.seq, r.offset, r.length] for r in of]]
                for file, of in groupby(batch, key=lambda r: r.file)
            ]
            self._say({"offer": files})

    def retry(self) -> None:
        """Try again now whatever waits for better times."""
        self._say({"retry": True})

    def set_token(self, token: str | None) -> None:
        """Use another token from now on."""
        self._config["token"] = token
        self._say({"token": token})

    def poll(self) -> list[tuple[str, int, int]]:
        """Acks since the last call: (stream, partition, seq), all up to seq are landed."""
        self._flush()
        acks: dict[tuple[str, int], int] = {}
        for line in self._lines():
            message = json.loads(line)
            self._status = message["status"]
            for stream, partition, seq in message["acked"]:
                acks[stream, partition] = max(seq, acks.get((stream, partition), 0))
        if acks:
            self._last_ack_s = time.monotonic()
        return [(stream, partition, seq) for (stream, partition), seq in acks.items()]

    def status(self) -> dict[str, Any]:
        """What the child last said, and `alive`, `pid`, `starts`, `last_ack_age_s` (or None)."""
        age_s = None if self._last_ack_s is None else time.monotonic() - self._last_ack_s
        process = self._process
        return {
            **self._status,
            "alive": self._alive,
            "pid": None if process is None else process.pid,
            "starts": self._starts,
            "last_ack_age_s": age_s,
        }

    def restart_if_dead(self) -> bool:
        """Start a new child where the old one has died; True where it has (see the class)."""
        if self._process is None or (self._alive and self._process.poll() is None):
            return False
        self.close()
        self.start()
        return True

    def close(self) -> None:
        """End the child, which gives up what is under way; that is sent again some other day."""
        self._alive = False
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _say(self, message: dict[str, Any]) -> None:
        if self._alive:
            self._out.append(memoryview(json.dumps(message).encode() + b"\n"))
            self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._out and self._channel is not None:
                try:
                    sent = self._channel.send(self._out[0])
                except ConnectionError:
                    self._alive = False
                    self._out.clear()
                    return
                if sent == len(self._out[0]):
                    self._out.popleft()
                else:
                    self._out[0] = self._out[0][sent:]

    def _lines(self) -> list[bytes]:
        """The whole lines that have come."""
        data = bytearray(self._rest)
        while self._channel is not None:
            try:
                part = self._channel.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionError:
                part = b""
            if not part:
                self._alive = False
                break
            data += part
        *lines, self._rest = bytes(data).split(b"\n")
        return lines
