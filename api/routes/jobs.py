"""`/v1/jobs`: definitions, versions and states of jobs.

A job's ETag consists of its version and its time of creation, so that no two definitions of a name
share one.  `If-Match: ETAG` applies a change to that definition only, `If-Match: *` to an existing
job, `If-None-Match: *` to a name without a job.  Without these headers the last write wins.
"""

import re
from typing import Annotated, Any

from fastapi import Header, Query, Request
from fastapi.responses import JSONResponse, Response

from api import context, paging
from api.answers import validated
from api.door_client import DaemonDown, DoorClient
from api.drains import Drain
from api.openapi import LONG, body, says, tagged
from api.operations import Prefer, Progress, is_long
from api.problems import KINDS, ApiProblem, ProblemFault
from api.security import control, read
from edged.documents.unchecked import UNCHECKED
from edged.rest.answers import Explanation, Job, Jobs, Name, Verdict
from edged.rest.answers.jobs import DOCUMENT

_read, _control = read(), control()
ROUTERS = (_read, _control)

_TAG = re.compile(r'"([0-9]{1,9})\.([0-9]{1,18})"')
_TOML = """\
name = "power_curve"

[streams.power]
source = { type = "http" }
columns = { turbine = "string", time = "timestamp", power_kw = "float64?" }
time = "time"

[sinks.all]
type = "pages"
input = "power"
"""
_DOCUMENT = body(
    {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["name", "streams", "sinks"],
                "description": "docs/jobs.md",
                "properties": {
                    "name": {"type": "string"},
                    "promises": {"type": "object"},
                    "streams": {"type": "object"},
                    "operators": {"type": "object"},
                    "sinks": {"type": "object"},
                },
            },
            "example": DOCUMENT,
        },
        "application/toml": {"schema": {"type": "string"}, "example": _TOML},
    }
)
Precondition = dict[str, int]
"""The definition that a change applies to, as arguments for the door; empty: any."""

_CHANGED = {**says(404, 409, 412, 504), 200: tagged()}
IfMatch = Annotated[
    str | None, Header(max_length=128, description="ETag of the definition to change")
]
Waits = Annotated[
    str | None,
    Header(
        max_length=64,
        description="`wait=N` seconds, or `respond-async`: then an operation; default: at once",
    ),
]


@_read.get("/v1/jobs", responses=says(), tags=["jobs"])
async def jobs(request: Request, limit: paging.Limit = 100, cursor: paging.Cursor = None) -> Jobs:
    """All jobs, by name."""
    answer = await context.of(request).door.ask("jobs")
    found = [_job(job) for job in answer["jobs"]]
    items, after = paging.cut(found, lambda job: job["name"], cursor, limit)
    return Jobs(items=items, next=after)


@_read.get("/v1/jobs/{name}", responses={**says(404), 200: tagged()}, tags=["jobs"])
async def job(request: Request, response: Response, name: Name) -> Job:
    """One job, with its definition; its ETag identifies this version."""
    found = await _get(request, name)
    response.headers["ETag"] = found["etag"]
    return found


@_control.put(
    "/v1/jobs/{name}",
    responses={
        **says(404, 408, 409, 412, 413, 415, 504),
        **LONG,
        200: tagged(location=True),
        201: {"model": Job, "description": "Created", **tagged(location=True)},
    },
    response_model=Job,
    openapi_extra=_DOCUMENT,
    tags=["jobs"],
)
async def put_job(
    request: Request,
    name: Name,
    if_match: IfMatch = None,
    if_none_match: Annotated[str | None, Header(max_length=64)] = None,
    state: Annotated[
        bool, Query(description="The operators begin with the state that PUT …/state has sent")
    ] = False,
    prefer: Prefer = None,
) -> Response:
    """Create a job, or replace it: every operator whose id, type and schema stay keeps its state.

    The definition is durable before the response, and applies after a restart too.
    """
    shared = context.of(request)
    text, format = await _document(request)
    precondition = await _precondition(request, name, if_match, if_none_match)

    async def work(progress: Progress) -> Response:
        verdict = await shared.checker.ask(text, format, progress, compile=True)
        document = verdict.insist()
        if document["name"] != name:
            fault = ProblemFault("name", f"is {document['name']!r}", f"call it {name!r}")
            raise ApiProblem("invalid", f"the document is not of job {name}", errors=(fault,))
        progress("apply", 0, 1)
        moved = {"state": True} if state else {}
        answer = await _ask(
            request, "job.put", precondition, document=document, origin="api", **moved
        )
        progress("apply", 1, 1)
        found = _job({**answer["job"], "notes": answer.get("notes", [])})
        return _answer(found, 201 if answer.get("created") else 200)

    return await shared.operations.run("jobs.put", prefer, work)


@_control.delete(
    "/v1/jobs/{name}",
    responses={**says(404, 409, 412, 504), **LONG},
    response_model=Job,
    tags=["jobs"],
)
async def delete_job(
    request: Request,
    name: Name,
    if_match: IfMatch = None,
    drain: Annotated[
        bool, Query(description="Race accepted rows first; otherwise they are discarded")
    ] = True,
    prefer: Waits = None,
) -> Response:
    """Delete a job and its state; sealed pages are still sent to the centre.

    With `drain` the response comes while the job drains; with Prefer, when it is gone, or as an
    operation.
    """
    precondition = await _precondition(request, name, if_match)
    if drain and is_long(prefer):
        return await _drain(request, "job.delete", name, precondition, prefer, drain=True)
    answer = await _ask(request, "job.delete", precondition, name=name, drain=drain)
    return JSONResponse(_job(answer["job"]))


@_control.post("/v1/jobs/{name}/pause", responses=_CHANGED, tags=["jobs"])
async def pause_job(
    request: Request, response: Response, name: Name, if_match: IfMatch = None
) -> Job:
    """Stop reading its sources: producers wait, nothing is lost.  Survives a restart."""
    return await _change(request, response, "job.pause", name, if_match)


@_control.post("/v1/jobs/{name}/resume", responses=_CHANGED, tags=["jobs"])
async def resume_job(
    request: Request, response: Response, name: Name, if_match: IfMatch = None
) -> Job:
    """Continue after a pause or a drain."""
    return await _change(request, response, "job.resume", name, if_match)


@_control.post(
    "/v1/jobs/{name}/drain",
    responses={**_CHANGED, **LONG},
    response_model=Job,
    tags=["jobs"],
)
async def drain_job(
    request: Request, name: Name, if_match: IfMatch = None, prefer: Waits = None
) -> Response:
    """Accept nothing new, race accepted rows, and seal all pages; the state says when it is done.

    The response comes while the job drains; with Prefer, when it is drained, or as an operation.
    """
    precondition = await _precondition(request, name, if_match)
    if is_long(prefer):
        return await _drain(request, "job.drain", name, precondition, prefer)
    answer = await _ask(request, "job.drain", precondition, name=name)
    return _answer(_job(answer["job"]), 200)


@_read.post(
    "/v1/jobs:validate",
    responses={**says(408, 413, 415), **LONG},
    response_model=Verdict,
    openapi_extra=_DOCUMENT,
    tags=["jobs"],
)
async def validate_job(request: Request, prefer: Prefer = None) -> Response:
    """Whether a put of a job document would be accepted, and its faults.  Changes nothing.

    The daemon decides as it does for a put.  Expressions are not compiled.
    """
    shared = context.of(request)
    text, format = await _document(request)

    async def work(progress: Progress) -> Response:
        result = await shared.reader.ask(text, format, progress, compile=False)
        faults, more = result.faults, dict[str, Any](notes=[], unchecked=[])
        if result.document is not None:
            faults, more = await _decided(shared.door, result.document)
        verdict = {
            "valid": not faults,
            "name": result.name,
            "faults": [fault.document() for fault in faults],
            "warnings": list(result.warnings),
            **more,
        }
        return JSONResponse(validated(Verdict, verdict))

    return await shared.operations.run("jobs.validate", prefer, work)


@_read.post(
    "/v1/jobs:explain",
    responses={**says(408, 413, 415), **LONG},
    response_model=Explanation,
    openapi_extra=_DOCUMENT,
    tags=["jobs"],
)
async def explain_job(request: Request, prefer: Prefer = None) -> Response:
    """The plan of a job: graph, operators, state, schemas.  Changes nothing."""
    shared = context.of(request)
    text, format = await _document(request)

    async def work(progress: Progress) -> Response:
        result = await shared.reader.ask(text, format, progress, compile=False, explain=True)
        result.insist()
        return JSONResponse(Explanation(plan=result.plan or {}))

    return await shared.operations.run("jobs.explain", prefer, work)


async def _drain(
    request: Request,
    cmd: str,
    name: str,
    precondition: Precondition,
    prefer: str | None,
    **arguments: Any,
) -> Response:
    """Start a drain, wait until the job has drained or is gone, and answer with the job."""
    shared, goes = context.of(request), cmd == "job.delete"

    async def work(progress: Progress) -> Response:
        answer = await _ask(request, cmd, precondition, name=name, **arguments)
        await Drain(shared.door, name, goes, progress).wait()
        if not goes:
            return _answer(await _get(request, name), 200)
        return JSONResponse(_job(answer["job"]))

    kind = "jobs.delete" if goes else "jobs.drain"
    return await shared.operations.run(kind, prefer, work, waits=True)


async def _change(
    request: Request, response: Response, cmd: str, name: str, if_match: str | None
) -> Job:
    answer = await _ask(request, cmd, await _precondition(request, name, if_match), name=name)
    found = _job(answer["job"])
    response.headers["ETag"] = found["etag"]
    return found


async def _ask(
    request: Request, cmd: str, precondition: Precondition, **arguments: Any
) -> dict[str, Any]:
    """The door's answer; 412 if the job's definition is not the one that the request names."""
    door = context.of(request).door
    try:
        return await door.ask(cmd, **precondition, **arguments)
    except ApiProblem as problem:
        if (
            problem.kind == "conflict"
            and problem.errors
            and problem.errors[0].where in precondition
        ):
            raise ApiProblem("precondition-failed", problem.errors[0].what, problem.do) from None
        raise
    finally:
        door.forget()


async def _decided(
    door: DoorClient, document: dict[str, Any]
) -> tuple[tuple[ProblemFault, ...], dict[str, Any]]:
    """The faults for which the daemon refuses to put a document without faults of its own, and
    notes or what is not checked.  Raises ApiProblem where it cannot decide now."""
    try:
        answer = await door.ask("job.validate", document=document, origin="api")
    except ApiProblem as problem:
        if isinstance(problem, DaemonDown) or problem.kind == "unsupported":
            return (), {"notes": [], "unchecked": [*UNCHECKED]}
        if problem.kind not in ("invalid", "conflict"):
            raise
        do = "" if problem.do == KINDS[problem.kind].do else problem.do
        fault = ProblemFault("document", str(problem.detail), do)
        return problem.errors or (fault,), {"notes": [], "unchecked": []}
    return (), {"notes": answer["notes"], "unchecked": []}


async def _get(request: Request, name: str) -> Job:
    answer = await context.of(request).door.ask("job", name=name)
    return _job(answer.get("job", answer))


async def _document(request: Request) -> tuple[str, str]:
    """The body's text and its format.  Raises ApiProblem 400 or 415."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    formats = {"application/json": "json", "application/toml": "toml"}
    if kind not in formats:
        raise ApiProblem(
            "unsupported-media-type", f"{kind[:80]!r} is not a job document",
            f"send {' or '.join(formats)}",
        )  # fmt: skip
    try:
        return (await request.body()).decode(), formats[kind]
    except UnicodeDecodeError as problem:
        raise ApiProblem("malformed", f"the body is not UTF-8: {problem}") from None


async def _precondition(
    request: Request, name: str, if_match: str | None, if_none_match: str | None = None
) -> Precondition:
    """The precondition as arguments for the door (RFC 9110, 13.1.1 and 13.1.2).  Raises
    ApiProblem."""
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            fault = ProblemFault(
                "header.if-none-match", f"{if_none_match!r} is not *", "send *, or If-Match"
            )
            raise ApiProblem("invalid", "If-None-Match names a version", errors=(fault,))
        if if_match is not None:
            raise ApiProblem(
                "precondition-failed", "If-Match and If-None-Match: * exclude each other"
            )
        return {"if_version": 0}
    if if_match is None:
        return {}
    tags = [tag.strip() for tag in if_match.split(",")]
    if len(tags) > 1 or tags == ["*"]:
        now = await _etag(request, name)
        tags = [now] if now in tags or tags == ["*"] else tags
    found = _TAG.fullmatch(tags[0])
    if found is None:
        what = f"{if_match!r} is not the ETag of a job"
        raise ApiProblem("precondition-failed", what, f"GET /v1/jobs/{name} tells it")
    return {"if_version": int(found[1]), "if_created_us": int(found[2])}


async def _etag(request: Request, name: str) -> str:
    """The job's current ETag; "" without such a job."""
    try:
        return (await _get(request, name))["etag"]
    except ApiProblem as problem:
        if problem.kind != "not-found":
            raise
        return ""


def _job(definition: dict[str, Any]) -> Job:
    """The job of the daemon's answer; its ETag is unique among all definitions of this name."""
    etag = f'"{definition.get("version", 1)}.{definition.get("created_us", 0)}"'
    return validated(Job, {**definition, "etag": etag})


def _answer(job: Job, status: int) -> Response:
    headers = {"ETag": job["etag"], "Location": f"/v1/jobs/{job['name']}"}
    return JSONResponse(job, status, headers)
