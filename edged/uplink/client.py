"""An HTTP client of the collector with one persistent connection."""

from __future__ import annotations

import email.utils
import http.client
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from edged.platform.clock import suspended_us
from edged.platform.trust import trusting
from edged.uplink import integrity
from edged.uplink.answer_wait import AnswerWait
from edged.uplink.tasks import NoReply, Reply

_REPLY_BYTES_MAX = 4 << 20
STALE_US = 60_000_000
"""A connection over a longer suspend is given up: the centre or a router may have forgotten it, and
the first request would wait for its answer in vain."""


class CollectorClient:
    """Sends requests one after the other; `headers` may be changed in between.  Errors of the
    network or the centre are returned as NoReply, never raised.  `timeout_s` limits each read and
    write; the wait for an answer is shorter where answers were quick (`AnswerWait`)."""

    def __init__(
        self, url: str, headers: Mapping[str, str], ca: str | None, timeout_s: float
    ) -> None:
        self.headers = dict(headers)
        self._timeout_s, self._wait = timeout_s, AnswerWait(timeout_s)
        parts = urlsplit(url)
        self._suspended_us = suspended_us()
        self._path = parts.path.rstrip("/")
        host, port = parts.hostname or "", parts.port
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = trusting(ca)
            self._connection = http.client.HTTPSConnection(
                host, port, timeout=timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)

    def put_schema(self, stream: str, version: int, text: str) -> Reply | NoReply:
        """Register a schema."""
        body = text.encode()
        guard = self._check(f"{stream}@{version}", body)
        return self._send("PUT", f"/v1/schemas/{quote(stream)}/{version}", [body], guard)

    def post_pages(self, *pages: memoryview | bytes) -> Reply | NoReply:
        """Send pages, each buffer after the other in one body."""
        return self._send("POST", "/v1/pages", pages, self._check("pages", b""))

    def _check(self, what: str, body: bytes) -> str:
        names = ("X-Edged-Device", "X-Edged-Epoch", "X-Edged-Session")
        device, epoch, session = (self.headers.get(name, "") for name in names)
        return integrity.request_check(device, epoch, session, what, body)

    def _send(
        self, method: str, path: str, body: Sequence[bytes | memoryview], guard: str
    ) -> Reply | NoReply:
        was_us, self._suspended_us = self._suspended_us, suspended_us()
        if self._suspended_us - was_us > STALE_US:
            self._connection.close()
        kept = self._connection.sock is not None
        try:
            return self._once(method, path, body, guard)
        except (OSError, http.client.HTTPException, ValueError) as problem:
            gone = isinstance(problem, ConnectionError)  # the centre closed an idle connection
            if not (kept and gone):
                return self._failed(problem)
            self._connection.close()
        try:
            return self._once(method, path, body, guard)
        except (OSError, http.client.HTTPException, ValueError) as problem:
            return self._failed(problem)

    def _failed(self, problem: Exception) -> NoReply:
        self._connection.close()
        if isinstance(problem, TimeoutError):
            self._wait.in_vain()
        return NoReply(f"{type(problem).__name__}: {problem}")

    def _once(
        self, method: str, path: str, body: Sequence[bytes | memoryview], guard: str
    ) -> Reply:
        connection, began_s = self._connection, time.monotonic()
        if connection.sock is not None:
            connection.sock.settimeout(self._timeout_s)
        connection.putrequest(method, self._path + path, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.putheader(integrity.HEADER, guard)
        sent = sum(len(part) for part in body)
        connection.putheader("Content-Length", str(sent))
        connection.endheaders()
        try:
            for part in body:
                connection.send(part)
        except (BrokenPipeError, ConnectionResetError):
            sent = 0  # the answer may precede the end of the body: 401, 413
        connection.sock.settimeout(self._wait.seconds)
        response = connection.getresponse()
        data = response.read(_REPLY_BYTES_MAX)
        self._wait.answered(time.monotonic() - began_s)
        if response.will_close or not response.isclosed():
            connection.close()
        if response.getheader(integrity.HEADER, integrity.body_check(data)) != integrity.body_check(
            data
        ):
            raise ValueError("the answer does not match its checksum: it was damaged in transit")
        reply, device = _json(data), self.headers.get("X-Edged-Device")
        if reply.get("device", device) != device:
            raise ValueError("the answer is for another device: a proxy mixed up two connections")
        return Reply(response.status, reply, sent, _retry_after_s(response))


def _retry_after_s(response: http.client.HTTPResponse) -> float | None:
    """Retry-After in seconds (RFC 9110, 10.2.3); None without a valid one.

    A date counts from the answer's own Date: the device's clock may be wrong.
    """
    text = response.getheader("Retry-After", "").strip()
    if text.isascii() and text.isdecimal():
        return float(text[:10])
    try:
        until = email.utils.parsedate_to_datetime(text)
        said = email.utils.parsedate_to_datetime(response.getheader("Date", ""))
        return (until - said).total_seconds()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _json(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data) if data else {}
    except ValueError:
        body = {}
    return body if isinstance(body, dict) else {}
