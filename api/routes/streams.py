"""`/v1/streams` and `/v1/sources`."""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Query, Request

from api import context, paging
from api.answers import figures, validated
from api.openapi import says
from api.problems import ApiProblem
from api.rates import COUNTED, Rates
from api.security import read
from edged.rest.answers import Name, Source, Sources, Stream, Streams

_read = read()
ROUTERS = (_read,)
_PATTERN = r"^[a-z][a-z0-9_-]{0,62}$"
OfJob = Annotated[
    str | None,
    Query(pattern=_PATTERN, description="The job, if several have a stream of this name"),
]


@_read.get("/v1/streams", responses=says(), tags=["streams"])
async def streams(
    request: Request, limit: paging.Limit = 100, cursor: paging.Cursor = None
) -> Streams:
    """All streams of all jobs: rows and their rate, watermarks, lateness, and staged rows.

    The first request within a minute takes a second longer: rates need two snapshots.
    """
    found = views(*await context.of(request).door.rates())
    items, after = paging.cut(found, lambda s: f"{s['job']}/{s['name']}", cursor, limit)
    return Streams(items=items, next=after)


@_read.get("/v1/streams/{stream}", responses=says(404, 409), tags=["streams"])
async def stream(request: Request, stream: Name, job: OfJob = None) -> Stream:
    """One stream."""
    snapshot, rates = await context.of(request).door.rates()
    return find(snapshot, stream, job, rates)


@_read.get("/v1/sources", responses=says(), tags=["streams"])
async def sources(
    request: Request, limit: paging.Limit = 100, cursor: paging.Cursor = None
) -> Sources:
    """All sources: connections, received rows and bytes, and the time of backpressure."""
    snapshot, rates = await context.of(request).door.rates()
    found = [_source(entry, rates) for entry in snapshot.get("sources", [])]
    items, after = paging.cut(found, lambda s: s["name"], cursor, limit)
    return Sources(items=items, next=after)


def find(
    snapshot: dict[str, Any], name: str, job: str | None, rates: Rates | None = None
) -> Stream:
    """The stream of this name.  Raises ApiProblem 404, or 409 if several jobs have one."""
    found = [s for s in views(snapshot, rates) if s["name"] == name and job in (None, s["job"])]
    if not found:
        where = f" in a job {job}" if job else ""
        raise ApiProblem(
            "not-found", f"there is no stream {name}{where}", "GET /v1/streams lists them"
        )
    if len(found) > 1:
        jobs = ", ".join(s["job"] for s in found)
        raise ApiProblem("conflict", f"{jobs} have a stream {name}", "say which with ?job=")
    return found[0]


def views(snapshot: dict[str, Any], rates: Rates | None = None) -> Iterator[Stream]:
    """The resources from a snapshot."""
    fed = {
        (row["job"], row["stream"]): source
        for source in snapshot.get("sources", [])
        for row in source.get("streams", [])
    }
    for job, parts in snapshot.get("jobs", {}).items():
        created = str(parts.get("created_us", 0))
        for name, entry in parts.get("streams", {}).items():
            source = fed.get((job, name), {})
            yield validated(
                Stream,
                {
                    **entry,
                    "job": job,
                    "name": name,
                    "source": source.get("kind", ""),
                    "address": source.get("address", ""),
                    "rows_per_s": rates and rates.per_s("stream", job, created, name),
                    "figures": figures(entry, Stream),
                },
            )


def _source(entry: dict[str, Any], rates: Rates) -> Source:
    rest = figures(entry, Source)
    rest.pop("takes_http", None)  # for `api.ingest` alone
    late = {f"{what}_per_s": rates.per_s("source", entry["name"], what) for what in COUNTED}
    return validated(Source, {**entry, **late, "figures": rest})
