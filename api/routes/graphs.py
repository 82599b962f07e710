"""`/v1/graphs`: the versions of the graphs that this daemon takes part in.

A deployment claims a version at each of its daemons before it changes a job.  The ETag of a record
consists of its version and its digest, so that a claim is a compare-and-set: `If-Match: ETAG` for a
record that was read, `If-None-Match: *` for none.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Header, Request, Response

from api import context, paging
from api.answers import validated
from api.openapi import says, tagged
from api.problems import ApiProblem
from api.requests import GraphClaim
from api.security import control, read
from edged.rest.answers import Graph, Graphs, Name

_read, _control = read(), control()
ROUTERS = (_read, _control)

_TAG = re.compile(r'"([0-9]{1,10})\.([0-9]{1,18})"')
_IfMatch = Annotated[str | None, Header(max_length=128, description="ETag of the record")]


@_read.get("/v1/graphs", responses=says(), tags=["graphs"])
async def graphs(
    request: Request, limit: paging.Limit = 100, cursor: paging.Cursor = None
) -> Graphs:
    """All graphs that this daemon takes part in, by name."""
    answer = await context.of(request).door.ask("graphs")
    found = [_graph(record) for record in answer["graphs"]]
    items, after = paging.cut(found, lambda graph: graph["name"], cursor, limit)
    return Graphs(items=items, next=after)


@_read.get("/v1/graphs/{name}", responses={**says(404), 200: tagged()}, tags=["graphs"])
async def graph(request: Request, response: Response, name: Name) -> Graph:
    """One graph: its version here, and whether its deployment has ended."""
    answer = await context.of(request).door.ask("graph", name=name)
    return _tagged(response, answer["graph"])


@_control.put(
    "/v1/graphs/{name}",
    responses={**says(408, 409, 412, 413, 415, 504), 200: tagged()},
    tags=["graphs"],
)
async def claim_graph(
    request: Request,
    response: Response,
    name: Name,
    claim: GraphClaim,
    if_match: _IfMatch = None,
    if_none_match: Annotated[str | None, Header(max_length=64)] = None,
) -> Graph:
    """Claim a version of a graph, or change the state of the claimed one; durable before the
    response.

    Jobs of the graph are put at the claimed version only.  Exactly one of If-Match and
    If-None-Match is needed.
    """
    if (if_match is None) == (if_none_match is None):
        raise ApiProblem("precondition-failed", "a claim needs If-Match, or If-None-Match: *")
    if if_none_match is not None and if_none_match.strip() != "*":
        raise ApiProblem("precondition-failed", f"If-None-Match: {if_none_match!r} is not *")
    known = _known(name, if_match)
    answer = await _ask(request, "graph.put", name=name, **claim.model_dump(), **known)
    return _tagged(response, answer)


@_control.delete("/v1/graphs/{name}", responses=says(404, 409, 412, 504), tags=["graphs"])
async def forget_graph(request: Request, name: Name, if_match: _IfMatch = None) -> Graph:
    """Forget a graph.  Its jobs stay."""
    answer = await _ask(request, "graph.delete", name=name, **_known(name, if_match))
    return _graph(answer)


def _known(name: str, if_match: str | None) -> dict[str, int]:
    """The record that the request was made for, as arguments for the door.  Raises ApiProblem."""
    if if_match is None:
        return {}
    found = _TAG.fullmatch(if_match.strip())
    if found is None:
        what = f"{if_match!r} is not the ETag of a graph"
        raise ApiProblem("precondition-failed", what, f"GET /v1/graphs/{name} tells it")
    return {"if_version": int(found[1]), "if_digest": int(found[2])}


async def _ask(request: Request, cmd: str, **arguments: Any) -> dict[str, Any]:
    try:
        return await context.of(request).door.ask(cmd, **arguments)
    except ApiProblem as problem:
        fault = problem.errors[0] if problem.errors else None
        if problem.kind == "conflict" and fault is not None and fault.where == "if_version":
            raise ApiProblem("precondition-failed", fault.what, problem.do) from None
        raise


def _tagged(response: Response, record: dict[str, Any]) -> Graph:
    found = _graph(record)
    response.headers["ETag"] = found["etag"]
    return found


def _graph(record: dict[str, Any]) -> Graph:
    etag = f'"{record["version"]}.{record["digest"]}"'
    return validated(Graph, {**record, "etag": etag})
