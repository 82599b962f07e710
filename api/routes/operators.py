"""`/v1/operators` and an operator's kernel."""

from collections.abc import Iterator
from typing import Any

from fastapi import Request

from api import context, paging
from api.answers import figures, validated
from api.openapi import says
from api.problems import ApiProblem
from api.requests import KernelChange
from api.security import control, read
from edged.rest.answers import KernelRuns, Name, Operator, Operators

_read, _control = read(), control()
ROUTERS = (_read, _control)


@_read.get("/v1/operators", responses=says(), tags=["operators"])
async def operators(
    request: Request, limit: paging.Limit = 100, cursor: paging.Cursor = None
) -> Operators:
    """All operators of all jobs: size of their state, counters, and the kernel they run."""
    found = views(await context.of(request).door.snapshot())
    items, after = paging.cut(found, lambda o: f"{o['job']}/{o['id']}", cursor, limit)
    return Operators(items=items, next=after)


@_read.get("/v1/jobs/{job}/operators/{id}", responses=says(404), tags=["operators"])
async def operator(request: Request, job: Name, id: Name) -> Operator:
    """One operator."""
    for found in views(await context.of(request).door.snapshot()):
        if (found["job"], found["id"]) == (job, id):
            return found
    raise ApiProblem("not-found", f"there is no operator {id} in a job {job}", "GET /v1/operators")


@_control.put(
    "/v1/jobs/{job}/operators/{id}/kernel",
    responses=says(404, 408, 409, 413, 415, 504),
    tags=["operators"],
)
async def set_kernel(request: Request, job: Name, id: Name, change: KernelChange) -> KernelRuns:
    """Change the kernel; the window is kept, no result is lost or repeated."""
    door = context.of(request).door
    entry = await door.ask("kernel", job=job, operator=id, kernel=change.kernel)
    door.forget()
    return validated(KernelRuns, entry)


def views(snapshot: dict[str, Any]) -> Iterator[Operator]:
    """The resources from a snapshot."""
    for job, parts in snapshot.get("jobs", {}).items():
        for id, entry in parts.get("operators", {}).items():
            rest = figures(entry, Operator)
            yield validated(Operator, {**entry, "job": job, "id": id, "figures": rest})
