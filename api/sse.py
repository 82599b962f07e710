"""Live events and snapshots as Server-Sent Events (WHATWG HTML, 9.2).

    id: 4711
    event: event          an event, as GET /v1/events lists them
    data: {…}

    event: snapshot       the daemon's state, once a second
    event: daemon         {"up": false}: the daemon is gone, its last state is stale; true: back
    event: missed         {"count": 3}: events that were dropped because the reader was too slow
    : still here          a comment every HEARTBEAT_S, so that dead connections are noticed

A browser that reconnects sends Last-Event-ID and first receives the events since then.  Each reader
has a mailbox of bounded size (`api.door_client`); one that takes nothing for SLOW_S is
disconnected.  The reader's token is checked before each message: the stream ends when the token
expires or is revoked.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from anyio import fail_after
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.door_client import DoorClient, Mailbox
from api.guard import places
from api.problems import ApiProblem

HEARTBEAT_S = 15.0
SLOW_S = 20.0
READERS_MAX = 32
RETRY_MS = 2000
BACKLOG_MAX = 1000
"""As many events as the daemon keeps."""
MEDIA_TYPE = "text/event-stream"
_LAST = re.compile(r"[0-9]{1,18}")


class LiveStreams:
    """All live readers of one API."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def enter(self, local: bool) -> None:
        """Count the running task as a reader.  Raises ApiProblem 429."""
        if len(self._tasks) >= places(READERS_MAX, local):
            raise ApiProblem(
                "busy", f"{READERS_MAX} live readers are there already", retry_after_s=30
            )
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """End all streams."""
        for task in self._tasks:
            task.cancel()


class EventStream(Response):
    """A response that lasts until its reader disconnects."""

    media_type = MEDIA_TYPE

    def __init__(self, door: DoorClient, last_event_id: str | None) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.raw_headers[[name for name, _ in self.raw_headers].index(b"content-length")]
        self._door, self._last = door, _parse(last_event_id)
        self._backlog_ids = range(0)
        """Ids sent as backlog, which may arrive live once more."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send news until the reader disconnects, is too slow, or the API ends."""
        scope["state"]["release"]()  # a live stream does not count towards `concurrency_max`
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        telling = asyncio.create_task(self._tell(send, scope["state"]["holds"]))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await asyncio.wait({telling}, timeout=0)
        finally:
            slow = telling.done() and isinstance(_error(telling), TimeoutError)
            for task in (telling, leaving):
                task.cancel()
            await asyncio.gather(telling, leaving, return_exceptions=True)
            if slow:
                scope["state"]["peer"].abort()
            else:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, send: Send, holds: Callable[[], bool]) -> None:
        async def put(text: str) -> None:
            body = {"type": "http.response.body", "body": text.encode(), "more_body": True}
            with fail_after(SLOW_S):
                await send(body)

        await put(f"retry: {RETRY_MS}\n\n")
        async with self._door.reader() as mailbox:
            async for text in self._backlog():
                await put(text)
            while True:
                if not await mailbox.wait(HEARTBEAT_S):
                    await put(": still here\n\n")
                if not holds():
                    return
                if text := "".join(self._news(mailbox)):
                    await put(text)

    async def _backlog(self) -> AsyncIterator[str]:
        """The events since Last-Event-ID."""
        if self._last is None:
            return
        try:
            answer = await self._door.ask("events", since=self._last, limit=BACKLOG_MAX)
        except ApiProblem:  # the watch reports that the daemon is gone
            return
        if answer["missed"]:
            yield _message("missed", {"count": answer["missed"]})
        if events := answer["events"]:
            self._backlog_ids = range(events[0]["id"], events[-1]["id"] + 1)
        for event in events:
            yield _event(event)

    def _news(self, mailbox: Mailbox) -> list[str]:
        """Everything queued in the mailbox."""
        messages = []
        if mailbox.up is not None:
            messages.append(_message("daemon", {"up": mailbox.up}))
            mailbox.up = None
        if mailbox.missed:
            messages.append(_message("missed", {"count": mailbox.missed}))
            mailbox.missed = 0
        while mailbox.events:
            event = mailbox.events.popleft()
            if event["id"] not in self._backlog_ids:
                messages.append(_event(event))
        if mailbox.snapshot is not None:
            messages.append(_message("snapshot", mailbox.snapshot))
            mailbox.snapshot = None
        return messages


def _event(event: dict[str, Any]) -> str:
    return f"id: {event['id']}\n" + _message("event", event)


def _message(kind: str, data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def _parse(last_event_id: str | None) -> int | None:
    return int(last_event_id) if last_event_id and _LAST.fullmatch(last_event_id) else None


def _error(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
