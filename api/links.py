"""OpenAPI links: the requests that can follow a response, and the values they take from it.

Clients may follow links instead of building URLs; in the tests, schemathesis builds chains of
requests from them.  A link to a change of a job passes the ETag of the response as If-Match, so
that a chain changes the version that it has read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_CHANGES = ("put_job", "pause_job", "resume_job", "drain_job", "delete_job")
_JOB = {"name": "$request.path.name"}
_VERSION = {**_JOB, "if-match": "$response.header.ETag"}


@dataclass(frozen=True)
class OpenApiLink:
    """A link: `target` is an operationId; `parameters` and `body` are runtime expressions (OpenAPI
    3.1, 4.8.20.4)."""

    source: str
    statuses: tuple[int, ...]
    target: str
    parameters: dict[str, str]
    body: Any = None

    def document(self) -> dict[str, Any]:
        """The link as in the OpenAPI document."""
        body = {} if self.body is None else {"requestBody": self.body}
        return {"operationId": self.target, "parameters": self.parameters, **body}


def _job_links() -> Iterable[OpenApiLink]:
    for source in ("job", *_CHANGES[:4]):
        statuses = (200, 201) if source == "put_job" else (200,)
        for target in _CHANGES:
            body = "$request.body" if source == target == "put_job" else None
            if target != "put_job" or body:
                yield OpenApiLink(source, statuses, target, _VERSION, body)
    for source in _CHANGES:
        yield OpenApiLink(source, (200, 201) if source == "put_job" else (200,), "job", _JOB)
    named = {"name": "$response.body#/name"}
    yield OpenApiLink("validate_job", (200,), "put_job", named, "$request.body")
    yield OpenApiLink("validate_job", (200,), "explain_job", {}, "$request.body")


def _list_links() -> Iterable[OpenApiLink]:
    def first(*keys: str) -> dict[str, str]:
        return {key: f"$response.body#/items/0/{key}" for key in keys}

    yield OpenApiLink("jobs", (200,), "job", first("name"))
    yield OpenApiLink("streams", (200,), "stream", {"stream": "$response.body#/items/0/name"})
    yield OpenApiLink("operators", (200,), "operator", first("job", "id"))
    yield OpenApiLink("operations", (200,), "operation", first("id"))
    for list_ in ("jobs", "streams", "operators", "operations", "events"):
        yield OpenApiLink(list_, (200,), list_, {"cursor": "$response.body#/next"})


def _other_links() -> Iterable[OpenApiLink]:
    for source in ("put_job", "validate_job", "explain_job", "drain_job", "delete_job"):
        yield OpenApiLink(source, (202,), "operation", {"id": "$response.body#/id"})
    yield OpenApiLink("operation", (200,), "operation", {"id": "$request.path.id"})
    of_stream = {"stream": "$request.path.stream"}
    keyed = {**of_stream, "idempotency-key": "$request.header.idempotency-key"}
    yield OpenApiLink("stream", (200,), "send_tuples", of_stream)
    yield OpenApiLink("send_tuples", (202,), "send_tuples", keyed, "$request.body")
    yield OpenApiLink("send_tuples", (202,), "stream", of_stream)
    of_operator = {"job": "$request.path.job", "id": "$request.path.id"}
    yield OpenApiLink("operator", (200,), "set_kernel", of_operator)
    yield OpenApiLink("set_kernel", (200,), "operator", of_operator)
    yield OpenApiLink("governor", (200,), "set_governor", {}, {"policy": "$response.body#/policy"})
    yield OpenApiLink("log", (200,), "set_log", {}, {"level": "$response.body#/level"})


LINKS: tuple[OpenApiLink, ...] = (*_job_links(), *_list_links(), *_other_links())


def add(operations: dict[str, dict[str, Any]]) -> None:
    """Add the links to the responses of `operations`, keyed by operationId."""
    for link in LINKS:
        assert link.target in operations, link
        for status in link.statuses:
            answer = operations[link.source]["responses"][str(status)]
            answer.setdefault("links", {})[link.target] = link.document()
