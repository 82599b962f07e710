"""`/v1/config` and `/v1/log`: settings and where they came from; how much is logged."""

from fastapi import Request

from api import context
from api.models import Config, Log, LogChange, Reloaded
from api.openapi import says
from api.security import control, read

_read, _control = read(), control()
ROUTERS = (_read, _control)


@_read.get("/v1/config", responses=says(), tags=["config"])
async def config(request: Request) -> Config:
    """Every value that the daemon runs with, and its origin; secrets are masked."""
    return Config.model_validate(await context.of(request).door.ask("config"))


@_control.post("/v1/config:reload", responses=says(409, 422), tags=["config"])
async def reload_config(request: Request) -> Reloaded:
    """Read the files again, check everything, then apply what can be applied while running."""
    return Reloaded.model_validate(await context.of(request).door.ask("reload"))


@_read.get("/v1/log", responses=says(), tags=["config"])
async def log(request: Request) -> Log:
    """The least level that is logged."""
    return Log.model_validate(await context.of(request).door.ask("log"))


@_control.put("/v1/log", responses=says(408, 413, 422), tags=["config"])
async def set_log(request: Request, change: LogChange) -> Log:
    """Log from this level on, until the daemon starts again."""
    return Log.model_validate(await context.of(request).door.ask("log", level=change.level))
