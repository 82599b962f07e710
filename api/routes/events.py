"""`/v1/events`: the event log, as a list and live."""

from typing import Annotated, Any

from fastapi import Header, Request
from fastapi.responses import Response

from api import context, paging, sse
from api.answers import validated
from api.openapi import says
from api.problems import ApiProblem, ProblemFault
from api.security import read
from edged.rest.answers import Event, Events

_read = read()
ROUTERS = (_read,)
_LIVE = {
    "description": "Events, oldest first; or, with `Accept: text/event-stream`, live",
    "content": {
        sse.MEDIA_TYPE: {
            "schema": {"type": "string"},
            "example": 'id: 4711\nevent: event\ndata: {"id": 4711, "kind": "job.paused"}\n\n',
        }
    },
}


@_read.get(
    "/v1/events", responses={**says(429), 200: _LIVE}, response_model=Events, tags=["events"]
)
async def events(
    request: Request,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = None,
    last_event_id: Annotated[str | None, Header(max_length=64)] = None,
) -> Events | Response:
    """The last events, up to 1000 of them; with `Accept: text/event-stream` live.

    The live stream contains the daemon's state once a second as `event: snapshot`.
    """
    shared = context.of(request)
    wants_live = sse.MEDIA_TYPE in request.headers.get("accept", "")
    if wants_live and not getattr(request.state, "head", False):
        shared.live.enter(request.state.peer.listener.trusted)
        return sse.EventStream(shared.door, last_event_id)
    since = _since(cursor)
    answer = await shared.door.ask("events", since=since, limit=limit)
    return _page(answer, since, limit)


def _since(cursor: str | None) -> int:
    key = paging.decode(cursor)
    if key is None:
        return 0
    if not key.isdecimal() or len(key) > 18:
        fault = ProblemFault("query.cursor", "is not a cursor", "send `next` of the page before")
        raise ApiProblem("invalid", "the cursor is not one of ours", errors=(fault,))
    return int(key)


def _page(answer: dict[str, Any], since: int, limit: int) -> Events:
    items = [validated(Event, event) for event in answer.get("events", [])]
    return Events(
        items=items,
        next=paging.encode(str(items[-1]["id"])) if len(items) == limit else None,
        missed=int(answer.get("missed", 0)) if since else 0,
    )
