"""`/v1/energy`: power and energy."""

from typing import Any

from fastapi import Request

from api import context
from api.answers import validated
from api.openapi import says
from api.security import read
from edged.rest.answers import Energy

_read = read()
ROUTERS = (_read,)


@_read.get("/v1/energy", responses=says(), tags=["energy"])
async def energy(request: Request) -> Energy:
    """Power and energy by rail, phase, job and operator; each figure has its provenance."""
    return view(await context.of(request).door.snapshot())


def view(snapshot: dict[str, Any]) -> Energy:
    """The resource from a snapshot."""
    section = snapshot.get("energy")
    return validated(Energy, {**section, "present": True} if section else {"present": False})
