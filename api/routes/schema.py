"""`/v1/openapi.json`: the OpenAPI document."""

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from api import openapi
from api.openapi import says
from api.security import read

_read = read()
ROUTERS = (_read,)


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
