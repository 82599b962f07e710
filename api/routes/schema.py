"""`/v1`, the index of the resources, and `/v1/openapi.json`, the OpenAPI document."""

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from api import context, openapi
from api.openapi import says
from api.routes.page import DOCS
from api.security import Route, read
from edged import __version__
from edged.rest.answers import Index

_read = read()
ROUTERS = (_read,)


@_read.get("/v1/", include_in_schema=False)
@_read.get("/v1", responses=says(), tags=["device"])
async def index(request: Request) -> Index:
    """The version of edged, and the resources that a GET without names reads."""
    links = {
        route.name: route.path
        for route in request.app.routes
        if isinstance(route, Route) and route.include_in_schema
        if route.methods == {"GET"} and "{" not in route.path
    }
    if context.of(request).settings.docs:
        links["docs"] = DOCS
    return Index(version=__version__, links=links)


@_read.get(
    "/v1/openapi.json",
    responses=says(),
    response_model=dict[str, Any],
    response_description="The OpenAPI document, version 3.1",
    tags=["device"],
)
async def openapi_document(request: Request) -> JSONResponse:
    """This API as an OpenAPI document."""
    return JSONResponse(openapi.document(request.app))
