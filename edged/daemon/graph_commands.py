"""The door's commands about graphs: claim a version, change its state, forget it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from edged.daemon.graph_records import STATES, GraphRecord, GraphRecords
from edged.daemon.parts import Parts
from edged.daemon.requests import Request, integer, text
from edged.documents import reader as doc
from edged.errors import CommandError
from edged.job.graph_tag import DAEMONS_MAX, VERSION_MAX, GraphTag

DIGEST_MAX = 2**56 - 1


def put(parts: Parts, request: Request) -> Future[dict[str, Any]]:
    """Claim a version of a graph, or change the state of the claimed one."""
    name = doc.is_id("name", text(request, "name"))
    daemons, state = request.get("daemons"), text(request, "state")
    if state not in STATES:
        do = f"one of {', '.join(STATES)}"
        raise CommandError("invalid", f"{state!r} is no state", where="state", do=do)
    if not isinstance(daemons, list) or len(daemons) > DAEMONS_MAX:
        raise CommandError("invalid", "is not a list of daemons", where="daemons")
    record = GraphRecord(
        integer(request, "version", None, 1, VERSION_MAX),
        integer(request, "digest", None, 0, DIGEST_MAX),
        state,
        tuple(doc.is_id(f"daemons[{i}]", one) for i, one in enumerate(daemons)),
        parts.clock.wall_us(),
    )
    return parts.graphs.put(name, record, *_known(name, request))


def delete(graphs: GraphRecords, request: Request) -> Future[dict[str, Any]]:
    """Forget a graph."""
    name = text(request, "name")
    return graphs.delete(name, *_known(name, request))


def _known(name: str, request: Request) -> tuple[GraphTag | None, int]:
    """The version and digest that the request was made for."""
    version = integer(request, "if_version", 0, 0, VERSION_MAX)
    digest = integer(request, "if_digest", 0, 0, DIGEST_MAX)
    return (GraphTag(name, version) if version else None), digest
