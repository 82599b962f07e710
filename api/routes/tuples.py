"""`/v1/streams/{stream}/tuples`: HTTP ingest."""

from typing import Annotated

from fastapi import Header, Request
from fastapi.responses import JSONResponse, Response

from api import context
from api.answers import validated
from api.ingest import StreamVersion
from api.ingest.media_types import ARROW, CSV, DEBEZIUM, NDJSON, TYPES
from api.ingest.store_full import RETRY_FULL_S, STORE_DO
from api.openapi import body, says
from api.problems import ApiProblem
from api.routes.streams import OfJob, find
from api.security import ingest
from edged.rest.answers import Accepted, Name

_ingest = ingest()
ROUTERS = (_ingest,)
RETRY_PAUSED_S = 30

_ROWS = body(
    {
        NDJSON: {
            "schema": {"type": "string"},
            "example": '{"turbine": "R80711", "time": "2026-11-21T09:00:00Z", "power_kw": 731.2}\n',
        },
        CSV: {
            "schema": {"type": "string"},
            "example": "turbine,time,power_kw\nR80711,2026-11-21T09:00:00Z,731.2\n",
        },
        ARROW: {"schema": {"type": "string", "format": "binary"}},
        DEBEZIUM: {
            "schema": {"type": "string"},
            "example": '{"op": "d", "before": {"id": 7, "kwh": 1.5}, "after": null}\n',
        },
    }
)


@_ingest.post(
    "/v1/streams/{stream}/tuples",
    status_code=202,
    responses=says(404, 408, 409, 413, 415, 429, 504),
    response_model=Accepted,
    response_description="All rows are durable",
    openapi_extra=_ROWS,
    tags=["streams"],
)
async def send_tuples(
    request: Request,
    stream: Name,
    job: OfJob = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            pattern=r"^[!-~]+$",
            description="Requests with the same key and body are carried out once",
        ),
    ] = None,
) -> Response:
    """Send rows: all or none are accepted, and the response comes when they are durable.

    `lost` counts rows that are durable and dropped, because they are late or too far ahead.  Rows
    that wait for another stream of a join may become late after the response: `late` of the stream
    counts them.

    With an Idempotency-Key a request may be repeated whatever became of the response: its rows are
    counted once.
    """
    shared = context.of(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in TYPES:
        raise ApiProblem(
            "unsupported-media-type", f"{kind[:80]!r} is not known here", f"send {', '.join(TYPES)}"
        )
    snapshot = await shared.door.snapshot()
    found = find(snapshot, stream, job)
    definition = snapshot["jobs"][found["job"]]
    if definition.get("state", "running") != "running":
        raise ApiProblem(
            "busy", f"job {found['job']} is {definition['state']}",
            f"POST /v1/jobs/{found['job']}/resume, then try again", retry_after_s=RETRY_PAUSED_S,
        )  # fmt: skip
    if snapshot.get("store", {}).get("full"):
        raise ApiProblem(
            "busy", "the store is full: nothing comes in until it has room",
            STORE_DO, retry_after_s=RETRY_FULL_S,
        )  # fmt: skip
    length = request.headers.get("content-length", "")
    most = shared.settings.ingest_bytes_max
    with shared.ingest.room(int(length) if length.isdecimal() else most):
        version, created_us = (
            int(definition.get("version", 1)),
            int(definition.get("created_us", 0)),
        )
        target = StreamVersion(found["job"], stream, version, created_us)
        accepted = await shared.ingest.accept(target, await request.body(), kind, idempotency_key)
    return JSONResponse(validated(Accepted, {"stream": stream, **accepted._asdict()}), 202)
