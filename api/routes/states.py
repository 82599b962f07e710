"""`/v1/jobs/{name}/state`: operators' state on its way to another daemon.

A stage of a graph that gets more or fewer instances moves state: each old job is exported, each new
one is put with `?state=true` after its part has come here.  Parts are JSON with base64, so that a
request stays within the limit of every other one.
"""

from typing import Annotated

from fastapi import Query, Request

from api import context
from api.answers import validated
from api.openapi import says
from api.requests import StatePart
from api.security import control
from edged.rest.answers import Name, StateChunk, StateExport

_control = control()
ROUTERS = (_control,)


@_control.post("/v1/jobs/{name}/export", responses=says(404, 409, 504), tags=["jobs"])
async def export_job(request: Request, name: Name) -> StateExport:
    """Export the state of a job that is paused or drained, to be read in parts."""
    return validated(StateExport, await context.of(request).door.ask("job.export", name=name))


@_control.get("/v1/jobs/{name}/state", responses=says(404), tags=["jobs"])
async def job_state(
    request: Request, name: Name, offset: Annotated[int, Query(ge=0, lt=2**40)] = 0
) -> StateChunk:
    """A part of an export; reading the last one ends it."""
    answer = await context.of(request).door.ask("state.read", name=name, offset=offset)
    return validated(StateChunk, answer)


@_control.put("/v1/jobs/{name}/state", responses=says(408, 409, 413, 415, 504), tags=["jobs"])
async def send_job_state(request: Request, name: Name, part: StatePart) -> StateExport:
    """Send a part of the state that a job is to be put with; offset 0 begins."""
    answer = await context.of(request).door.ask("state.write", name=name, **part.model_dump())
    return validated(StateExport, answer)
