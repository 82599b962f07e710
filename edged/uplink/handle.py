"""The daemon's side of the uplink: starts the child, tells it pages, hears of acks.

A child that has died is started again by `restart_if_dead`: at once the first time, then after a
backoff (`RESTART_BASE_S`, doubled up to `restart_s_max`, with jitter), until a child has lived for
`LIFE_S_MIN`.  Whoever has nothing else to do waits on `watch_fileno()`: it tells of a death, of
the end of the backoff, and of a child that reads on after it has let something wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError
from edged.platform.timers import TimerFd
from edged.uplink import telemetry
from edged.uplink.backoff import Backoff
from edged.uplink.outbox import Outgoing
from edged.uplink.sender import SENDING, Sender

if TYPE_CHECKING:
    from edged.store.backlog import PageRef

REQUEST_BYTES = 4 << 20
LANES = 4
TIMEOUT_S = 30.0
LIFE_S_MIN = 5.0
"""A child that lived this long was well: the next one starts at once."""
RESTART_BASE_S = 0.25
RESTART_S_MAX = 30.0
_READ_BYTES = 1 << 18
_END_SECONDS = 5.0


class Uplink:
    """Sends pages to the collector at `url` in the name of `device`.

    `session` is the store's (counter, nonce), `schemas` are (stream, version, JSON text) of all
    streams that pages may be of, `ca` is a file of certificates to trust for https in place of the
    system's.  `lanes` requests of at most about `request_bytes` each are under way at a time, and a
    centre that is silent for `timeout_s` has not answered.  No method but `close` blocks.  Not for
    use by several threads.

    Call `poll` and `restart_if_dead` whenever `fileno()` or `watch_fileno()` is readable.  When
    `restart_if_dead` returns True, a new child knows of no pages: offer everything that is pending
    again, which repeats nothing at the centre.
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
        restart_s_max: float = RESTART_S_MAX,
        on_event: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(
                f"the collector's address {url!r} must begin with http:// or https://"
            )
        self._config: dict[str, Any] = {
            "url": url, "device": device, "token": token, "epoch": epoch,
            "session": list(session), "schemas": [list(s) for s in schemas], "ca": ca,
            "lanes": lanes, "request_bytes": request_bytes, "timeout_s": timeout_s,
        }  # fmt: skip
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Counts what the child has to tell at once."""
        self._reports = 0
        self.outcome: dict[str, Any] = {}
        """What became of the desired state, for `status`; empty: nothing was ever wanted."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._out = Outgoing()
        self._rest = b""
        self._alive = False
        self._starts = 0
        self._started_s = 0.0
        self._restart_at_s: float | None = None
        """When a dead child is followed by another; None: there is one, or none is wanted."""
        self._backoff = Backoff(random.random, min(RESTART_BASE_S, restart_s_max), restart_s_max)
        self._deaths = 0
        """Of children in a row that did not live for LIFE_S_MIN."""
        self._timer = TimerFd()
        self._watch = select.epoll()
        self._watch.register(self._timer, select.EPOLLIN)
        self._watch.register(self._news, select.EPOLLIN)
        self._hears, self._events = False, 0
        self.on_event = on_event
        """Called when the link is `down`, is `up` again or has an `alarm`, with the problem."""
        self._said = ("up", 0)
        """What was told last, and how many alarms there were."""
        self._last_ack_s: float | None = None
        self._last_ack_us: int | None = None
        """The same on the wall clock."""
        self._status = Sender((), lambda: 0.0, request_bytes).status()

    def start(self) -> None:
        """Start the child."""
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edged.uplink", str(theirs.fileno()), str(self._news)],
                pass_fds=[theirs.fileno(), self._news],
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = ours
        self._said = (self._said[0], 0)  # a new child counts anew
        self._events = 0
        self._watch.register(ours, self._events)
        self._out.clear()
        self._rest = b""
        self._alive = True
        self._starts += 1
        self._started_s = time.monotonic()
        self._say("config", self._config)

    def fileno(self) -> int:
        """A descriptor that becomes readable when `poll` or `restart_if_dead` has something to do.

        It changes with every death and restart.
        """
        return self._timer.fileno() if self._channel is None else self._channel.fileno()

    def watch_fileno(self) -> int:
        """Readable when `poll` or `restart_if_dead` has something to do that cannot wait: the child
        is dead, or reads on what it had let wait, or there is `news`: a desired state, or so many
        acks that it cannot go on before `poll`.  The same until `close`."""
        return self._watch.fileno()

    def wants_write(self) -> bool:
        """Whether something waits for the descriptor to become writable; `poll` sends it too."""
        return len(self._out) > 0

    def offer(self, refs: Iterable[PageRef]) -> None:
        """Pages to send, or the new places of pages; each partition's in the order of seq."""
        if self._alive:
            self._out.offer(refs)
            self._flush()

    def register(self, schemas: Iterable[tuple[str, int, str]]) -> None:
        """Let the centre know these schemas too, before any page that is offered from now on."""
        known = self._config["schemas"]
        new = [list(s) for s in schemas if list(s) not in known]
        if new:
            names = {(stream, version) for stream, version, _ in new}
            self._config["schemas"] = [s for s in known if (s[0], s[1]) not in names] + new
            for schema in new:
                self._say("schemas", [schema], ("schemas", *schema[:2]))

    def report(self, values: Sequence[Any], bytes_max: int, first: bool) -> None:
        """A report of telemetry: values as `edged.uplink.telemetry.COLUMNS`, in place of one that
        waits.

        Sent with the next pages, or by itself; `first`: before any page.
        """
        self._reports += 1
        seq = telemetry.number(self._config["session"][0], self._reports)
        told = {"seq": seq, "values": values, "bytes_max": bytes_max, "first": first}
        self._say("report", told)

    def follow_desired_state(self, file: str, version: int) -> None:
        """Before `start`: write desired states that are newer than `version` to `file`."""
        self._config |= {"desired_file": file, "desired_version": version}

    def clear_notice(self) -> None:
        """What there is of it is about to be taken, by `poll`; `watch_fileno` tells of the next."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._news)

    @property
    def desired(self) -> Any:
        """What the centre wants, without the document, as last heard."""
        return self._status["desired"]

    def set_windows(self, windows: Sequence[Sequence[int]]) -> None:
        """Send pages in these windows of the day only (`edged.uplink.upload_schedule`); none:
        always."""
        self._config["windows"] = [list(window) for window in windows]
        self._say("windows", self._config["windows"])

    def watch_acks(self, wanted: bool) -> None:
        """Let `watch_fileno` tell of acknowledgements too, or no longer."""
        self._hears = wanted
        self._watch_for()

    def _watch_for(self) -> None:
        """Let the descriptor that is watched tell of what there is to be told of now."""
        events = select.EPOLLRDHUP | (select.EPOLLIN if self._hears else 0)
        events |= select.EPOLLOUT if self.wants_write() else 0
        if self._channel is not None and events != self._events:
            self._watch.modify(self._channel, events)
            self._events = events

    def retry(self) -> None:
        """Try again now whatever waits for better times, a new child included."""
        if self._restart_at_s is not None:
            self._restart_at_s = time.monotonic()
            self._timer.arm(0)
        self._say("retry", True)

    def set_token(self, token: str | None) -> None:
        """Use another token from now on."""
        self._config["token"] = token
        self._say("token", token)

    def poll(self) -> list[tuple[str, int, int]]:
        """Acks since the last call: (stream, partition, seq), all up to seq are landed."""
        self._flush()
        acks: dict[tuple[str, int], int] = {}
        for line in self._lines():
            message = json.loads(line)
            self._status = message["status"]
            self._tell(self._status)
            for stream, partition, seq in message["acked"]:
                acks[stream, partition] = max(seq, acks.get((stream, partition), 0))
        if acks:
            self._last_ack_s, self._last_ack_us = time.monotonic(), time.time_ns() // 1000
        return [(stream, partition, seq) for (stream, partition), seq in acks.items()]

    def status(self) -> dict[str, Any]:
        """What the child last said, and `alive`, `pid`, `starts`, `last_ack_age_s` (or None).

        `next_try_us` is when it tries again (wall clock; None: it waits for nothing), `problem`
        what it last met and has not got over.
        """
        now_s, said = time.monotonic(), self._status
        age_s = None if self._last_ack_s is None else now_s - self._last_ack_s
        process, hold_s = self._process, self._restart_at_s or said["hold_until_s"]
        tries_us = None if hold_s is None else time.time_ns() // 1000 + int((hold_s - now_s) * 1e6)
        well = self._alive and said["state"] == SENDING and not said["stuck"]
        follows = "desired_file" in self._config
        desired = {"desired": self.outcome or None} if follows else {}
        return {
            **{key: value for key, value in said.items() if key != "hold_until_s"},
            **desired,
            "connected": self._alive and said["state"] == SENDING and said["requests"] > 0,
            "pages_sent": said["sent_pages"],
            "bytes_sent": said["bytes"],
            "pages_acked": said["acked_pages"],
            "retries": said["failures"],
            "last_ack_us": self._last_ack_us,
            "next_try_us": tries_us,
            "problem": "" if well else said["last_error"],
            "alive": self._alive,
            "pid": None if process is None else process.pid,
            "starts": self._starts,
            "last_ack_age_s": age_s,
        }

    def _tell(self, status: dict[str, Any]) -> None:
        event, alarms = self._said
        now = "up" if status["state"] == SENDING else "down"
        self._said = (now, status["alarms"])
        if status["alarms"] > alarms:
            self.on_event("alarm", status["last_error"])
        if now != event:
            self.on_event(now, status["last_error"] if now == "down" else "")

    def restart_if_dead(self) -> bool:
        """Start a new child where the old one has died and it is time; True where it did."""
        if self._process is not None:
            if self._alive and self._process.poll() is None:
                return False
            self._bury(self._process)
        if self._restart_at_s is None or time.monotonic() < self._restart_at_s:
            return False
        self._restart_at_s = None
        self._timer.disarm()
        try:
            self.start()
        except OSError as problem:  # no memory or descriptors for a process: they may come back
            self._status = {**self._status, "last_error": f"the uplink does not start: {problem}"}
            self._started_s = time.monotonic()
            self._set_restart()
            return False
        return True

    def close(self) -> None:
        """End the child, which gives up what is under way; that is sent again some other day."""
        self._alive = False
        self._restart_at_s = None
        self._hang_up()
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._watch.close()
        self._timer.close()
        if self._news >= 0:
            os.close(self._news)
            self._news = -1

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        """Let go of a child that has died, or hung up, and set the time of the next."""
        self._alive = False
        self._hang_up()
        process.kill()
        process.wait()
        self._process = None
        self._set_restart()

    def _set_restart(self) -> None:
        now_s = time.monotonic()
        if now_s - self._started_s >= LIFE_S_MIN:
            self._backoff.succeeded()
            self._deaths = 0
        self._deaths += 1
        delay_s = 0.0 if self._deaths == 1 else self._backoff.failed()
        self._restart_at_s = now_s + delay_s
        self._timer.arm(int(self._restart_at_s * 1e6))

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _say(self, what: str, value: Any, key: Hashable | None = None) -> None:
        """A command; it takes the place of one that waits under the same key, or name."""
        if self._alive:
            self._out.say({what: value}, what if key is None else key)
            self._flush()

    def _flush(self) -> None:
        if self._channel is None:
            return
        try:
            self._out.send(self._channel)
        except ConnectionError:
            self._alive = False
            self._out.clear()
        self._watch_for()

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
