"""The collector's HTTP interface: receives schemas and pages from devices, and answers with acks.

    PUT  /v1/schemas/{stream}/{version}   schema JSON -> 204; 409 if another one is registered
    POST /v1/pages                        pages, end to end -> 200, or a problem with a status below
    GET  /v1/stats                        counters; with a tokens file, only the caller's own device
    GET  /health                          200 "ok", 503 if the landing has failed

Every request but /health names its device (`X-Edged-Device`; for counters only with a tokens file)
and, if the collector has a tokens file, carries that device's token (`Authorization: Bearer ...`).
Pages also carry `X-Edged-Epoch` and `X-Edged-Session: <counter>:<nonce>`.  The answer to pages,
always JSON, states what is durable:

    {"device": ..., "acked": [[stream, partition, seq], ...], "desired": {...} or null}

`device` is the requesting device; `seq` is cumulative.  `desired` is the desired state of the
device (`edged/centre_link/desired_state.py`), without its `document` if `X-Edged-Desired` says that
the device has that version.  If pages had a problem, the same object has `problem`, `detail` and,
where they apply, `stream`, `version`, `partition`, `seq`, `expected`, `offset`.  Pages before the
problem are landed and in `acked`; pages after it were ignored:

    409 fenced, gap, unknown_schema, conflict, limit    422 damaged    507 full, quota

Pages that the device has lost for good are declared for one partition a request, where the centre
missed them before: `X-Edged-Lost: <partition> <first> <last> <stream, percent-encoded>`.  The page
behind them lands then.

400 missing or wrong headers, 401 token, 413 body too large or of too many pages, 429 a gateway
takes no pages now (`Retry-After`), 503 the landing has failed.

Both sides may send `X-Edged-Check` (see `edged/uplink/integrity.py`); answers to pages always carry
it. A body is read only when it fits into `BODIES_BYTES_MAX`, of which one device gets an eighth at
most, so a slow disk closes the senders' TCP windows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edged.central.admission import DAMAGED, FENCED, FULL, QUOTA, DeliveryOutcome
from edged.central.body_budget import BodyBudget
from edged.central.compaction_metrics import CompactionMetrics
from edged.central.fleet import Fleet
from edged.central.group_commit import CommitterBusy, DeliveryCommitter, OnCommit
from edged.central.landing import Registrations
from edged.central.log_throttle import ProblemLog
from edged.central.metrics import DurationHistogram, centre
from edged.central.page_request import (
    DeviceSession,
    RequestHeaders,
    RequestRefused,
    check,
    read_body,
)
from edged.central.report_queue import ReportQueue
from edged.central.schemas import SCHEMA_BYTES_MAX, valid_id
from edged.central.stats import CollectorStats
from edged.errors import CentralError, SchemaMismatch
from edged.http.llhttp_protocol import AnswerInOneWrite, DirectApplication
from edged.metrics import Exposition
from edged.metrics.central import DEVICES_MAX
from edged.uplink import telemetry
from edged.uplink.integrity import HEADER, body_check

BODY_BYTES_MAX = 32 << 20
BODIES_BYTES_MAX = 256 << 20
VERIFY_INLINE_BYTES = 64 << 10
SCHEMAS_MAX = 256
"""New schemas that a device may register during this process; schemas are permanent."""
_KNOWN = "known"
"""Key in a request's state: the request is authenticated as a device's."""
_CLOSE = (b"connection", b"close")
_PAGES = "/v1/pages"
_JSON = (b"content-type", b"application/json")
_STATUS = {DAMAGED: 422, FULL: 507, QUOTA: 507}
"""Statuses of problems with pages; 409 for all others."""
Answer = tuple[int, dict[str, Any]]
_Sent = tuple[int, list[tuple[bytes, bytes]], bytes]
_LOG = logging.getLogger(__name__)


class Authority(Protocol):
    """What knows the devices' tokens."""

    def allows(self, device: str, token: str) -> bool:
        """Whether `token` belongs to `device`."""


class Collector:
    """The routes and their shared state.  `failed` is set when the landing has failed.

    `committer` makes what commits pages, of a function to call when that has failed, and of one to
    call with the seconds that each commit took.
    """

    def __init__(
        self,
        landing: Registrations,
        tokens: Authority | None,
        committer: Callable[[Callable[[], None], OnCommit], DeliveryCommitter],
        *,
        body_bytes_max: int,
        fleet: Fleet | None = None,
        syncs: DurationHistogram | None = None,
        devices_max: int = DEVICES_MAX,
        compaction: CompactionMetrics | None = None,
    ) -> None:
        self._compaction = compaction
        self.stats = CollectorStats(devices_max)
        self.commits, self.syncs = DurationHistogram(), syncs or DurationHistogram()
        self._new_schemas: Counter[str] = Counter()
        self._fleet = fleet
        self.failed = asyncio.Event()
        self._landing = landing
        self._tokens = tokens
        self._body_bytes_max = body_bytes_max
        share = max(BODIES_BYTES_MAX // 8, body_bytes_max)
        self._budget = BodyBudget(max(BODIES_BYTES_MAX, body_bytes_max), share)
        self._committer = committer(self.failed.set, self.commits.observe)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="collector")
        self._problem_log = ProblemLog()
        self._reports = None if fleet is None else ReportQueue(fleet.on_contact)

    def close(self) -> None:
        """Commit what waits; no further calls are allowed."""
        self._committer.close()
        self._threads.shutdown()
        if self._reports is not None:
            self._reports.close()

    @property
    def failure(self) -> CentralError | None:
        """Why the landing has failed."""
        return self._committer.failure

    def exposition(self) -> Exposition:
        """The metrics of this collector and of the fleet; safe on any thread."""
        devices = [] if self._fleet is None else self._fleet.devices()
        now_us, most = time.time_ns() // 1000, self.stats.devices_max
        metrics = centre(self.stats, self.commits, self.syncs, devices, now_us, most)
        metrics.add("edged_collector_device_share_ratio", self._landing.largest_share())
        beyond = 0 if self._fleet is None else self._fleet.left_out
        metrics.add("edged_collector_metrics_left_out", metrics.left_out + beyond)
        dropped = 0 if self._reports is None else self._reports.dropped
        metrics.add("edged_collector_reports_dropped_total", dropped)
        if self._compaction is not None:
            with suppress(OSError):
                self._compaction.add_to(metrics)
        return metrics

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
            own = self._device(RequestHeaders(request.scope), request.scope)
            content["devices"] = {k: v for k, v in content["devices"].items() if k == own}
        return JSONResponse(content)

    async def put_schema(self, request: Request, stream: str, version: int) -> Response:
        """Register a schema."""
        headers = RequestHeaders(request.scope)
        device = self._device(headers, request.scope)
        headers.announced(SCHEMA_BYTES_MAX)
        body = await read_body(request.receive, SCHEMA_BYTES_MAX)
        headers.guard(f"{stream}@{version}", bytes(body))
        if self._landing.schema(stream, version) is None:
            self._new_schemas[device] += 1
            if self._new_schemas[device] > SCHEMAS_MAX:
                detail = f"{device} has registered {SCHEMAS_MAX} new schemas, the limit"
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
            raise RequestRefused(
                503, f"the landing takes no schema: {problem.strerror}"
            ) from problem
        return Response(status_code=204)

    def land_at_once(
        self, scope: Scope, body: bytes, on_landed: Callable[[Callable[[], Answer]], None]
    ) -> bool:
        """Land the pages of a small request that has arrived; False if it must wait for memory.

        Once they are durable, `on_landed` gets a function that makes the answer, on the event loop.
        Raises RequestRefused.
        """
        sender, _ = self._sender(scope)
        size = len(body)
        if not self._budget.take_at_once(sender.device, size):
            return False

        def on_outcome(outcome: DeliveryOutcome | CentralError) -> None:
            self._budget.release(sender.device, size)
            on_landed(lambda: self._outcome(sender, outcome))

        try:
            self._committer.submit(check(sender, body), on_outcome)
        except BaseException:
            self._budget.release(sender.device, size)
            raise
        return True

    async def post_pages(self, scope: Scope, receive: Receive) -> Answer:
        """Land pages; raises RequestRefused."""
        sender, size = self._sender(scope)
        async with self._budget.take(sender.device, size):
            body = await read_body(receive, self._body_bytes_max)
            if len(body) > VERIFY_INLINE_BYTES:
                loop = asyncio.get_running_loop()
                delivery = await loop.run_in_executor(self._threads, check, sender, body)
            else:
                delivery = check(sender, body)
            try:
                outcome = await self._committer.commit(delivery)
            except CentralError as problem:
                raise _refusal_of(problem) from problem
        return self._answer(sender, outcome)

    def _sender(self, scope: Scope) -> tuple[DeviceSession, int]:
        """The sender of a request with pages, and the body's announced size."""
        headers = RequestHeaders(scope)
        sender = headers.session(self._device(headers, scope))
        headers.guard("pages")
        return sender, headers.announced(self._body_bytes_max)

    def _outcome(self, sender: DeviceSession, outcome: DeliveryOutcome | CentralError) -> Answer:
        if isinstance(outcome, CentralError):
            raise _refusal_of(outcome)
        return self._answer(sender, outcome)

    def _answer(self, sender: DeviceSession, outcome: DeliveryOutcome) -> Answer:
        self.stats.requests += 1
        now_us = time.time_ns() // 1000
        self.stats.count(sender.device, outcome, now_us)
        fenced = outcome.problem is not None and outcome.problem.problem == FENCED
        if self._reports is not None and not fenced:
            reports = [page for page in outcome.landed if page[0].stream == telemetry.STREAM]
            newest = (reports[-1][0], memoryview(bytes(reports[-1][1]))) if reports else None
            self._reports.add(sender.device, newest, now_us)
        content: dict[str, Any] = {
            "device": sender.device,
            "acked": [
                [stream, partition, seq] for (stream, partition), seq in outcome.acked.items()
            ],
            "desired": self._landing.desired(sender.device, sender.desired),
        }
        problem = outcome.problem
        if problem is None:
            return 200, content
        self._problem_log.write(sender.device, problem)
        content |= {k: v for k, v in asdict(problem).items() if v is not None}
        return _STATUS.get(problem.problem, 409), content

    def _device(self, headers: RequestHeaders, scope: Scope) -> str:
        """The device of a request, which is authenticated from here on."""
        device = headers.text(b"x-edged-device")
        if self._tokens is not None and not self._tokens.allows(device, headers.token()):
            self.stats.unauthorized += 1
            raise RequestRefused(401, "the token is missing or is not this device's")
        if not valid_id(device):
            raise RequestRefused(400, "X-Edged-Device is missing or is not a valid device name")
        scope["state"][_KNOWN] = True
        return device


def _refusal_of(problem: CentralError) -> RequestRefused:
    if isinstance(problem, CommitterBusy):
        return RequestRefused(429, str(problem), problem.retry_after_s)
    return RequestRefused(503, str(problem))


def _refusal(refused: RequestRefused) -> dict[str, Any]:
    return {"problem": "refused", "detail": refused.detail, "acked": [], "desired": None}


async def _refuse(_: Request, refused: Exception) -> Response:
    assert isinstance(refused, RequestRefused)
    headers = {"Connection": "close"}
    if refused.retry_after_s:
        headers["Retry-After"] = str(refused.retry_after_s)
    return JSONResponse(_refusal(refused), refused.status, headers)


class _Application(DirectApplication):
    """The routes as an ASGI application.  Requests with pages, nearly all there are, pass by
    FastAPI, and the small ones by ASGI."""

    def __init__(self, collector: Collector, others: ASGIApp, on_bulk: Callable[[], None]) -> None:
        self._collector, self._others, self._on_bulk = collector, others, on_bulk

    def on_bulk(self) -> None:
        """See `DirectApplication`."""
        self._on_bulk()

    def take(self, request: AnswerInOneWrite) -> bool:
        """See `DirectApplication`."""
        scope: Any = request.scope
        if not _has_pages(scope) or len(request.body) > VERIFY_INLINE_BYTES:
            return False

        def on_landed(make: Callable[[], Answer]) -> None:
            try:
                answer = self._answer(*make(), close=False)
            except RequestRefused as refused:
                answer = self._refused(refused)
            except Exception:
                _LOG.exception("a request has no answer")
                answer = 500, [_CLOSE], b"Internal Server Error"
            request.answer(*answer)

        try:
            return self._collector.land_at_once(scope, bytes(request.body), on_landed)
        except RequestRefused as refused:
            request.answer(*self._refused(refused))
            return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _has_pages(scope):
            await self._others(scope, receive, send)
            return
        try:
            answer = self._answer(*await self._collector.post_pages(scope, receive), close=False)
        except RequestRefused as refused:
            answer = self._refused(refused)
        status, headers, body = answer
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refused(self, refused: RequestRefused) -> _Sent:
        status, headers, body = self._answer(refused.status, _refusal(refused), close=True)
        if refused.retry_after_s:
            headers.append((b"retry-after", b"%d" % refused.retry_after_s))
        return status, headers, body

    def _answer(self, status: int, content: Mapping[str, Any], close: bool) -> _Sent:
        self._collector.answered(status)
        body = _json(content)
        headers = [
            (b"content-length", b"%d" % len(body)),
            _JSON,
            (_CHECK, body_check(body).encode()),
        ]
        if close:
            headers.append(_CLOSE)
        return status, headers, body


def _has_pages(scope: Scope) -> bool:
    return bool(scope["path"] == _PAGES and scope["method"] == "POST")


_CHECK = HEADER.lower().encode()


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class _AnswerCounter:
    """ASGI middleware: counts every answer's status, and closes connections without a known
    device."""

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


def application(collector: Collector, on_bulk: Callable[[], None]) -> ASGIApp:
    """The ASGI application of `collector`: its routes only, no docs pages.  `on_bulk` is called
    where a client sends much at once."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(RequestRefused, _refuse)
    app.add_middleware(_AnswerCounter, collector=collector)
    app.add_api_route("/health", collector.health, methods=["GET"])
    app.add_api_route("/v1/stats", collector.get_stats, methods=["GET"])
    app.add_api_route("/v1/schemas/{stream}/{version}", collector.put_schema, methods=["PUT"])
    app.add_api_route(_PAGES, lambda: None, methods=["POST"])  # all other methods are answered 405
    return _Application(collector, app, on_bulk)
