"""uvicorn's protocol on llhttp (httptools), for a server of many small requests.

Beside uvicorn's own: the limits of `request_timeouts`, a bound on what is neither a complete header
nor a body (HEAD_BYTES_MAX), and one write for the head and the body of an answer.  llhttp is strict
as uvicorn sets it: a request with both Content-Length and Transfer-Encoding is malformed.

An application that is a `DirectApplication` is offered each request whose body came with its head,
without a task; it leaves those to ASGI that it does not take.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from edged.http.request_timeouts import HeadTimeout

HEAD_BYTES_MAX = 16 << 10
"""Bytes of a header, or of what lies between two pieces of a chunked body, beyond one read of the
socket."""


BULK_BYTES = 64 << 10
"""A read of as much is of a client that sends faster than the loop reads."""
Headers = Iterable[tuple[bytes, bytes]]


class AnswerInOneWrite(RequestResponseCycle):
    """A request and its answer.  The answer's head waits for its body, which is sent in one
    message; a second message of body is refused with RuntimeError."""

    _head: Any = None

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send the whole answer, unless the client has gone."""
        if self.disconnected or self.response_complete:
            return
        answer = self._answer(status, headers, body)
        self.response_started = self.response_complete = True
        self.transport.write(answer)
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    async def send(self, message: Any) -> None:
        """See ASGI."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self._head = message
            return
        if self._head is None or self.response_started or message.get("more_body"):
            raise RuntimeError(f"unexpected {message['type']}: an answer is a head and a body")
        self.answer(self._head["status"], self._head["headers"], message.get("body", b""))

    def _answer(self, status: int, headers: Headers, body: bytes) -> bytes:
        parts = [STATUS_LINE[status]]
        sized = status in (204, 304)
        for name, value in (*self.default_headers, *headers):
            if b"\n" in value or b"\r" in value:
                raise RuntimeError(f"the value of {name!r} has a line break")
            sized |= name == b"content-length"
            if name == b"connection":
                self.keep_alive &= value.lower() != b"close"
                continue
            parts += (name, b": ", value, b"\r\n")
        if not sized:
            parts.append(b"content-length: %d\r\n" % len(body))
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        if self.scope["method"] != "HEAD":
            parts.append(body)
        return b"".join(parts)


class DirectApplication(ABC):
    """An application that answers some requests without ASGI."""

    @abstractmethod
    def take(self, request: AnswerInOneWrite) -> bool:
        """Whether it answers the complete `request`, now or later, once, on the event loop.

        An answer that comes before the return closes the connection.
        """

    @abstractmethod
    def on_bulk(self) -> None:
        """BULK_BYTES or more were read at once."""


class LlhttpProtocol(HeadTimeout, HttpToolsProtocol):
    """One connection.  It has no WebSockets, and no limit on concurrent requests."""

    _unproductive = 0
    """Bytes since a header, a piece of a body or a request was complete."""
    _begun: AnswerInOneWrite | None = None
    """The request that was begun by the data being parsed."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._direct = self.app if isinstance(self.app, DirectApplication) else None

    def data_received(self, data: bytes) -> None:
        """Parse; a connection that sends too much of a header is answered 400 and closed."""
        self._unproductive += len(data)
        super().data_received(data)
        if self._unproductive > HEAD_BYTES_MAX + len(data) and not self.transport.is_closing():
            self.send_400_response("The header is too large.")
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._start(begun)
        if len(data) >= BULK_BYTES and self._direct is not None:
            self._direct.on_bulk()

    def on_headers_complete(self) -> None:
        """Start the request, or queue it behind the one that is under way."""
        self._unproductive = 0
        version, scope = self.parser.get_http_version(), self.scope
        url = httptools.parse_url(self.url)
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["raw_path"] = url.path
        scope["path"] = unquote_to_bytes(url.path).decode()
        scope["query_string"] = url.query or b""
        before, self.cycle = (
            self.cycle,
            AnswerInOneWrite(
                scope=scope,
                transport=self.transport,
                flow=self.flow,
                logger=self.logger,
                access_logger=self.access_logger,
                access_log=False,
                default_headers=self.server_state.default_headers,
                message_event=asyncio.Event(),
                expect_100_continue=self.expect_100_continue,
                keep_alive=version != "1.0" and self.parser.should_keep_alive(),
                on_response=self.on_response_complete,
            ),
        )
        if before is None or before.response_complete:
            self._begun = self.cycle
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _start(self, request: AnswerInOneWrite) -> None:
        if request.more_body or self._direct is None or not self._direct.take(request):
            task = self.loop.create_task(request.run_asgi(self.app))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start a request that waited behind another one (called by `HttpToolsProtocol`)."""
        self._start(cycle)

    def on_body(self, body: bytes) -> None:
        """See `HttpToolsProtocol`."""
        self._unproductive = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See `HttpToolsProtocol`."""
        self._unproductive = 0
        super().on_message_complete()
