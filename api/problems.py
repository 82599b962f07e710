"""Problem details (RFC 9457): the format of every error response.

    {"type": "urn:edged:problem:conflict", "title": "Conflict", "status": 409,
     "detail": "job power_curve is at version 4", "do": "read it again and repeat the change",
     "errors": [], "retry_after_s": null}

`type` is one of `KINDS`, `detail` says what is wrong with this request, `do` what to do about it.
`errors` lists the faults of a document or of parameters with their places; no other text refers to
it while it is empty.  `retry_after_s` repeats the header Retry-After.  Errors of the framework
(404, 405, 413, 422) and internal errors (500, logged with a traceback that is not sent) have the
same format.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

MEDIA_TYPE = "application/problem+json"
PATH_CHARS_MAX = 200
"""Longest part of a path that a problem repeats."""
_LATER = (429, 503, 504)
"""Temporary errors: their responses have a Retry-After header."""
_LOG = logging.getLogger("edged.api")


@dataclass(frozen=True)
class ProblemKind:
    """Properties of all problems of one kind."""

    status: int
    title: str
    do: str
    """Default advice."""


KINDS: dict[str, ProblemKind] = {
    "malformed": ProblemKind(400, "Malformed request", "send what the OpenAPI document describes"),
    "unauthorized": ProblemKind(
        401,
        "Not authenticated",
        "send `Authorization: Bearer TOKEN`; `edged token create` makes one",
    ),
    "forbidden": ProblemKind(403, "Not allowed", "use a token that has the scope which is named"),
    "not-found": ProblemKind(404, "Not found", "GET /v1/openapi.json lists the resources"),
    "method-not-allowed": ProblemKind(
        405, "Method not allowed", "use a method of the header Allow"
    ),
    "not-acceptable": ProblemKind(
        406, "Not acceptable", "accept one of the media types that are named"
    ),
    "timeout": ProblemKind(
        408, "Request took too long", "send the request faster or in smaller parts"
    ),
    "conflict": ProblemKind(
        409, "Conflict", "read the resource again, and repeat what still applies"
    ),
    "precondition-failed": ProblemKind(
        412, "Changed in the meantime", "read the resource again, and repeat what still applies"
    ),
    "too-large": ProblemKind(413, "Too large", "send less at a time"),
    "unsupported-media-type": ProblemKind(
        415, "Unsupported media type", "send one of the media types that are named"
    ),
    "misdirected": ProblemKind(
        421, "Not for this host", "use the device's own name, or add this one to api.hosts"
    ),
    "invalid": ProblemKind(422, "Invalid", "correct what `detail` names, and repeat the request"),
    "busy": ProblemKind(
        429, "Too many requests", "wait as long as Retry-After says, and try again"
    ),
    "failed": ProblemKind(
        500, "Internal error", "report this with the log of edged-api around this time"
    ),
    "unsupported": ProblemKind(
        409, "Not available here", "GET /v1/board says what this device has"
    ),
    "unavailable": ProblemKind(
        503, "Not available now", "wait as long as Retry-After says, and try again"
    ),
    "unknown-outcome": ProblemKind(
        504, "No answer in time", "repeat the request with the same Idempotency-Key"
    ),
}
_CORRECT_ERRORS = "correct what `errors` names"
"""Default advice for an invalid request whose faults are listed."""
_BY_STATUS = {kind.status: name for name, kind in reversed(KINDS.items())}


@dataclass(frozen=True)
class ProblemFault:
    """A fault and its place: a dotted path, or the row and column of tuples."""

    where: str
    what: str
    do: str = ""

    def document(self) -> dict[str, str]:
        """An entry of `errors`."""
        return {"where": self.where, "what": self.what, "do": self.do}


class ApiProblem(HTTPException):
    """An error response, raised anywhere below a route.

    It is an HTTPException because the framework passes only these through while it reads a body.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        do: str = "",
        errors: tuple[ProblemFault, ...] = (),
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(KINDS[kind].status, detail, dict(headers or {}))
        if retry_after_s is None and KINDS[kind].status in _LATER:
            retry_after_s = 1
        self.kind, self.errors, self.retry_after_s = kind, errors, retry_after_s
        listed = kind == "invalid" and errors
        self.do = do or (_CORRECT_ERRORS if listed else KINDS[kind].do)

    def document(self) -> dict[str, Any]:
        """The response's body."""
        kind = KINDS[self.kind]
        return {
            "type": f"urn:edged:problem:{self.kind}",
            "title": kind.title,
            "status": kind.status,
            "detail": str(self.detail),
            "do": self.do,
            "errors": [fault.document() for fault in self.errors],
            "retry_after_s": self.retry_after_s,
        }

    def response(self) -> Response:
        """The response."""
        headers = dict(self.headers or {})
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
        if self.status_code == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="edged"'
        return JSONResponse(self.document(), self.status_code, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every error of `app` a problem; `api.security.Route` handles unexpected exceptions."""
    app.add_exception_handler(HTTPException, _of_framework)
    app.add_exception_handler(RequestValidationError, _of_validation)


def of_status(status: int, detail: str, headers: Mapping[str, str] | None = None) -> ApiProblem:
    """The problem for an error of the framework, which has only a status."""
    name = _BY_STATUS.get(status, "malformed" if status < 500 else "failed")
    return ApiProblem(name, detail, headers=headers or {})


def defect(path: str, problem: BaseException) -> ApiProblem:
    """The problem for an unexpected exception: the response names its type, the log has the
    traceback."""
    _LOG.error("%s: %s", path, problem, exc_info=problem)
    return ApiProblem("failed", f"{type(problem).__name__} while answering {path}")


def _of_framework(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    if isinstance(problem, ApiProblem):
        return problem.response()
    method, path = request.method, request.url.path[:PATH_CHARS_MAX]
    details = {
        404: f"there is no {path}",
        405: f"{path} has no {method}",
    }
    detail = details.get(problem.status_code, str(problem.detail))
    return of_status(problem.status_code, detail, problem.headers).response()


def _of_validation(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    faults = tuple(
        ProblemFault(".".join(str(part) for part in error["loc"]), str(error["msg"]))
        for error in problem.errors()
    )
    if any(error["type"] == "json_invalid" for error in problem.errors()):
        return ApiProblem("malformed", "the body is not JSON", errors=faults).response()
    count = "one fault" if len(faults) == 1 else f"{len(faults)} faults"
    return ApiProblem("invalid", f"the request has {count}", errors=faults).response()
