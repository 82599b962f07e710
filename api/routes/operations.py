"""`/v1/operations`: long requests."""

from typing import Annotated

from fastapi import Path, Request, Response

from api import context, paging
from api.openapi import RETRY_AFTER, says
from api.operations import LOOK_S
from api.security import read
from edged.rest.answers import Operation, Operations

_read = read()
ROUTERS = (_read,)


@_read.get("/v1/operations", responses=says(), tags=["jobs"])
async def operations(
    request: Request, limit: paging.Limit = 100, cursor: paging.Cursor = None
) -> Operations:
    """Operations that run or ended recently."""
    found = context.of(request).operations.list()
    items, after = paging.cut(
        found, lambda one: f"{one['started_us']:020}{one['id']}", cursor, limit
    )
    return Operations(items=items, next=after)


@_read.get(
    "/v1/operations/{id}",
    responses={**says(404), 200: {"headers": {"Retry-After": RETRY_AFTER}}},
    tags=["jobs"],
)
async def operation(
    request: Request, response: Response, id: Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
) -> Operation:
    """The progress of an operation; once it has ended, its result or problem.

    While it runs, Retry-After is the polling interval.
    """
    found = context.of(request).operations.get(id)
    if found["state"] == "running":
        response.headers["Retry-After"] = str(LOOK_S)
    return found
