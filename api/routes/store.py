"""`/v1/store`: data that is durable and not yet acknowledged by the centre."""

from typing import Any

from fastapi import Request

from api import context
from api.answers import validated
from api.openapi import says
from api.security import read
from edged.rest.answers import Store

_read = read()
ROUTERS = (_read,)


@_read.get("/v1/store", responses=says(), tags=["uplink"])
async def store(request: Request) -> Store:
    """Size of the store and of its backlog, and whether sources wait for room."""
    return view(await context.of(request).door.snapshot())


def view(snapshot: dict[str, Any]) -> Store:
    """The resource from a snapshot."""
    section, set_aside_rows = snapshot.get("store", {}), snapshot.get("set_aside_rows", 0)
    oldest_us = section.get("oldest_page_us")
    age_s = None if oldest_us is None else max(0.0, (snapshot["wall_us"] - oldest_us) / 1e6)
    return validated(Store, {**section, "set_aside_rows": set_aside_rows, "backlog_age_s": age_s})
