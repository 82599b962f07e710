"""The OpenAPI document: FastAPI's output, completed.

`says` documents the errors of a route, which are all problems.  Added to FastAPI's output: security
schemes, the scope of each operation, the problem's schema, and an example of each kind of problem.
`python -m api.generate` writes the document to docs/openapi.json.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from api import links
from api.problems import KINDS, MEDIA_TYPE, ApiProblem
from api.requests import RequestBody
from api.security import PUBLIC_SCOPE, Route
from edged import __version__
from edged.rest import answers

_BY_STATUS: dict[int, list[str]] = {}
for _name, _kind in KINDS.items():
    _BY_STATUS.setdefault(_kind.status, []).append(_name)

_PUBLIC = (400, 421, 422, 503)
_EVERYWHERE = (401, 403, *_PUBLIC)
"""Errors of any request, before its route runs."""
_DESCRIPTION = """\
Control, state and ingest of one edged device.

A process that may open the unix socket may do everything.  Over TCP each request carries a bearer
token, or the connection has a client certificate.  Every refusal is a problem (RFC 9457) that says
what to do.  Lists are paged by `cursor`.  Long requests become operations.
"""

Responses = dict[int | str, dict[str, Any]]

_LOCATION = {"description": "URL of the resource", "schema": {"type": "string", "pattern": "^/v1/"}}
RETRY_AFTER = {"description": "Seconds", "schema": {"type": "string", "pattern": "^[0-9]+$"}}


def says(*statuses: int, public: bool = False) -> Responses:
    """The errors of a route, for `responses=`."""
    every = _PUBLIC if public else _EVERYWHERE
    return {status: _problem(status) for status in sorted({*every, *statuses})}


def tagged(location: bool = False) -> dict[str, Any]:
    """The headers of a response that is a job, for one of `responses=`."""
    tag = {"type": "string", "pattern": r'^"[0-9]+\.[0-9]+"$'}
    headers = {"ETag": {"description": "ETag of this version of the job", "schema": tag}}
    if location:
        headers["Location"] = _LOCATION
    return {"headers": headers}


LONG: Responses = {
    202: {
        "model": answers.Operation,
        "description": "The request takes longer: poll the operation",
        "headers": {"Location": _LOCATION, "Retry-After": RETRY_AFTER},
    }
}
"""The 202 response of long requests, for `responses=`."""


def body(content: dict[str, Any], required: bool = True) -> dict[str, Any]:
    """The documented body of a route that reads it itself, for `openapi_extra=`."""
    return {"requestBody": {"required": required, "content": content}}


def document(app: FastAPI) -> dict[str, Any]:
    """The complete document, made once."""
    if app.openapi_schema is None:
        app.openapi_schema = _complete(app)
    return app.openapi_schema


def _complete(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(
        title="edged",
        version=__version__,
        description=_DESCRIPTION,
        routes=app.routes,
        separate_input_output_schemas=True,
    )
    schemas = made["components"]["schemas"]
    shared: tuple[type[Any], ...] = (answers.Problem, answers.Operation)
    for model in shared:
        found = TypeAdapter(model).json_schema(
            ref_template="#/components/schemas/{model}", mode="serialization"
        )
        schemas.update(found.pop("$defs", {}))
        schemas[model.__name__] = found
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    bodies = {kind.__name__ for kind in RequestBody.__subclasses__()}
    for name, schema in schemas.items():
        if name not in bodies:  # an answer: the API sends every key
            schema["required"] = list(schema["properties"])
    made["components"]["schemas"] = dict(sorted(schemas.items()))
    made["components"]["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "`edged token create NAME --scope SCOPE`",
        },
        "certificate": {"type": "mutualTLS", "description": "A name of api.client_names"},
    }
    operations = {}
    for route in app.routes:
        if isinstance(route, Route) and route.include_in_schema:
            for method in route.methods or ():
                operation = made["paths"][route.path][method.lower()]
                operation["operationId"] = route.name
                _scope(operation, route)
                operations[route.name] = operation
    links.add(operations)
    return made


def _scope(operation: dict[str, Any], route: Route) -> None:
    scope = route.edged_scope
    if scope != PUBLIC_SCOPE:
        operation["security"] = [{"token": [scope]}, {"certificate": [scope]}]
    operation["x-scope"] = scope


def _problem(status: int) -> dict[str, Any]:
    names = _BY_STATUS[status]
    examples = {
        name: {"value": ApiProblem(name, "…what is wrong with this request…").document()}
        for name in names
    }
    schema = {"$ref": "#/components/schemas/Problem"}
    response: dict[str, Any] = {
        "description": " or ".join(KINDS[name].title.lower() for name in names).capitalize(),
        "content": {MEDIA_TYPE: {"schema": schema, "examples": examples}},
    }
    if status in (429, 503, 504):
        response["headers"] = {"Retry-After": RETRY_AFTER}
    return response
