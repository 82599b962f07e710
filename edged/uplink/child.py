"""The uplink process: the daemon's socket on one side, lanes (threads) to the centre on the other.

The daemon sends lines of JSON, first `config`, then any of the others:

    {"config": {...}}
    {"offer": [[file, [[stream, partition, seq, offset, length], ...]], ...]}
    {"schemas": [[stream, version, text], ...]}
    {"report": {"seq", "values", "bytes_max", "first"}}        (edged/uplink/telemetry.py)
    {"lost": [[stream, partition, first, last], ...]}
    {"windows": [[from_s, until_s], ...]}
    {"retry": true}
    {"resumed": true}                                          (the machine was suspended)
    {"links": [{...}, ...]}                                    (edged/uplink/links.py)

After each answer that acknowledged pages or changed the state the child sends

    {"acked": [[stream, partition, seq], ...], "status": {...},
     "unreadable": [[stream, partition]],       (only after a page could not be read)
     "missing": [[stream, partition, seq]]}     (only where the centre asks for a page not offered)

Links send likewise, with `links`, their states, instead of `status`; so do other devices whose
pages are forwarded (edged/uplink/forwarder.py).

A desired state is written to `desired_file` atomically before its version is sent to the daemon.
The eventfd `notice` then wakes the daemon.  It also does so when the socket is full of unread
lines.

Threads: the main thread only reads the daemon's socket.  Each lane takes a task from the sender,
executes it on blocking sockets and returns the result.  An idle process sleeps in the kernel
without timers.  Of the idle lanes the most recently used is woken, so that few pages use one warm
connection.  The process ends when the daemon's end of the socket closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

from edged.links.page import is_link
from edged.pages.container import is_carried
from edged.platform.backoff import jitter
from edged.platform.clock import boot_us
from edged.uplink import telemetry
from edged.uplink.client import CollectorClient
from edged.uplink.execution import execute, lost_header
from edged.uplink.forwarder import Forwarder
from edged.uplink.json_file import replace_json
from edged.uplink.links import LinkSenders
from edged.uplink.outbox import READ_BYTES
from edged.uplink.pages import PageReader
from edged.uplink.send_queue import PageLocation
from edged.uplink.sender import Sender
from edged.uplink.tasks import RegisterSchema, Result, SendPages, Task, Unreadable
from edged.uplink.upload_schedule import opens_in_s


class Child:
    """The sender, its lock, and the state that the lanes share."""

    def __init__(
        self, channel: socket.socket, config: dict[str, Any], notice: int | None = None
    ) -> None:
        self._channel, self._notice = channel, notice
        self._config = config
        self._sender = Sender(
            [(s, int(v), text) for s, v, text in config["schemas"]],
            jitter,
            int(config["request_bytes"]),
        )
        self._sender.desired_version = int(config.get("desired_version", 0))
        for lost in config.get("lost", ()):
            if not _is_others(lost[0]):
                self._sender.lost(*lost)
        self._windows = config.get("windows", [])
        self._opened = False
        """Whether `retry` has opened the upload windows until all waiting pages are sent."""
        self._lock = threading.Lock()
        self._idle: list[threading.Condition] = []
        self._writing = threading.Lock()
        self._returning = 0
        """Lanes between two tasks: they will find new work without being woken."""
        self._links = LinkSenders(self._on_links)
        self._forwarder = Forwarder(config, self._on_links, self._opens_in_s)

    def start(self) -> None:
        """Start the lanes, if there is a centre, and the links."""
        self._links.follow(self._config.get("links", ()))
        for i in range(int(self._config["lanes"]) if self._config["url"] else 0):
            threading.Thread(target=self._lane, name=f"lane-{i}", daemon=True).start()

    def command(self, message: dict[str, Any]) -> None:
        """Execute one line of the daemon."""
        offered = [
            PageLocation(stream, partition, seq, file, offset, length)
            for file, pages in message.get("offer", ())
            for stream, partition, seq, offset, length in pages
        ]
        lost = message.get("lost", ())
        self._command_others(message, offered, lost)
        with self._lock:
            for stream, version, text in message.get("schemas", ()):
                self._sender.register(stream, int(version), text)
            for place in offered:
                if not _is_others(place.stream):
                    self._sender.offer(place)
            for pages in lost:
                if not _is_others(pages[0]):
                    self._sender.lost(*pages)
            if message.get("retry"):
                self._opened = True
                self._sender.retry()
            if message.get("resumed"):
                self._sender.retry()
                self._wake_all()
            if "windows" in message:
                self._windows, self._opened = message["windows"], False
            if "report" in message:
                self._report(**message["report"])
            if not self._returning:
                self._wake()
        if "windows" in message or message.get("resumed"):
            self._forwarder.windows_changed()

    def _command_others(
        self, message: dict[str, Any], offered: list[PageLocation], lost: list[Any]
    ) -> None:
        """The part of a line for links and for devices whose pages are forwarded.  Without the
        lock: they may report at once, and lanes take the lock while they report."""
        if "links" in message:
            self._links.follow(message["links"])
        for place in offered:
            if _is_others(place.stream):
                self._other(place.stream).offer(place)
        for pages in lost:
            if _is_others(pages[0]):
                self._other(pages[0]).lost(*pages)
        if message.get("retry"):
            self._links.retry()
            self._forwarder.retry()
        elif message.get("resumed"):
            self._links.retry()

    def _other(self, stream: str) -> LinkSenders | Forwarder:
        """What sends the pages of this name."""
        return self._links if is_link(stream) else self._forwarder

    def _opens_in_s(self) -> float | None:
        """When the upload windows open; None: they are open."""
        return opens_in_s(self._windows, time.time())

    def _report(self, seq: int, values: list[Any], bytes_max: int, first: bool) -> None:
        device, epoch = self._config["device"], self._config["epoch"]
        self._sender.reports_first = first
        self._sender.report(telemetry.page(device, epoch, seq, values, bytes_max))

    def _wake(self) -> None:
        """Wake the lane that became idle last.  The lock is held."""
        if self._idle:
            self._idle.pop().notify()

    def _wake_all(self) -> None:
        """Have every idle lane compute its wait again: its timeout has not counted a suspend.  The
        lock is held."""
        while self._idle:
            self._wake()

    def _lane(self) -> None:
        woken = threading.Condition(self._lock)
        client = CollectorClient(
            self._config["url"], self._headers(), self._config["ca"], self._config["timeout_s"]
        )
        reader = PageReader()
        with self._lock:
            self._returning += 1
        while True:
            task = self._wait(woken)
            client.headers = self._headers() | lost_header(task)
            self._done(task, execute(task, client, reader))

    def _headers(self) -> dict[str, str]:
        config = self._config
        headers = {
            "X-Edged-Device": config["device"],
            "X-Edged-Epoch": str(config["epoch"]),
            "X-Edged-Session": "{}:{}".format(*config["session"]),
            "X-Edged-Desired": str(self._sender.desired_version),
            "Content-Type": "application/octet-stream",
        }
        if config["token"]:
            headers["Authorization"] = f"Bearer {config['token']}"
        return headers

    def _wait(self, woken: threading.Condition) -> Task:
        """Block until there is a task; wakes another lane if there is a second one."""
        with self._lock:
            self._returning -= 1
            while True:
                now_s = boot_us() / 1e6
                self._apply_windows(now_s)
                task = self._sender.next(now_s)
                if isinstance(task, RegisterSchema | SendPages):
                    if self._sender.more(now_s):
                        self._wake()
                    return task
                self._idle.append(woken)
                woken.wait(None if task is None else max(0.001, task - now_s))
                if woken in self._idle:
                    self._idle.remove(woken)

    def _apply_windows(self, now_s: float) -> None:
        self._opened = self._opened and self._sender.queue.pages > 0
        wait_s = None if self._opened else self._opens_in_s()
        self._sender.closed_until_s = None if wait_s is None else now_s + wait_s

    def _done(self, task: Task, result: Result) -> None:
        with self._writing:
            with self._lock:
                self._returning += 1
                self._sender.done(task, result, boot_us() / 1e6)
                acks = self._sender.take_acks()
                missing = self._sender.take_missing()
                urgent = bool(missing) or isinstance(result, Unreadable)
                if not acks and not self._sender.status_changed and not urgent:
                    return
                self._sender.status_changed = False
                status = self._sender.status()
                document, self._sender.document = self._sender.document, None
            if document is not None and self._config["desired_file"] is not None:
                replace_json(Path(self._config["desired_file"]), document)
            message = {"acked": acks, "status": status}
            if missing:
                message["missing"] = missing
            if isinstance(result, Unreadable):
                message["unreadable"] = [[result.place.stream, result.place.partition]]
            self._send_line(json.dumps(message).encode() + b"\n")
            if document is not None or urgent:
                self._wake_daemon()

    def _on_links(self, message: dict[str, Any], urgent: bool) -> None:
        """Send what a link reports; the daemon reads it now if it is urgent."""
        with self._writing:
            self._send_line(json.dumps(message).encode() + b"\n")
        if urgent:
            self._wake_daemon()

    def _send_line(self, line: bytes) -> None:
        """Send a line to the daemon, which reads it at its next wake.  If the socket is full, the
        daemon is woken to make room."""
        rest = memoryview(line)
        with contextlib.suppress(ConnectionError):  # the daemon died; this process ends too
            with contextlib.suppress(BlockingIOError):
                rest = rest[self._channel.send(rest, socket.MSG_DONTWAIT) :]
            if rest:
                self._wake_daemon()
                self._channel.sendall(rest)

    def _wake_daemon(self) -> None:
        if self._notice is not None:
            os.eventfd_write(self._notice, 1)


def _is_others(stream: str) -> bool:
    """Whether pages of this name go to a link's receiver, or in another device's name."""
    return is_link(stream) or is_carried(stream)


def run(fd: int, notice: int | None = None) -> None:
    """Serve the daemon at the other end of socket `fd` until it closes; `notice` is an eventfd."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is handled by the daemon
    channel = socket.socket(fileno=fd)
    child: Child | None = None
    rest, memory = b"", bytearray(READ_BYTES)
    while True:
        try:
            size = channel.recv_into(memory)
        except ConnectionError:
            size = 0
        if not size:
            os._exit(0)
        *lines, rest = (rest + memory[:size]).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if child is None:
                child = Child(channel, message["config"], notice)
                child.start()
            else:
                child.command(message)
