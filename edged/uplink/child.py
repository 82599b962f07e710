"""The uplink's process: the daemon's socket on one side, lanes to the centre on the other.

From the daemon, a line of JSON each: first `{"config": {...}}`, then
`{"offer": [[file, [[stream, partition, seq, offset, length], ...]], ...]}`, `{"retry": true}`,
`{"token": "..."}`, `{"schemas": [[stream, version, text], ...]}`,
`{"report": {"seq", "values", "bytes_max", "first"}}` (edged/uplink/telemetry.py) or
`{"windows": [[from_s, until_s], ...]}`, further ones.  To the daemon, after an answer that
acknowledged pages or changed the state:
`{"acked": [[stream, partition, seq], ...], "status": {...}}`.

A desired state that comes is written to `desired_file`, whole or not at all, before the daemon is
told its version; the eventfd `news` wakes it then, and when it has left so many lines unread that
the socket takes no more.

Threads: this one reads the daemon's socket and nothing else; each lane asks the sender for a task,
carries it out on blocking sockets, and hands back the result.  Idle means: every thread sleeps in
the kernel without a timer.  Of idle lanes the one that worked last is woken, so that few pages use
one warm connection.  The process ends when the daemon's end of the socket closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
from typing import Any

from edged.uplink import telemetry
from edged.uplink.client import Client
from edged.uplink.pages import PageReader, WrongPage
from edged.uplink.send_queue import Place
from edged.uplink.sender import Sender
from edged.uplink.tasks import Batch, NoReply, Register, Reply, Result, Task, Unreadable
from edged.uplink.upload_schedule import opens_in_s

_READ_BYTES = 1 << 18


class Child:
    """The sender, its lock, and what both sides share."""

    def __init__(
        self, channel: socket.socket, config: dict[str, Any], news: int | None = None
    ) -> None:
        self._channel, self._news = channel, news
        self._config = config
        self._token = str(config["token"] or "")
        self._sender = Sender(
            [(s, int(v), text) for s, v, text in config["schemas"]],
            random.random,
            int(config["request_bytes"]),
        )
        self._sender.desired_version = int(config.get("desired_version", 0))
        self._windows = config.get("windows", [])
        self._opened = False
        """Whether `retry` has opened the windows until all that waits is sent."""
        self._lock = threading.Lock()
        self._idle: list[threading.Condition] = []
        self._writing = threading.Lock()
        self._returning = 0
        """Lanes on their way from a finished task to the next: they see new work by themselves."""

    def start(self) -> None:
        """Start the lanes."""
        for i in range(int(self._config["lanes"])):
            threading.Thread(target=self._lane, name=f"lane-{i}", daemon=True).start()

    def command(self, message: dict[str, Any]) -> None:
        """Take in a line from the daemon."""
        with self._lock:
            for stream, version, text in message.get("schemas", ()):
                self._sender.register(stream, int(version), text)
            for file, pages in message.get("offer", ()):
                for stream, partition, seq, offset, length in pages:
                    self._sender.offer(Place(stream, partition, seq, file, offset, length))
            if "token" in message:
                self._token = str(message["token"] or "")
                self._sender.retry()
            if message.get("retry"):
                self._opened = True
                self._sender.retry()
            if "windows" in message:
                self._windows, self._opened = message["windows"], False
            if "report" in message:
                self._report(**message["report"])
            if not self._returning:
                self._wake()

    def _report(self, seq: int, values: list[Any], bytes_max: int, first: bool) -> None:
        device, epoch = self._config["device"], self._config["epoch"]
        self._sender.reports_first = first
        self._sender.report(telemetry.page(device, epoch, seq, values, bytes_max))

    def _wake(self) -> None:
        """Wake the lane that fell idle last; the lock is held."""
        if self._idle:
            self._idle.pop().notify()

    def _lane(self) -> None:
        woken = threading.Condition(self._lock)
        client = Client(
            self._config["url"], self._headers(), self._config["ca"], self._config["timeout_s"]
        )
        reader = PageReader()
        with self._lock:
            self._returning += 1
        while True:
            task = self._wait(woken)
            client.headers = self._headers()
            try:
                result = _carry_out(task, client, reader)
            except Exception as problem:
                result = NoReply(f"{type(problem).__name__}: {problem}")
            self._done(task, result)

    def _headers(self) -> dict[str, str]:
        config = self._config
        headers = {
            "X-Edged-Device": config["device"],
            "X-Edged-Epoch": str(config["epoch"]),
            "X-Edged-Session": "{}:{}".format(*config["session"]),
            "X-Edged-Desired": str(self._sender.desired_version),
            "Content-Type": "application/octet-stream",
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _wait(self, woken: threading.Condition) -> Task:
        """The next task; wakes another lane where there is another task."""
        with self._lock:
            self._returning -= 1
            while True:
                now_s = time.monotonic()
                self._look_at_windows(now_s)
                task = self._sender.next(now_s)
                if isinstance(task, Register | Batch):
                    if self._sender.more(now_s):
                        self._wake()
                    return task
                self._idle.append(woken)
                woken.wait(None if task is None else max(0.001, task - now_s))
                if woken in self._idle:
                    self._idle.remove(woken)

    def _look_at_windows(self, now_s: float) -> None:
        self._opened = self._opened and self._sender.backlog.pages > 0
        wait_s = None if self._opened else opens_in_s(self._windows, time.time())
        self._sender.closed_until_s = None if wait_s is None else now_s + wait_s

    def _done(self, task: Task, result: Result) -> None:
        with self._writing:
            with self._lock:
                self._returning += 1
                self._sender.done(task, result, time.monotonic())
                acks = self._sender.take_acks()
                if not acks and not self._sender.news:
                    return
                self._sender.news = False
                status = self._sender.status()
                document, self._sender.document = self._sender.document, None
            if document is not None:
                _write_whole(self._config["desired_file"], document)
            self._tell(json.dumps({"acked": acks, "status": status}).encode() + b"\n")
            if document is not None:
                self._wake_daemon()

    def _tell(self, line: bytes) -> None:
        """Send the line to the daemon, which reads when it wakes for something else; where it has
        slept through so many that there is no room for this one, it is woken."""
        rest = memoryview(line)
        with contextlib.suppress(ConnectionError):  # the daemon has died, and so will this
            with contextlib.suppress(BlockingIOError):
                rest = rest[self._channel.send(rest, socket.MSG_DONTWAIT) :]
            if rest:
                self._wake_daemon()
                self._channel.sendall(rest)

    def _wake_daemon(self) -> None:
        if self._news is not None:
            os.eventfd_write(self._news, 1)


def _carry_out(task: Task, client: Client, reader: PageReader) -> Reply | NoReply | Unreadable:
    if isinstance(task, Register):
        return client.put_schema(task.stream, task.version, task.text)
    try:
        pages = reader.read(task.places)
    except WrongPage as problem:
        return Unreadable(problem.place, problem.detail)
    return client.post_pages(pages, task.report)


def _write_whole(path: str | None, document: dict[str, Any]) -> None:
    """Put the document there so that whoever reads sees all of it; a full disk keeps it away, and
    it comes again with the next process."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{path}.new", path)  # noqa: PTH105


def run(fd: int, news: int | None = None) -> None:
    """Serve the daemon at the other end of socket `fd` until it closes; `news` is an eventfd."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the daemon's to handle
    channel = socket.socket(fileno=fd)
    child: Child | None = None
    rest = b""
    while True:
        try:
            data = channel.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            os._exit(0)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if child is None:
                child = Child(channel, message["config"], news)
                child.start()
            else:
                child.command(message)
