"""The daemon's handle of the uplink process: starts it, hands it pages and commands, reads its
acks.

`restart_if_dead` starts a new child after a death: at once the first time, then after a backoff
with jitter (`edged/platform/backoff.py`: seconds at first, later up to `restart_s_max`), until a
child has lived for `LIFE_S_MIN`.  An idle caller waits on `watch_fileno()`: it becomes readable on
a death, at the end of the backoff, and when a stalled child reads again.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError
from edged.links.page import is_link
from edged.pages.container import is_carried
from edged.platform.backoff import Backoff, jitter
from edged.platform.clock import boot_us
from edged.platform.timers import TimerFd
from edged.uplink import telemetry
from edged.uplink.link_states import LinkStates
from edged.uplink.outbox import READ_BYTES, Outbox
from edged.uplink.sender import SENDING, Sender
from edged.uplink.upload_schedule import opens_in_s

if TYPE_CHECKING:
    from edged.store.page_index import PageRef

REQUEST_BYTES = 4 << 20
LANES = 4
REQUEST_TIMEOUT_S = 30.0
LIFE_S_MIN = 5.0
"""A child that lived this long counts as healthy: after its death the next one starts at once."""
RESTART_BASE_S = 0.25
RESTART_S_MAX = 30.0
LOST_KEPT = 256
"""Lost ranges that a new child is told."""
_END_SECONDS = 5.0
_COUNTERS = ("requests", "sent_pages", "alarms", "bytes", "acked_pages", "reports", "failures")
"""Counters in a child's status; each child counts from 0."""


class Uplink:
    """Sends pages to the collector at `url` in the name of `device`, and those of links to their
    receivers.

    Without a `url` only links are served, and the child starts with the first one.

    `session` is the store's (counter, nonce).  `schemas` are (stream, version, JSON text) of all
    streams with pages.  `ca` is a file of certificates to trust for https instead of the system's.
    At most `lanes` requests of about `request_bytes` each are in flight; a request without an
    answer for `timeout_s` has failed.  `on_event` is called with ("down" | "up" | "alarm",
    problem) when the link's state changes.  Only `close` blocks.  Not thread-safe.

    Call `poll` and `restart_if_dead` whenever `fileno()` or `watch_fileno()` is readable.  When
    `restart_if_dead` returns True, offer all pending pages again: a new child has none, and the
    centre drops repetitions.
    """

    def __init__(
        self,
        url: str | None,
        device: str,
        token: str | None,
        epoch: int,
        session: tuple[int, int],
        schemas: Sequence[tuple[str, int, str]],
        *,
        ca: str | None = None,
        lanes: int = LANES,
        request_bytes: int = REQUEST_BYTES,
        timeout_s: float = REQUEST_TIMEOUT_S,
        restart_s_max: float = RESTART_S_MAX,
        on_event: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ConfigError(f"the collector's URL {url!r} must begin with http:// or https://")
        self._config: dict[str, Any] = {
            "url": url, "device": device, "token": token, "epoch": epoch,
            "session": list(session), "ca": ca,
            "schemas": [list(s) for s in schemas if not _is_own(s[0])],
            "lanes": lanes, "request_bytes": request_bytes, "timeout_s": timeout_s,
        }  # fmt: skip
        self._notice = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when the child has something that cannot wait for the next `poll`."""
        self._reports = 0
        self.outcome: dict[str, Any] = {}
        """Outcome of the desired state, for `status`; empty: there never was one."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._out = Outbox()
        self._rest, self._received = b"", bytearray(READ_BYTES)
        self._alive = False
        self._starts = 0
        self._started_s = 0.0
        self._restart_at_s: float | None = None
        """When the next child starts; None: a child runs, or none is to run."""
        self._backoff = Backoff(jitter, min(RESTART_BASE_S, restart_s_max), restart_s_max)
        self._deaths = 0
        """Consecutive children that died before LIFE_S_MIN."""
        self._timer = TimerFd()
        self._watch = select.epoll()
        self._watch.register(self._timer, select.EPOLLIN)
        self._watch.register(self._notice, select.EPOLLIN)
        self._acks_watched, self._events = False, 0
        self.on_event = on_event
        """Called with `down`, `up` or `alarm`, and the problem."""
        self._last_event = ("up", 0)
        """The last event published, and the number of alarms by then."""
        self._unreadable: set[tuple[str, int]] = set()
        self._missing: set[tuple[str, int, int]] = set()
        self._last_ack_s: float | None = None
        self._last_ack_us: int | None = None
        """The same on the wall clock."""
        self.links = LinkStates()
        self._status = Sender((), lambda: 0.0, request_bytes).status()
        self._ended = dict.fromkeys(_COUNTERS, 0)
        """What the ended children have counted."""

    @property
    def has_centre(self) -> bool:
        """Whether pages are sent to a centre."""
        return self._config["url"] is not None

    def start(self) -> None:
        """Start the child."""
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edged.uplink", str(theirs.fileno()), str(self._notice)],
                pass_fds=[theirs.fileno(), self._notice],
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = ours
        self._ended = self._counted()
        self.links.child_started()
        self._status = {**self._status, **dict.fromkeys(_COUNTERS, 0)}
        self._last_event = (self._last_event[0], 0)  # a new child counts from 0
        self._events = 0
        self._watch.register(ours, self._events)
        self._out.clear()
        self._rest = b""
        self._alive = True
        self._starts += 1
        self._started_s = boot_us() / 1e6
        links = self.links.with_lasts(self._config.get("links", ()))
        self._command("config", {**self._config, "links": links})

    def fileno(self) -> int:
        """A descriptor that becomes readable when `poll` or `restart_if_dead` has something to do.

        It changes with every death and restart.
        """
        return self._timer.fileno() if self._channel is None else self._channel.fileno()

    def watch_fileno(self) -> int:
        """A descriptor that becomes readable when `poll` or `restart_if_dead` has work that cannot
        wait: the child died, a stalled child reads again, a desired state arrived, or acks fill the
        socket.  It stays the same until `close`."""
        return self._watch.fileno()

    def wants_write(self) -> bool:
        """Whether output waits for the descriptor to become writable; `poll` sends it too."""
        return len(self._out) > 0

    def offer(self, refs: Iterable[PageRef]) -> None:
        """Send these pages, or learn their new locations; in order of seq within each partition."""
        refs = [r for r in refs if self.has_centre or is_link(r.key.stream)]
        self.links.offered(r.key for r in refs if is_link(r.key.stream))
        if self._alive:
            self._out.offer(refs)
            self._flush()

    def set_links(self, targets: Sequence[dict[str, Any]]) -> bool:
        """Serve these links (`edged.uplink.links`).  True: this started the child, which has no
        pages yet."""
        self._config["links"] = list(targets)
        self.links.follow(target["name"] for target in targets)
        if self._process is None and self._restart_at_s is None and targets:
            self.start()
            return True
        self._command("links", self._config["links"])
        return False

    def register(self, schemas: Iterable[tuple[str, int, str]]) -> None:
        """Register further schemas at the centre, before any page offered later."""
        known = self._config["schemas"]
        new = [list(s) for s in schemas if list(s) not in known and not _is_own(s[0])]
        if new:
            names = {(stream, version) for stream, version, _ in new}
            self._config["schemas"] = [s for s in known if (s[0], s[1]) not in names] + new
            for schema in new:
                self._command("schemas", [schema], ("schemas", *schema[:2]))

    def lost(self, ranges: Iterable[tuple[str, int, int, int]]) -> None:
        """Forget pages that the store has lost for good, (stream, partition, first, last): the
        centre is told of each range before a page that follows it."""
        known = self._config.setdefault("lost", [])
        for lost in ranges:
            if not is_link(lost[0]):
                known.append(list(lost))
            self._command("lost", [list(lost)], ("lost", *lost))
        del known[:-LOST_KEPT]

    def report(self, values: Sequence[Any], bytes_max: int, first: bool) -> None:
        """Send a telemetry report: values in the order of `edged.uplink.telemetry.COLUMNS`.  It
        replaces a report that still waits.

        It travels with the next pages, or alone; with `first` before any page.
        """
        self._reports += 1
        seq = telemetry.number(self._config["session"][0], self._reports)
        report = {"seq": seq, "values": values, "bytes_max": bytes_max, "first": first}
        self._command("report", report)

    def forward_from(self, directory: str) -> None:
        """Share this directory with a gateway's process.  Call it before `start`."""
        self._config["pages_directory"] = directory

    def follow_desired_state(self, file: str, version: int) -> None:
        """Write desired states newer than `version` to `file`.  Call it before `start`."""
        self._config |= {"desired_file": file, "desired_version": version}

    def clear_notice(self) -> None:
        """Reset the notice just before a `poll`; a later notice makes `watch_fileno` readable
        again."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._notice)

    @property
    def desired(self) -> Any:
        """The desired state as last announced by the centre, without its document."""
        return self._status["desired"]

    def set_windows(self, windows: Sequence[Sequence[int]]) -> None:
        """Send pages only within these daily windows (`edged.uplink.upload_schedule`); none:
        always."""
        self._config["windows"] = [list(window) for window in windows]
        self._command("windows", self._config["windows"])

    def watch_acks(self, wanted: bool) -> None:
        """Let `watch_fileno` signal acks too, or no longer."""
        self._acks_watched = wanted
        self._update_watch()

    def _update_watch(self) -> None:
        """Update the events for which the watched descriptor becomes readable."""
        events = select.EPOLLRDHUP | (select.EPOLLIN if self._acks_watched else 0)
        events |= select.EPOLLOUT if self.wants_write() else 0
        if self._channel is not None and events != self._events:
            self._watch.modify(self._channel, events)
            self._events = events

    def retry(self) -> None:
        """End every wait: retry requests now, and start a dead child now."""
        if self._restart_at_s is not None:
            self._restart_at_s = boot_us() / 1e6
            self._timer.arm(0)
        self._command("retry", True)

    def resumed(self) -> None:
        """The machine was suspended: end pauses, and look at the upload windows again."""
        self._command("resumed", True)

    def poll(self) -> list[tuple[str, int, int]]:
        """Acks since the last call: (stream, partition, seq), all up to seq have landed."""
        self._flush()
        acks: dict[tuple[str, int], int] = {}
        for line in self._lines():
            message = json.loads(line)
            self.links.take(message.get("links", ()))
            if "status" in message:
                self._status = message["status"]
                self._notify(self._status)
            self._unreadable |= {(stream, p) for stream, p in message.get("unreadable", ())}
            self._missing |= {(stream, p, seq) for stream, p, seq in message.get("missing", ())}
            for stream, partition, seq in message["acked"]:
                acks[stream, partition] = max(seq, acks.get((stream, partition), 0))
        if acks:
            self._last_ack_s, self._last_ack_us = boot_us() / 1e6, time.time_ns() // 1000
        return [(stream, partition, seq) for (stream, partition), seq in acks.items()]

    def unreadable(self) -> list[tuple[str, int]]:
        """Partitions whose first page could not be read from its place, since the last call: it has
        moved, or is damaged."""
        found, self._unreadable = sorted(self._unreadable), set()
        return found

    def missing(self) -> list[tuple[str, int, int]]:
        """Pages that the centre asks for while the first one offered is a later one, since the last
        call: (stream, partition, first)."""
        found, self._missing = sorted(self._missing), set()
        return found

    def status(self) -> dict[str, Any]:
        """The child's last status, its counters with those of ended children, plus `alive`, `pid`,
        `starts` and `last_ack_age_s` (or None).

        `next_try_us` is the time of the next attempt (wall clock; None: nothing waits for one);
        `problem` is the last problem while it lasts.
        """
        now_s, child, counted = boot_us() / 1e6, self._status, self._counted()
        windows = self._config.get("windows", [])
        age_s = None if self._last_ack_s is None else now_s - self._last_ack_s
        process, hold_s = self._process, self._restart_at_s or child["hold_until_s"]
        tries_us = None if hold_s is None else time.time_ns() // 1000 + int((hold_s - now_s) * 1e6)
        well = self._alive and child["state"] == SENDING and not child["stuck"]
        follows = "desired_file" in self._config
        desired = {"desired": self.outcome or None} if follows else {}
        return {
            **{key: value for key, value in child.items() if key != "hold_until_s"},
            **counted,
            **desired,
            "windows": windows,
            "open": opens_in_s(windows, time.time()) is None,
            "connected": self._alive and child["state"] == SENDING and child["requests"] > 0,
            "pages_sent": counted["sent_pages"],
            "bytes_sent": counted["bytes"],
            "pages_acked": counted["acked_pages"],
            "retries": counted["failures"],
            "last_ack_us": self._last_ack_us,
            "next_try_us": tries_us,
            "problem": "" if well else child["last_error"],
            "alive": self._alive,
            "pid": None if process is None else process.pid,
            "starts": self._starts,
            "last_ack_age_s": age_s,
        }

    def _counted(self) -> dict[str, int]:
        return {key: self._ended[key] + int(self._status[key]) for key in _COUNTERS}

    def _notify(self, status: dict[str, Any]) -> None:
        event, alarms = self._last_event
        now = "up" if status["state"] == SENDING else "down"
        self._last_event = (now, status["alarms"])
        if status["alarms"] > alarms:
            self.on_event("alarm", status["last_error"])
        if now != event:
            self.on_event(now, status["last_error"] if now == "down" else "")

    def restart_if_dead(self) -> bool:
        """Start a new child if the old one died and its backoff is over; True if it started one."""
        if self._process is not None:
            if self._alive and self._process.poll() is None:
                return False
            self._reap(self._process)
        if self._restart_at_s is None or boot_us() / 1e6 < self._restart_at_s:
            return False
        self._restart_at_s = None
        self._timer.disarm()
        try:
            self.start()
        except OSError as problem:  # no memory or descriptors for a process; that may pass
            self._status = {
                **self._status,
                "last_error": f"the uplink process did not start: {problem}",
            }
            self._started_s = boot_us() / 1e6
            self._set_restart()
            return False
        return True

    def close(self) -> None:
        """End the child.  Requests in flight are dropped; their pages stay pending in the store."""
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
        if self._notice >= 0:
            os.close(self._notice)
            self._notice = -1

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Reap a child that died or closed its socket, and schedule the next."""
        self._alive = False
        self._hang_up()
        process.kill()
        process.wait()
        self._process = None
        self._set_restart()

    def _set_restart(self) -> None:
        now_s = boot_us() / 1e6
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

    def _command(self, what: str, value: Any, key: Hashable | None = None) -> None:
        """Queue a command; it replaces a queued one with the same key (default: its name)."""
        if self._alive:
            self._out.put({what: value}, what if key is None else key)
            self._flush()

    def _flush(self) -> None:
        if self._channel is None:
            return
        try:
            self._out.send(self._channel)
        except ConnectionError:
            self._alive = False
            self._out.clear()
        self._update_watch()

    def _lines(self) -> list[bytes]:
        """The complete lines received."""
        data = bytearray(self._rest)
        while self._channel is not None:
            try:
                size = self._channel.recv_into(self._received)
            except BlockingIOError:
                break
            except ConnectionError:
                size = 0
            if not size:
                self._alive = False
                break
            data += self._received[:size]
        *lines, self._rest = bytes(data).split(b"\n")
        return lines


def _is_own(stream: str) -> bool:
    """Whether the centre knows no stream of this name."""
    return is_link(stream) or is_carried(stream)
