"""`/v1/operations`: requests that take long."""

from typing import Annotated

from fastapi import Path, Request

from api import context, paging
from api.models import Operation, Operations
from api.openapi import says
from api.security import read

_read = read()
ROUTERS = (_read,)


@_read.get("/v1/operations", responses=says(422), tags=["jobs"])
async def operations(
    request: Request, limit: paging.Limit = 100, cursor: paging.Cursor = None
) -> Operations:
    """Operations that run or ended lately."""
    found = context.of(request).operations.list()
    items, after = paging.cut(found, lambda one: f"{one.started_us:020}{one.id}", cursor, limit)
    return Operations(items=items, next=after)


@_read.get("/v1/operations/{id}", responses=says(404, 422), tags=["jobs"])
async def operation(
    request: Request, id: Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
) -> Operation:
    """How far it is; when it has ended, its result or what went wrong."""
    return context.of(request).operations.get(id)
