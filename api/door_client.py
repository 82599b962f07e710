"""The daemon's control door for asyncio: commands, one shared snapshot, one shared watch.

The number of clients does not raise the load on the daemon.  A snapshot is reused for FRESH_S;
concurrent requests for the next one share one request; all live readers share one `watch`
connection, open from the first reader to the last.  A slow reader holds up no other: its unsent
snapshot is replaced by the newest, and the number of events it missed is reported to it.

A refusal of the door becomes an `ApiProblem`.  A missing answer is 503 if nothing was carried out
(the command only reads, or was not sent), else 504: the daemon may have carried it out, or may
still do so.  Reads and changes have separate limits on concurrency, so that changes that wait for a
slow disk do not block reads; waiting for a place counts towards a request's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from anyio import fail_after, move_on_after

from api.problems import ApiProblem, ProblemFault
from api.rates import SPAN_S_MIN, Rates

FRESH_S = 0.25
"""Age up to which a snapshot counts as current."""
ANSWER_BYTES_MAX = 32 << 20
REQUESTS_MAX = 16
"""Concurrent reads at the door, and as many changes; the door refuses more than 64 clients."""
TIMEOUT_S = 30.0
WATCH_INTERVAL_MS = 1000
EVENTS_MAX = 256
"""Events queued for a reader before it loses the oldest."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.25, 5.0
RETRY_S = 2
"""Retry-After when the daemon did not answer."""

Snapshot = dict[str, Any]

_READS = frozenset(("status", "jobs", "job", "job.validate", "events", "config", "graphs", "graph"))
_KINDS = {
    "invalid": "invalid",
    "missing": "not-found",
    "conflict": "conflict",
    "busy": "unavailable",
    "unsupported": "unsupported",
    "failed": "failed",
}


class DoorClient:
    """A client of the door at `path`.  All methods belong to one event loop."""

    def __init__(self, path: str, timeout_s: float = TIMEOUT_S) -> None:
        self.path, self._timeout_s = path, timeout_s
        self.latest: Snapshot | None = None
        """The last snapshot received, however old."""
        self._latest_s = 0.0
        self._coming: asyncio.Task[Snapshot] | None = None
        self._changed = 0
        """Number of calls of `forget`."""
        self._reads = asyncio.Semaphore(REQUESTS_MAX)
        self._changes = asyncio.Semaphore(REQUESTS_MAX)
        self._watch = DoorWatch(self)
        self._rates = Rates()

    async def ask(
        self, cmd: str, *, within_s: float | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """The door's answer to a command, within the default timeout or `within_s`.

        Raises ApiProblem; see the module's docstring for 503 and 504.
        """
        most_s = self._timeout_s if within_s is None else within_s
        asked = _PendingCommand(cmd, arguments)
        try:
            with fail_after(most_s):
                answer = await self._exchange(asked)
        except (OSError, ValueError) as problem:  # a TimeoutError is an OSError
            why = str(problem) or f"nothing came within {most_s:g} s"
            raise (unknown if asked.sent and asked.changes else down)(self.path, why) from None
        if "error" in answer:
            raise refused(answer)
        return answer

    async def snapshot(self, fresh_s: float = FRESH_S) -> Snapshot:
        """The daemon's state, at most `fresh_s` old.  Raises ApiProblem."""
        if self.latest is not None and time.monotonic() - self._latest_s < fresh_s:
            return self.latest
        if self._coming is None:
            self._coming = asyncio.create_task(self._fetch(self._changed))
        return await asyncio.shield(self._coming)

    def take(self, snapshot: Snapshot) -> None:
        """Record a snapshot."""
        self.latest, self._latest_s = snapshot, time.monotonic()
        self._rates.take(snapshot)

    async def rates(self) -> tuple[Snapshot, Rates]:
        """The state and its rates per second; the first call waits for a second snapshot.  Raises
        ApiProblem."""
        snapshot = await self.snapshot()
        if not self._rates.known():
            await asyncio.sleep(SPAN_S_MIN + FRESH_S)
            snapshot = await self.snapshot()
        return snapshot, self._rates

    def forget(self) -> None:
        """Invalidate the last snapshot and those requested before this call, after a change."""
        self._latest_s, self._coming = 0.0, None
        self._changed += 1

    async def changed(self) -> Snapshot:
        """The state after a change.  Raises ApiProblem 504 if the daemon does not answer."""
        self.forget()
        try:
            return await self.snapshot()
        except ApiProblem as problem:
            what = f"the change was made, but the new state is unknown: {problem.detail}"
            do = "read the resource when the daemon answers"
            raise ApiProblem("unknown-outcome", what, do, retry_after_s=RETRY_S) from None

    @contextlib.asynccontextmanager
    async def reader(self) -> AsyncIterator[Mailbox]:
        """A live reader's mailbox for the duration of the block."""
        mailbox = Mailbox()
        self._watch.join(mailbox)
        try:
            yield mailbox
        finally:
            self._watch.leave(mailbox)

    def readers(self) -> int:
        """Number of live readers."""
        return len(self._watch.mailboxes)

    async def close(self) -> None:
        """End the watch."""
        await self._watch.end()

    async def connect(self, request: dict[str, Any]) -> DoorConnection:
        """A connection on which `request` was sent.  Raises OSError."""
        connection = await self._open()
        await connection.say(request)
        return connection

    async def _exchange(self, asked: _PendingCommand) -> dict[str, Any]:
        async with self._changes if asked.changes else self._reads:
            connection = await self._open()
            try:
                asked.sent = True
                await connection.say(asked.request)
                return await connection.line()
            finally:
                connection.close()

    async def _open(self) -> DoorConnection:
        return DoorConnection(
            *await asyncio.open_unix_connection(self.path, limit=ANSWER_BYTES_MAX)
        )

    async def _fetch(self, changed: int) -> Snapshot:
        try:
            snapshot = await self.ask("status")
            if changed == self._changed:
                self.take(snapshot)
            return snapshot
        finally:
            if changed == self._changed:
                self._coming = None


class _PendingCommand:
    """A command on its way to the door."""

    def __init__(self, cmd: str, arguments: dict[str, Any]) -> None:
        self.request = {"cmd": cmd, **arguments}
        self.changes = cmd not in _READS and not (cmd == "log" and not arguments)
        self.sent = False
        """Whether any of it may have reached the daemon."""


class DoorConnection:
    """A connection to the door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def say(self, request: dict[str, Any]) -> None:
        """Send a request.  Raises OSError."""
        self._writer.write(json.dumps(request).encode() + b"\n")
        await self._writer.drain()

    async def line(self) -> dict[str, Any]:
        """The next line.  Raises OSError at the end of the connection, ValueError for invalid
        JSON."""
        line = await self._reader.readline()
        if not line:
            raise ConnectionResetError("the daemon hung up")
        answer = _sendable(line)
        if not isinstance(answer, dict):
            raise ValueError("the answer is not an object")
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class Mailbox:
    """Queue of one live reader: the newest snapshot, some events, and the number of lost ones."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.events: deque[dict[str, Any]] = deque()
        self.missed = 0
        self.up: bool | None = None
        """Whether the daemon is there, if that has changed; None: unchanged."""
        self._arrived = asyncio.Event()

    def put_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the queued snapshot."""
        self.snapshot = snapshot
        self._arrived.set()

    def put_event(self, event: dict[str, Any]) -> None:
        """Queue an event; above the limit, the oldest is lost and counted."""
        if len(self.events) >= EVENTS_MAX:
            self.events.popleft()
            self.missed += 1
        self.events.append(event)
        self._arrived.set()

    def put_missed(self, count: int) -> None:
        """Count events that the daemon itself could not keep."""
        self.missed += count
        self._arrived.set()

    def put_up(self, up: bool) -> None:
        """Record that the daemon came or went."""
        self.up = up
        self._arrived.set()

    async def wait(self, seconds: float) -> bool:
        """Wait until something is queued; false after `seconds` without anything."""
        with move_on_after(seconds):
            await self._arrived.wait()
        arrived = self._arrived.is_set()
        self._arrived.clear()
        return arrived


class DoorWatch:
    """The single `watch` connection to the door, shared by all live readers."""

    def __init__(self, door: DoorClient) -> None:
        self._door = door
        self.mailboxes: set[Mailbox] = set()
        self._task: asyncio.Task[None] | None = None
        self._up: bool | None = None
        self._last: int | None = None
        """Id of the newest event: a new connection continues after it."""

    def join(self, mailbox: Mailbox) -> None:
        """Deliver to a mailbox from now on."""
        self.mailboxes.add(mailbox)
        if self._up is not None:
            mailbox.put_up(self._up)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self, mailbox: Mailbox) -> None:
        """Stop delivering to a mailbox; the last one ends the watch."""
        self.mailboxes.discard(mailbox)
        if not self.mailboxes and self._task is not None:
            self._task.cancel()
            self._task = self._up = self._last = None

    async def end(self) -> None:
        """Close the connection to the daemon."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        pause_s = BACKOFF_S_MIN
        while True:
            with contextlib.suppress(OSError, ValueError):
                request: dict[str, Any] = {"cmd": "watch", "interval_ms": WATCH_INTERVAL_MS}
                if self._last is not None:
                    request["since"] = self._last
                connection = await self._door.connect(request)
                try:
                    pause_s = await self._listen(connection, pause_s)
                finally:
                    connection.close()
            self._tell(False)
            self._door.forget()
            await asyncio.sleep(pause_s)
            pause_s = min(BACKOFF_S_MAX, 2 * pause_s)

    async def _listen(self, connection: DoorConnection, pause_s: float) -> float:
        with contextlib.suppress(OSError, ValueError):
            while True:
                self._deliver(await connection.line())
                pause_s = BACKOFF_S_MIN
        return pause_s

    def _deliver(self, line: dict[str, Any]) -> None:
        if "error" in line:
            raise ValueError(line["error"])
        if "snapshot" in line:
            self._tell(True)
            self._door.take(line["snapshot"])
        if "event" in line:
            self._last = int(line["event"]["id"])
        for mailbox in self.mailboxes:
            if "snapshot" in line:
                mailbox.put_snapshot(line["snapshot"])
            if "event" in line:
                mailbox.put_event(line["event"])
            if "missed" in line:
                mailbox.put_missed(int(line["missed"]))

    def _tell(self, up: bool) -> None:
        if up != self._up:
            self._up = up
            for mailbox in self.mailboxes:
                mailbox.put_up(up)


def _sendable(line: bytes) -> Any:
    """The JSON of a line, made valid for sending: NaN and infinities become null, lone surrogates
    (possible in file names) become `?`."""
    answer = json.loads(line, parse_constant=lambda _: None)
    if b"\\ud" in line:
        text = json.dumps(answer, ensure_ascii=False).encode(errors="replace")
        answer = json.loads(text)
    return answer


def refused(answer: dict[str, Any]) -> ApiProblem:
    """The door's error as a problem: its advice is in `do` alone, a located fault also in
    `errors`."""
    kind = _KINDS.get(str(answer.get("kind", "invalid")), "failed")
    where, what, do = (str(answer.get(key, "")) for key in ("where", "what", "do"))
    what = what or str(answer["error"])
    if kind == "not-found":
        do = do or "GET /v1/jobs lists the jobs that there are"
    faults = (ProblemFault(where, what, do),) if where else ()
    retry_s = max(1, round(float(answer.get("retry_s") or 1))) if kind == "unavailable" else None
    return ApiProblem(kind, f"{where}: {what}" if where else what, do, faults, retry_s)


class DaemonDown(ApiProblem):
    """The daemon does not answer, and nothing was carried out."""


def down(path: str, why: str) -> DaemonDown:
    """The problem of a daemon at `path` that does not answer."""
    return DaemonDown(
        "unavailable",
        f"the daemon does not answer at {path}: {why}",
        "see `systemctl status edged`; requests work again when it is back",
        retry_after_s=RETRY_S,
    )


def unknown(path: str, why: str) -> ApiProblem:
    """A change was sent, and its outcome is unknown."""
    return ApiProblem(
        "unknown-outcome",
        f"the change was sent to {path}, but not answered: {why}",
        "read the resource: it may have been changed, or may be yet; repeat what still applies",
        retry_after_s=RETRY_S,
    )
