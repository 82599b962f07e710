"""The ASGI application: routes, error handlers, and the guard around them."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp

from api import openapi, problems
from api.context import Context
from api.guard import Guard
from api.routes import ROUTERS
from api.security import Gate, check_routes
from edged import __version__


def routes() -> FastAPI:
    """The application without a context, which suffices for the OpenAPI document."""
    app = FastAPI(
        title="edged",
        version=__version__,
        default_response_class=JSONResponse,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    problems.install(app)
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]
    return app


def build(context: Context) -> ASGIApp:
    """The application that serves `context`.  Raises ConfigError for invalid settings."""
    settings = context.settings
    app = routes()
    app.state.context = context
    app.state.limits = {False: settings.body_bytes_max, True: settings.ingest_bytes_max}
    return Guard(
        app,
        Gate(settings),
        check_routes(app.routes),
        settings.hosts,
        settings.origins,
        settings.concurrency_max,
    )
