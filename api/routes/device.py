"""`/v1/device`: this device and its daemon."""

from typing import Any

from fastapi import Request

from api import context
from api.answers import figures, validated
from api.openapi import says
from api.security import read
from edged.rest.answers import Device

_read = read()
ROUTERS = (_read,)
_PLAIN = ("bounds", "counts", "sum", "count")


@_read.get("/v1/device", responses=says(), tags=["device"])
async def device(request: Request) -> Device:
    """The device, its daemon, and their health."""
    return view(await context.of(request).door.snapshot())


def view(snapshot: dict[str, Any]) -> Device:
    """The resource from a snapshot."""
    return validated(
        Device,
        {
            **snapshot,
            "build": snapshot.get("build") or {},
            "process": snapshot.get("process") or {},
            "legs": {name: _histogram(leg) for name, leg in snapshot.get("legs", {}).items()},
            "batch_rows": _histogram(snapshot.get("batch_rows", {})),
            "drops": figures(snapshot.get("drops") or {}),
            "jobs": sorted(snapshot.get("jobs", {})),
        },
    )


def _histogram(snapshot_part: dict[str, Any]) -> dict[str, Any]:
    """The histogram with keys without units; the leg's name has the unit."""
    plain = {key.removesuffix("_us"): value for key, value in snapshot_part.items()}
    return {key: plain[key] for key in _PLAIN if key in plain}
