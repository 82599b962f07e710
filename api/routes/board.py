"""`/v1/board`: detected hardware, meters and clock domains."""

from typing import Any

from fastapi import Request

from api import context
from api.answers import validated
from api.openapi import says
from api.security import read
from edged.rest.answers import Board

_read = read()
ROUTERS = (_read,)


@_read.get("/v1/board", responses=says(), tags=["energy"])
async def board(request: Request) -> Board:
    """The board, its clocks and meters, and what cannot be read here and why."""
    return view(await context.of(request).door.snapshot())


def view(snapshot: dict[str, Any]) -> Board:
    """The resource from a snapshot."""
    energy = snapshot.get("energy")
    if not energy:
        return validated(Board, {"present": False})
    return validated(
        Board, {**energy, **energy["board"], "present": True, "clocks": clocks(energy)}
    )


def clocks(energy: dict[str, Any]) -> list[dict[str, Any]]:
    """The clock domains of the snapshot's energy section."""
    return [{"name": name, **clock} for name, clock in energy.get("limits", {}).items()]
