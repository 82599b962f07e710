"""A placed graph as JSON values and as lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edged.documents.units import show_duration
from edged.graph.check import PlacedGraph
from edged.graph.jobs import job_name


def describe(graph: PlacedGraph) -> dict[str, Any]:
    """Stages, exchanges, jobs, and the latency promises added up, as JSON values."""
    made = graph.cut
    return {
        "name": graph.plan.name,
        "stages": [
            {
                "name": stage.name, "parts": list(stage.parts), "instances": stage.instances,
                "daemons": list(graph.placement[stage.name]), "level": stage.level,
            }
            for stage in made.stages.values()
        ],
        "links": [
            {
                "name": one.id, "rows": one.rows, "from": one.source, "to": one.target,
                "partition": "round_robin" if one.terms is None else one.terms.partition,
                "by": [] if one.terms is None else list(one.terms.by),
                "declared": one.terms is not None,
            }
            for one in made.exchanges
        ],
        "paths": [path.to_json() for path in graph.paths()],
        "end_to_end_us": graph.plan.end_to_end_us or None,
        "jobs": [{"name": j.name, "daemon": j.daemon, "document": j.document} for j in graph.jobs],
        "warnings": graph.warnings,
    }  # fmt: skip


def lines(graph: PlacedGraph) -> Iterator[str]:
    """The plan for people."""
    made, plan = graph.cut, graph.plan
    yield f"{plan.name}: {len(graph.jobs)} jobs on {len(plan.daemons)} daemons"
    for stage in made.stages.values():
        yield ""
        yield f"{stage.name}: {', '.join(stage.parts)}"
        for i, daemon in enumerate(graph.placement[stage.name]):
            listen = _address(graph, stage.name, i)
            yield f"  {job_name(plan.name, stage.name, i)} on {daemon}{listen}"
        for one in made.out_of(stage.name):
            terms = one.terms
            how = "round_robin" if terms is None else terms.partition
            by = f" by {', '.join(terms.by)}" if terms is not None and terms.by else ""
            count = made.stages[one.target].instances
            goes = f"{one.target}, {count} instance{'s' if count > 1 else ''}"
            yield f"  ─► {goes}: {one.rows}, {how}{by} ({one.id})"
    yield ""
    for path in graph.paths():
        yield f"within {show_duration(path.latency_us)}: {' → '.join(path.stages)}"
    if plan.end_to_end_us:
        yield f"promised end to end: {show_duration(plan.end_to_end_us)}"
    for warning in graph.warnings:
        yield f"warning: {warning}"


def _address(graph: PlacedGraph, stage: str, index: int) -> str:
    exchanges = graph.cut.into(stage)
    if not exchanges:
        return ""
    job = next(j for j in graph.jobs if (j.stage, j.index) == (stage, index))
    return f", listens on {job.document['streams'][exchanges[0].stream]['source']['listen']}"
