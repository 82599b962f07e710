"""Authentication and authorisation.

    unix socket, no token     everything: the socket's mode and group authorise its clients
    bearer token              the token's scopes, on every listener, the unix socket too
    client certificate        the scopes of the first of its names that api.client_names allows:
                              "console.example" may read, "ops.example=read,control" as given
    none of these             public routes: the page without data, and whether the API runs

`api.guard` calls `Gate.principal` before anything of a request is read or routed.  The class of a
route states its scope (`READ`, `CONTROL`, `INGEST`, `PUBLIC`); `check_routes` refuses a route
without one.  Scope, query parameters and Content-Length are checked before the body is read.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from api.limits import limited
from api.problems import PATH_CHARS_MAX, ApiProblem, defect
from api.query import refuse_unknown_parameters
from api.server import HttpPeer
from edged.config.sections import ApiSection
from edged.errors import ConfigError
from edged.http.api_tokens import SCOPES, TokenFile

_LOG = logging.getLogger("edged.api")
PUBLIC_SCOPE = "public"
ENDS_S = 2
"""Retry-After of an API that is ending: systemd starts it again with the next connection."""


@dataclass(frozen=True)
class Principal:
    """An authenticated client and its scopes."""

    name: str
    scopes: frozenset[str]
    how: str
    token_id: str = ""
    """Id of the bearer token; "" without one."""

    def __str__(self) -> str:
        return f"{self.name} ({self.how})"


class Gate:
    """Authenticates clients.  Raises ConfigError for invalid settings."""

    def __init__(self, settings: ApiSection) -> None:
        self._tokens = TokenFile(settings.tokens_file) if settings.tokens_file else None
        self._names = dict(_allowed(text) for text in settings.client_names)

    def principal(self, peer: HttpPeer, headers: Headers) -> Principal:
        """The client of a request.  Raises ApiProblem 401 or 403."""
        if "authorization" in headers:
            return self._bearer(headers["authorization"])
        for name in peer.names:
            if name in self._names:
                return Principal(name, self._names[name], "certificate")
        if peer.listener.trusted:
            return Principal(str(peer), frozenset(SCOPES), "socket")
        if peer.names:
            raise ApiProblem(
                "forbidden",
                f"certificate of {', '.join(peer.names)}: no such name is let in",
                "add one of the names to api.client_names",
            )
        raise ApiProblem("unauthorized", "the request carries no token")

    def holds(self, principal: Principal) -> bool:
        """Whether the client is still authorised: a token may have expired or been revoked
        since."""
        if not principal.token_id or self._tokens is None:
            return True
        try:
            token = self._tokens.of_id(principal.token_id)
        except ConfigError:
            return False
        return token is not None and token.state(time.time_ns() // 1000) == "valid"

    def _bearer(self, header: str) -> Principal:
        kind, _, secret = header.partition(" ")
        if kind.lower() != "bearer":
            raise ApiProblem("unauthorized", f"authorization by {kind[:32]!r} is not known here")
        try:
            token = self._tokens.find(secret.strip()) if self._tokens else None
        except ConfigError as problem:
            _LOG.error("%s", problem)
            token = None
        if token is None:
            raise ApiProblem("unauthorized", "this token is not known here")
        state = token.state(time.time_ns() // 1000)
        if state != "valid":
            raise ApiProblem("unauthorized", f"token {token.id} is {state}")
        return Principal(f"{token.name}/{token.id}", frozenset(token.scopes), "token", token.id)


class Route(APIRoute):
    """A route with a scope."""

    edged_scope: ClassVar[str]
    ingests: ClassVar[bool] = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, preceded by the checks that need no body."""
        handler = super().get_route_handler()
        scope, ingests = self.edged_scope, self.ingests
        parameters = frozenset(field.alias for field in self.dependant.query_params)

        async def checked(request: Request) -> Response:
            try:
                if scope != PUBLIC_SCOPE:
                    allow(request, scope)
                refuse_unknown_parameters(request, parameters)
                response = await handler(limited(request, ingests))
            except (HTTPException, RequestValidationError) as problem:
                status = getattr(problem, "status_code", 422)
                _note(request, scope, status)
                raise
            except asyncio.CancelledError:  # only an ending API cancels requests
                response = _broken_off(scope).response()
            except Exception as problem:
                response = defect(request.url.path, problem).response()
            _note(request, scope, response.status_code)
            return response

        return checked


class _PublicRoute(Route):
    edged_scope = PUBLIC_SCOPE


class _ReadRoute(Route):
    edged_scope = "read"


class _ControlRoute(Route):
    edged_scope = "control"


class _IngestRoute(Route):
    edged_scope = "ingest"
    ingests = True


def public() -> APIRouter:
    """A router for routes without authentication."""
    return APIRouter(route_class=_PublicRoute)


def read() -> APIRouter:
    """A router for reads."""
    return APIRouter(route_class=_ReadRoute)


def control() -> APIRouter:
    """A router for changes of the daemon."""
    return APIRouter(route_class=_ControlRoute)


def ingest() -> APIRouter:
    """A router for incoming tuples."""
    return APIRouter(route_class=_IngestRoute)


def allow(request: Request, scope: str) -> Principal:
    """The client of a request that has the scope.  Raises ApiProblem otherwise."""
    principal: Principal | None = getattr(request.state, "principal", None)
    if principal is None:
        raise ApiProblem("unauthorized", "the request carries no token")
    if scope not in principal.scopes:
        raise ApiProblem(
            "forbidden",
            f"{principal.name} lacks the scope {scope}",
            f"`edged token create NAME --scope {scope}` makes a token that has it",
        )
    return principal


def check_routes(routes: Iterable[BaseRoute]) -> frozenset[str]:
    """The public paths.  Raises TypeError for a route without a scope."""
    public_paths = set()
    for route in routes:
        if not isinstance(route, Route):
            raise TypeError(f"{route} states no scope: make it with api.security's routers")
        if route.edged_scope == PUBLIC_SCOPE:
            public_paths.add(route.path)
    return frozenset(public_paths)


def _broken_off(scope: str) -> ApiProblem:
    if scope in ("read", PUBLIC_SCOPE):
        return ApiProblem("unavailable", "the API ends", retry_after_s=ENDS_S)
    what = "the API ends, and this may have been done, or may be yet"
    do = "read the resource, and repeat what still applies; rows with the same Idempotency-Key"
    return ApiProblem("unknown-outcome", what, do, retry_after_s=ENDS_S)


def _note(request: Request, scope: str, status: int) -> None:
    """Log changes and refusals with the client's name."""
    principal = getattr(request.state, "principal", None)
    if scope == "control" or status in (401, 403):
        level = logging.INFO if status < 400 else logging.WARNING
        fields = {"principal": principal, "status": status}
        path = request.scope["raw_path"][:PATH_CHARS_MAX].decode("ascii", "replace")  # as received
        _LOG.log(level, "%s: %s %s: %d", principal, request.method, path, status,
                 extra={"fields": fields})  # fmt: skip


def _allowed(text: str) -> tuple[str, frozenset[str]]:
    name, equals, words = text.partition("=")
    scopes: Sequence[str] = [w.strip() for w in words.split(",")] if equals else ["read"]
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not name.strip():
        raise ConfigError(
            f"api.client_names {text!r}: write NAME or NAME=SCOPE,SCOPE of {', '.join(SCOPES)}"
        )
    return name.strip(), frozenset(scopes)
