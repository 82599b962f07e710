"""The client's transport: a unix socket, or a URL with a token; problems become exceptions."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from edged.errors import ConfigError, EdgedError
from edged.platform.backoff import after, jitter
from edged.platform.loopback import require_tls
from edged.platform.trust import trusting

DEFAULT = "/run/edged/api.sock"
RETRY_S = 1.0
"""Pause before a retry if the response has no Retry-After."""
_UNAVAILABLE, _NO_PERMISSION, _DATA, _CONFIG = 69, 77, 65, 78
_EXIT = {401: _NO_PERMISSION, 403: _NO_PERMISSION, 404: _CONFIG} | dict.fromkeys(
    (429, 503, 504), _UNAVAILABLE
)
_NOT_DONE = (409, 429, 503)
"""Statuses of refusals that carried nothing out and name the time of a retry in Retry-After."""


class ApiError(EdgedError):
    """The API refused a request (RFC 9457), or did not answer (`status` 0).

    Exit codes: 69 no answer or not now, 77 not allowed, 78 no such resource, 65 other refusals.
    """

    def __init__(self, problem: Mapping[str, Any], nothing_done: bool = False) -> None:
        self.problem = dict(problem)
        self.status = int(problem.get("status", 0))
        self.kind = str(problem.get("type", "")).rpartition(":")[2]
        self.do = str(problem.get("do", ""))
        self.faults: list[dict[str, str]] = list(problem.get("errors") or [])
        self.retry_after_s: int | None = problem.get("retry_after_s")
        self.nothing_done = nothing_done or (
            self.status in _NOT_DONE and self.retry_after_s is not None
        )
        """Whether the same request may be sent again because it was not carried out."""
        self.exit_code = _EXIT.get(self.status, _DATA if self.status else _UNAVAILABLE)
        detail = f"{problem.get('detail') or problem.get('title')}"
        lines = [
            detail,
            *(_line(fault) for fault in self.faults if not self._repeats(detail, fault)),
        ]
        super().__init__("\n".join(lines) + (f" ({self.do})" if self.do else ""))

    def _repeats(self, detail: str, fault: Mapping[str, str]) -> bool:
        """Whether the detail already contains this fault."""
        is_repeated = f"{fault['where']}: {fault['what']}" in detail
        return is_repeated and fault.get("do", "") in ("", self.do)


@dataclass
class LiveMessage:
    """One message of the live stream: `kind` is event, snapshot, daemon or missed."""

    kind: str
    data: Any
    id: str | None = field(default=None)


class Transport:
    """A connection to the API.  `address` is a unix socket's path or an http(s) URL.

    `ca` is a PEM file with the certificates that verify the API, `cert` a PEM file with the
    client's certificate and key.  `patience_s` is the total time for retries, which wait for
    Retry-After and up to as long again by chance.  `plain_token` permits a token beyond loopback
    without TLS; without it ConfigError is raised.  A refused request is sent again if nothing was
    done; a request with an unknown outcome (504, a lost connection) only if it is a read, or tuples
    with an Idempotency-Key.  Not thread-safe.
    """

    def __init__(
        self,
        address: str = DEFAULT,
        token: str | None = None,
        *,
        ca: str | None = None,
        cert: str | None = None,
        timeout_s: float = 60.0,
        patience_s: float = 0.0,
        plain_token: bool = False,
    ) -> None:
        if token and not plain_token and address.startswith("http://"):
            do = "use https://, or permit it (plain_token=True, --plain-token)"
            require_tls(address, urlsplit(address).hostname or "", do)
        self._patience_s = patience_s
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.address = address
        if address.startswith(("http://", "https://")):
            transport = httpx.HTTPTransport(verify=_trusted(ca, cert))
            base = address
        else:
            # Without TLS: reading the system's certificates takes 22 ms of every command.
            transport = httpx.HTTPTransport(uds=os.fspath(address), verify=False)
            base = "http://localhost"
        self._http = httpx.Client(
            base_url=base, transport=transport, headers=headers, timeout=timeout_s, trust_env=False
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def live(self, last_event_id: str | None = None) -> Iterator[LiveMessage]:
        """Events and snapshots until the API ends.  Raises ApiError."""
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        with (
            self._reaching(),
            self._http.stream("GET", "/v1/events", headers=headers, timeout=None) as answer,
        ):
            if answer.status_code >= 400:
                answer.read()
                raise _refusal(answer)
            yield from _messages(answer.iter_lines())

    def _call(self, method: str, path: str, **request: Any) -> Any:
        """The JSON of a response; `request` as for `_ask`.  Raises ApiError."""
        return self._ask(method, path, **request).json()

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        header: Mapping[str, str | None] | None = None,
        document: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        content_type: str | None = None,
    ) -> httpx.Response:
        """The first successful response.  Raises ApiError."""
        headers = {key: value for key, value in (header or {}).items() if value is not None}
        if document is not None:
            given = {key: value for key, value in document.items() if value is not None}
            body, content_type = json.dumps(given).encode(), "application/json"
        if content_type is not None:
            headers["Content-Type"] = content_type
        params = {key: value for key, value in (query or {}).items() if value is not None}
        repeatable = method == "GET" or "idempotency-key" in headers
        until_s = time.monotonic() + self._patience_s
        while True:
            try:
                with self._reaching():
                    answer = self._http.request(
                        method, path, params=params, headers=headers, content=body
                    )
                if answer.status_code < 400:
                    return answer
                raise _refusal(answer)
            except ApiError as problem:
                pause_s = after(problem.retry_after_s or RETRY_S, jitter)
                again = problem.nothing_done or (repeatable and problem.status in (0, 504))
                if not again or time.monotonic() + pause_s > until_s:
                    raise
            time.sleep(pause_s)

    def _long(
        self,
        method: str,
        path: str,
        *,
        on_progress: Callable[[Any], None] | None = None,
        **request: Any,
    ) -> Any:
        """Like `_call`, but if the response is an operation, poll it at the interval of Retry-After
        and return its result."""
        answer = self._ask(method, path, **request)
        operation = answer.json()
        while isinstance(operation, dict) and set(operation) >= {"progress", "state", "kind"}:
            if on_progress is not None:
                on_progress(operation)
            if operation["state"] == "failed":
                raise ApiError(operation["problem"])
            if operation["state"] == "done":
                return operation["result"]
            time.sleep(_retry_s(answer))
            answer = self._ask("GET", path_of("/v1/operations/{id}", id=operation["id"]))
            operation = answer.json()
        return operation

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as problem:
            raise ApiError(
                {
                    "detail": f"no API answers at {self.address}: {problem}",
                    "do": "is edged-api running? `systemctl status edged-api.socket`",
                },
                nothing_done=isinstance(problem, httpx.ConnectError),
            ) from problem


def path_of(template: str, **names: str) -> str:
    """A path with its names filled in, each quoted as one segment."""
    return template.format(**{key: quote(value, safe="") for key, value in names.items()})


def _trusted(ca: str | None, cert: str | None) -> ssl.SSLContext:
    """The TLS settings.  Raises ConfigError if a file does not contain what it should."""
    file = ca
    try:
        context = trusting(ca)
        if cert is not None:
            file = cert
            context.load_cert_chain(cert)
    except OSError as problem:
        what = "certificates" if file == ca else "a certificate with its key"
        raise ConfigError(f"{file} is no PEM file of {what}: {problem}") from problem
    return context


def _retry_s(answer: httpx.Response) -> float:
    """Retry-After in seconds (RFC 9110, 10.2.3); RETRY_S for a date, or without the header."""
    seconds = answer.headers.get("retry-after", "")
    return float(seconds) if seconds.isdecimal() else RETRY_S


def _refusal(answer: httpx.Response) -> ApiError:
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):  # from a proxy
        problem = {"status": answer.status_code, "detail": answer.text[:500]}
    if "retry-after" in answer.headers:
        problem["retry_after_s"] = round(_retry_s(answer))
    return ApiError(problem)


def _messages(lines: Iterator[str]) -> Iterator[LiveMessage]:
    """Server-Sent Events from lines (WHATWG HTML, 9.2.6), the subset that edged sends."""
    kind, data, id = "message", "", None
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "" and data:
            yield LiveMessage(kind, json.loads(data), id)
        if line == "":
            kind, data, id = "message", "", None
        elif name == "event":
            kind = value
        elif name == "data":
            data += value
        elif name == "id":
            id = value


def _line(fault: Mapping[str, str]) -> str:
    advice = f" ({fault['do']})" if fault.get("do") else ""
    return f"  {fault['where']}: {fault['what']}{advice}"
