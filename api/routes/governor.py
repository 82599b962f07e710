"""`/v1/governor`: the policy that sets the clocks."""

from typing import Any

from fastapi import Request

from api import context
from api.answers import validated
from api.openapi import says
from api.requests import GovernorChange
from api.routes.board import clocks
from api.security import control, read
from edged.rest.answers import Governor

_read, _control = read(), control()
ROUTERS = (_read, _control)


@_read.get("/v1/governor", responses=says(), tags=["energy"])
async def governor(request: Request) -> Governor:
    """The policy and its last decision, limits, and the time raced at each clock."""
    return view(await context.of(request).door.snapshot())


@_control.put("/v1/governor", responses=says(404, 408, 409, 413, 415, 504), tags=["energy"])
async def set_governor(request: Request, change: GovernorChange) -> Governor:
    """Change the policy from the next beat on; if the new one cannot run, the old one continues."""
    door = context.of(request).door
    job: dict[str, Any] = {} if change.job is None else {"job": change.job}
    await door.ask("governor", policy=change.policy, settings=change.settings, **job)
    return view(await door.changed())


def view(snapshot: dict[str, Any]) -> Governor:
    """The resource from a snapshot."""
    energy = snapshot.get("energy")
    if not energy:
        return validated(Governor, {"problem": "the daemon watches no board: set energy.board"})
    section = {key: value for key, value in energy.items() if key != "policy"}
    return validated(
        Governor,
        {
            **section,
            **energy.get("policy", {}),
            "simulated": energy["board"]["simulated"],
            "clocks": clocks(energy),
            "raced": _opps(energy.get("race_clock_s", {})),
            "residency": [
                {"name": name, "how": clock["how"], "at": _opps(clock["at"])}
                for name, clock in energy.get("clock_s", {}).items()
            ],
        },
    )


def _opps(seconds: dict[str, float]) -> list[dict[str, Any]]:
    return [{"hz": int(hz), "seconds": s} for hz, s in seconds.items()]
