"""`/v1/config` and `/v1/log`: settings with their origins, and the log level."""

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from api import context
from api.answers import validated
from api.openapi import LONG, says
from api.operations import Progress
from api.requests import LogChange
from api.security import control, read
from edged.rest.answers import Config, Log, Reloaded

_read, _control = read(), control()
ROUTERS = (_read, _control)
RELOAD_S = 600.0
"""Time limit, as for checking a job document (`api.checker`)."""


@_read.get("/v1/config", responses=says(), tags=["config"])
async def config(request: Request) -> Config:
    """Every value of the running configuration and its origin; secrets are masked."""
    return validated(Config, await context.of(request).door.ask("config"))


@_control.post(
    "/v1/config:reload",
    responses={**says(409, 504), **LONG},
    response_model=Reloaded,
    tags=["config"],
)
async def reload_config(request: Request) -> Response:
    """Read the files again, check everything, and apply what can change while running.

    Expressions of changed jobs are compiled, which may take long.
    """
    shared = context.of(request)

    async def work(progress: Progress) -> Response:
        progress("check", 0, 1)
        answer = await shared.door.ask("reload", within_s=RELOAD_S)
        progress("check", 1, 1)
        return JSONResponse(validated(Reloaded, answer))

    return await shared.operations.run("config.reload", None, work)


@_read.get("/v1/log", responses=says(), tags=["config"])
async def log(request: Request) -> Log:
    """The lowest level that is logged."""
    return validated(Log, await context.of(request).door.ask("log"))


@_control.put("/v1/log", responses=says(408, 413, 415, 504), tags=["config"])
async def set_log(request: Request, change: LogChange) -> Log:
    """Set the log level until the daemon starts again."""
    return validated(Log, await context.of(request).door.ask("log", level=change.level))
