"""`/healthz`: whether the API runs and the daemon answers."""

from fastapi import Request

from api import context
from api.openapi import says
from api.problems import ApiProblem
from api.security import public
from edged.rest.answers import Health

_public = public()
ROUTERS = (_public,)


@_public.get("/healthz", responses=says(public=True), tags=["health"])
async def health(request: Request) -> Health:
    """Whether the API runs, and whether the daemon answers; needs no token."""
    try:
        await context.of(request).door.snapshot()
    except ApiProblem:
        return Health(daemon="down")
    return Health(daemon="up")
