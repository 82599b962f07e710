"""Checks before routing, and headers of every response.

The checks run in this order, before any of the body is read.  `Host` must be a name of this
machine, an address, or one of api.hosts: this prevents DNS rebinding, where a browser reaches the
API under a foreign name.  `Origin`, which browsers send, must be this API or one of api.origins.
Then `api.security` authenticates the client.  Concurrency is limited: connections other than those
of the unix socket may use three quarters of the places.  HEAD is handled as GET; the server omits
the body.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from email.utils import formatdate
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import ApiProblem
from api.security import Gate
from api.server import HEAD_BYTES_MAX

_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)


class Guard:
    """The outermost layer; `public` paths need no authentication."""

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate,
        public: Iterable[str],
        hosts: Iterable[str],
        origins: Iterable[str],
        concurrency_max: int,
    ) -> None:
        self._app, self._gate, self._public = app, gate, frozenset(public)
        own = {"localhost", "edged", socket.gethostname().lower()}
        self._hosts = own | {host.lower() for host in hosts}
        self._origins = frozenset(origin.rstrip("/") for origin in origins)
        self._concurrency_max = concurrency_max
        self._serving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on."""
        if scope["type"] != "http":
            return
        send = _dressed(send)
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
            scope["state"]["head"] = True
        try:
            self._admit(scope)
            release = self._enter(scope["state"]["peer"].listener.trusted)
        except ApiProblem as problem:
            await problem.response()(scope, receive, send)
            return
        scope["state"]["release"] = release
        try:
            await self._app(scope, receive, send)
        finally:
            release()

    def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        size = sum(len(name) + len(value) for name, value in headers.raw) + len(scope["raw_path"])
        if size > HEAD_BYTES_MAX:  # a header that came in one piece was not measured before
            raise ApiProblem("malformed", f"the head is larger than {HEAD_BYTES_MAX} bytes")
        host = headers.get("host", "")
        self._check_host(host)
        origin = headers.get("origin")
        if origin is not None and origin.rstrip("/") not in self._origins:
            _, _, where = origin.partition("://")
            if not where or where.lower() != host.lower():
                raise ApiProblem(
                    "forbidden",
                    f"a page of {origin[:200]} asks",
                    "open the page from this device, or add its origin to api.origins",
                )
        if scope["path"] not in self._public:
            principal = self._gate.principal(scope["state"]["peer"], headers)
            scope["state"]["principal"] = principal
            scope["state"]["holds"] = lambda: self._gate.holds(principal)

    def _check_host(self, host: str) -> None:
        found = _HOST.fullmatch(host)
        name = found[1].strip("[]").lower() if found else ""
        if name in self._hosts:
            return
        try:
            ipaddress.ip_address(name)
        except ValueError:
            raise ApiProblem("misdirected", f"this is not {host[:200]!r}") from None

    def _enter(self, local: bool) -> Callable[[], None]:
        """Count a request; returns a function that ends its count, once."""
        if self._serving >= places(self._concurrency_max, local):
            raise ApiProblem(
                "unavailable",
                f"{self._serving} requests are being served, which is the most",
                retry_after_s=1,
            )
        self._serving += 1
        left = False

        def release() -> None:
            nonlocal left
            if not left:
                left = True
                self._serving -= 1

        return release


def places(most: int, local: bool) -> int:
    """The places out of `most` for clients of the unix socket (`local`), and for others."""
    return most if local else max(1, most * 3 // 4)


def _dressed(send: Send) -> Send:
    """`send` with the headers of every response."""

    async def dressed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: list[Any] = list(message.get("headers", ()))
            there = {name.lower() for name, _ in headers}
            headers += [pair for pair in _HEADERS if pair[0] not in there]
            headers.append((b"date", formatdate(usegmt=True).encode()))
            message = {**message, "headers": headers}
        await send(message)

    return dressed
