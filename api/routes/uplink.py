"""`/v1/uplink`: the connection to the centre."""

from typing import Any

from fastapi import Request

from api import context
from api.answers import figures, validated
from api.openapi import says
from api.security import control, read
from edged.rest.answers import Uplink

_read, _control = read(), control()
ROUTERS = (_read, _control)


@_read.get("/v1/uplink", responses=says(), tags=["uplink"])
async def uplink(request: Request) -> Uplink:
    """The state of the uplink."""
    return view(await context.of(request).door.snapshot())


@_control.post("/v1/uplink:retry", responses=says(409, 504), tags=["uplink"])
async def retry_uplink(request: Request) -> Uplink:
    """Try now, without waiting for the back-off."""
    door = context.of(request).door
    await door.ask("uplink.retry")
    return view(await door.changed())


def view(snapshot: dict[str, Any]) -> Uplink:
    """The resource from a snapshot."""
    section = snapshot.get("uplink")
    if section is None:
        return validated(Uplink, {"configured": False})
    rest = figures(section, Uplink)
    return validated(Uplink, {**section, "configured": True, "figures": rest})
