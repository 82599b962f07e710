"""The collector's HTTP door: who may send what, and what comes back.

    PUT  /v1/schemas/{stream}/{version}   schema JSON -> 204; 409 where another is registered
    POST /v1/pages                        pages, end to end -> 200, or a problem with a status below
    GET  /v1/stats                        counters; with a tokens file, only the asker's own device
    GET  /health                          200 "ok", 503 where the landing has failed

Every request but /health names its device (`X-Edged-Device`; for counters only where there is a
tokens file) and, where the collector has a tokens file, brings that device's token
(`Authorization: Bearer ...`).  Pages also bring `X-Edged-Epoch` and
`X-Edged-Session: <counter>:<nonce>`.  The answer to pages, always JSON, says what is durable:

    {"device": ..., "acked": [[stream, partition, seq], ...], "desired": {...} or null}

`device` is whose request it answers; `seq` is cumulative.  `desired` is what the centre wants of
the device (`edged/centre_link/desired_state.py`); without its `document` where `X-Edged-Desired`
says that the device has that version.  Where pages had a
problem, the same object has `problem`, `detail` and, where they apply, `stream`, `version`,
`partition`, `seq`, `expected`, `offset`; what came before the problem in the request is landed and
in `acked`, nothing after it was looked at:

    409 fenced, gap, unknown_schema, conflict, limit    422 damaged    507 full, quota

400 headers are missing or wrong, 401 token, 413 the body is too large, 503 the landing has failed.
Both sides may send `X-Edged-Check` (see `edged/uplink/integrity.py`); answers to pages always
carry it. A body is read only when there is room for it among `BODIES_BYTES_MAX`, of which one
device has an eighth at most, so a slow disk closes the senders' TCP windows.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from anyio import fail_after
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edged.central.admission import DAMAGED, FENCED, FULL, QUOTA, Delivery, Outcome, Problem
from edged.central.body_budget import Room
from edged.central.fleet import Fleet
from edged.central.group_commit import Committer
from edged.central.landing import Landing
from edged.central.log_throttle import Complaints
from edged.central.metrics import Times, centre
from edged.central.schemas import SCHEMA_BYTES_MAX, valid_id, valid_stream
from edged.central.stats import Stats
from edged.central.tokens import Tokens
from edged.errors import CentralError, PageError, SchemaMismatch
from edged.metrics import Exposition
from edged.pages.format import Header, iter_pages, verify
from edged.uplink import telemetry
from edged.uplink.integrity import HEADER, body_check, request_check

BODY_BYTES_MAX = 32 << 20
BODIES_BYTES_MAX = 256 << 20
BODY_SECONDS_MAX = 120
VERIFY_INLINE_BYTES = 64 << 10
SCHEMAS_MAX = 256
"""New schemas that a device may register while this process lives: they stay for ever."""
_U64 = re.compile(r"\d{1,20}")
_KNOWN = "known"
"""In the state of a request: it is a device's."""
_CLOSE = (b"connection", b"close")


class Refused(Exception):
    """A request that is answered with `status` before its body is read."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends pages, by the request's headers."""

    device: str
    epoch: int
    counter: int
    nonce: int
    desired: int = 0
    """The version of the desired state that it has."""


class Collector:
    """The routes and what they share.  `failed` is set where the landing has failed."""

    def __init__(
        self,
        landing: Landing,
        tokens: Tokens | None,
        *,
        body_bytes_max: int,
        pause_us: int,
        fleet: Fleet | None = None,
    ) -> None:
        self.stats = Stats()
        self.commits, self.syncs = Times(), Times()
        self._new_schemas: Counter[str] = Counter()
        self._fleet = fleet
        self.failed = asyncio.Event()
        self._landing = landing
        self._tokens = tokens
        self._body_bytes_max = body_bytes_max
        share = max(BODIES_BYTES_MAX // 8, body_bytes_max)
        self._room = Room(max(BODIES_BYTES_MAX, body_bytes_max), share)
        self._committer = Committer(landing, self.failed.set, pause_us)
        self._committer.took = self.commits.observe
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="collector")
        self._complaints = Complaints()
        self._notes = ThreadPoolExecutor(1, thread_name_prefix="fleet")
        """One thread: a device's reports stay in order."""

    def close(self) -> None:
        """Commit what waits; nothing may be asked afterwards."""
        self._committer.close()
        self._threads.shutdown()
        self._notes.shutdown()

    def exposition(self) -> Exposition:
        """The metrics of this collector and of the fleet; on any thread."""
        devices = [] if self._fleet is None else self._fleet.devices()
        told = centre(self.stats, self.commits, self.syncs, devices, time.time_ns() // 1000)
        told.add("edged_collector_device_share_ratio", self._landing.largest_share())
        beyond = 0 if self._fleet is None else self._fleet.left_out
        told.add("edged_collector_metrics_left_out", told.left_out + beyond)
        return told

    def answered(self, code: int) -> None:
        """Count an answer by its status."""
        self.stats.codes[code] = self.stats.codes.get(code, 0) + 1

    # -- routes

    async def health(self) -> Response:
        """Whether pages can land."""
        failed = self.failed.is_set()
        return Response("failed" if failed else "ok", 503 if failed else 200)

    async def get_stats(self, request: Request) -> Response:
        """The counters."""
        content = {**self.stats.to_json(), "groups": self._committer.groups}
        if self._tokens is not None:
            own = self._device(request)
            content["devices"] = {k: v for k, v in content["devices"].items() if k == own}
        return JSONResponse(content)

    async def put_schema(self, request: Request, stream: str, version: int) -> Response:
        """Register a schema."""
        device = self._device(request)
        body = await self._body(request, SCHEMA_BYTES_MAX)
        _guard(request, f"{stream}@{version}", bytes(body))
        if self._landing.schema(stream, version) is None:
            self._new_schemas[device] += 1
            if self._new_schemas[device] > SCHEMAS_MAX:
                detail = (
                    f"{device} has registered {SCHEMAS_MAX} new schemas already: ask the centre"
                )
                return JSONResponse({"problem": "schema", "detail": detail}, 409)
        loop = asyncio.get_running_loop()
        try:
            text = body.decode()
            await loop.run_in_executor(self._threads, self._landing.register, stream, version, text)
        except SchemaMismatch as problem:
            return JSONResponse({"problem": "schema", "detail": str(problem)}, 409)
        except (CentralError, UnicodeDecodeError) as problem:
            return JSONResponse({"problem": "schema", "detail": str(problem)}, 422)
        except OSError as problem:
            raise Refused(503, f"the landing takes no schema: {problem.strerror}") from problem
        return Response(status_code=204)

    async def post_pages(self, request: Request) -> Response:
        """Land pages."""
        sender = self._sender(request)
        _guard(request, "pages")
        async with self._room.take(sender.device, self._announced(request, self._body_bytes_max)):
            body = await self._body(request, self._body_bytes_max)
            if len(body) > VERIFY_INLINE_BYTES:
                loop = asyncio.get_running_loop()
                delivery = await loop.run_in_executor(self._threads, check, sender, body)
            else:
                delivery = check(sender, body)
            try:
                outcome = await self._committer.commit(delivery)
            except CentralError as problem:
                raise Refused(503, str(problem)) from problem
        return self._answer(sender, outcome)

    def _answer(self, sender: Sender, outcome: Outcome) -> Response:
        self.stats.requests += 1
        now_us = time.time_ns() // 1000
        self.stats.count(sender.device, outcome, now_us)
        fenced = outcome.problem is not None and outcome.problem.problem == FENCED
        if self._fleet is not None and not fenced:
            reports = [page for page in outcome.landed if page[0].stream == telemetry.STREAM]
            newest = (reports[-1][0], memoryview(bytes(reports[-1][1]))) if reports else None
            self._notes.submit(self._fleet.note, sender.device, newest, now_us)
        content: dict[str, Any] = {
            "device": sender.device,
            "acked": [
                [stream, partition, seq] for (stream, partition), seq in outcome.acked.items()
            ],
            "desired": self._landing.desired(sender.device, sender.desired),
        }
        problem = outcome.problem
        if problem is None:
            return _checked(content, 200)
        self._complaints.tell(sender.device, problem)
        content |= {k: v for k, v in asdict(problem).items() if v is not None}
        return _checked(content, {DAMAGED: 422, FULL: 507, QUOTA: 507}.get(problem.problem, 409))

    # -- what a request must bring

    def _device(self, request: Request) -> str:
        device = request.headers.get("x-edged-device", "")
        if self._tokens is not None:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._tokens.allows(device, token.strip()):
                self.stats.unauthorized += 1
                raise Refused(401, "the token is missing or is not this device's")
        if not valid_id(device):
            raise Refused(400, "X-Edged-Device is missing or cannot name a device")
        request.scope["state"][_KNOWN] = True
        return device

    def _sender(self, request: Request) -> Sender:
        device = self._device(request)
        epoch = _u64(request.headers.get("x-edged-epoch", ""))
        counter, _, nonce = request.headers.get("x-edged-session", "").partition(":")
        session = (_u64(counter), _u64(nonce))
        if epoch is None or session[0] is None or session[1] is None or session[0] < 1:
            raise Refused(400, "X-Edged-Epoch and X-Edged-Session (counter:nonce) are needed")
        desired = _u64(request.headers.get("x-edged-desired", "0")) or 0
        return Sender(device, epoch, session[0], session[1], desired)

    def _announced(self, request: Request, bytes_max: int) -> int:
        """The body's size as announced, or the largest allowed; Refused where it is larger."""
        text = request.headers.get("content-length")
        size = bytes_max if text is None else _u64(text)
        if size is None or size > bytes_max:
            raise Refused(413, f"a body has at most {bytes_max} bytes")
        return size

    async def _body(self, request: Request, bytes_max: int) -> bytes | bytearray:
        self._announced(request, bytes_max)
        try:
            with fail_after(BODY_SECONDS_MAX):
                return await _read(request, bytes_max)
        except ClientDisconnect:
            raise Refused(400, "the sender hung up") from None
        except TimeoutError:
            raise Refused(408, f"the body took longer than {BODY_SECONDS_MAX} s") from None


def _guard(request: Request, what: str, body: bytes = b"") -> None:
    """Refuse a request whose check says that it was damaged on its way."""
    sent = request.headers.get(HEADER)
    names = ("x-edged-device", "x-edged-epoch", "x-edged-session")
    device, epoch, session = (request.headers.get(name, "") for name in names)
    if sent is not None and sent != request_check(device, epoch, session, what, body):
        raise Refused(400, "the request was damaged on its way: its X-Edged-Check is wrong")


def _checked(content: dict[str, Any], status: int) -> Response:
    response = JSONResponse(content, status)
    response.headers[HEADER] = body_check(bytes(response.body))
    return response


async def _read(request: Request, bytes_max: int) -> bytearray:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            raise Refused(413, f"a body has at most {bytes_max} bytes")
    return body


def _u64(text: str) -> int | None:
    value = int(text) if _U64.fullmatch(text) and text.isascii() else 1 << 64
    return value if value < 1 << 64 else None


def check(sender: Sender, body: bytes | bytearray) -> Delivery:
    """The delivery that `body` holds: sound pages of `sender`, up to the first that is not."""
    pages: list[tuple[Header, memoryview]] = []
    damage: Problem | None = None
    offset = 0
    try:
        for header, page in iter_pages(body):
            damage = _damage(sender, header, page, offset)
            if damage is not None:
                break
            pages.append((header, page))
            offset += len(page)
    except PageError as problem:
        damage = Problem(DAMAGED, str(problem), offset=offset)
    return Delivery(sender.device, sender.epoch, sender.counter, sender.nonce, pages, damage)


def _damage(sender: Sender, header: Header, page: memoryview, offset: int) -> Problem | None:
    detail = ""
    try:
        verify(page)
        if (header.device, header.epoch) != (sender.device, sender.epoch):
            detail = f"{header.name} is not of the sender, device {sender.device}"
        elif not valid_stream(header.stream) or header.seq < 1:
            detail = f"{header.name}: no such stream can be, or a seq below 1"
    except PageError as problem:
        detail = str(problem)
    if not detail:
        return None
    return Problem(
        DAMAGED, detail, header.stream, header.version, header.partition, header.seq, None, offset
    )


async def _refuse(_: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refused)
    return JSONResponse(
        {"problem": "refused", "detail": refused.detail, "acked": [], "desired": None},
        refused.status,
        {"Connection": "close"},
    )


class _Answers:
    """Tells the collector the status of every answer; only devices' connections stay open."""

    def __init__(self, app: ASGIApp, collector: Collector) -> None:
        self._app, self._collector = app, collector

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._collector.answered(message["status"])
                headers = message["headers"]
                if _KNOWN not in scope["state"] and _CLOSE not in headers:
                    message = {**message, "headers": [*headers, _CLOSE]}
            await send(message)

        await self._app(scope, receive, sending)


def application(collector: Collector) -> FastAPI:
    """The ASGI application of `collector`; no docs pages, nothing but its routes."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(Refused, _refuse)
    app.add_middleware(_Answers, collector=collector)
    app.add_api_route("/health", collector.health, methods=["GET"])
    app.add_api_route("/v1/stats", collector.get_stats, methods=["GET"])
    app.add_api_route("/v1/schemas/{stream}/{version}", collector.put_schema, methods=["PUT"])
    app.add_api_route("/v1/pages", collector.post_pages, methods=["POST"])
    return app
