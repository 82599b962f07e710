"""State that an instance of a stage keeps, and what a new version may do to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edged.graph.check import PlacedGraph
from edged.graph.daemons import DaemonView
from edged.graph.stages import Cut


def stateful(made: Cut, stage: str) -> list[str]:
    """The operators of a stage that keep rows or groups between beats."""
    operators = made.plan.whole.operators
    parts = [p for p in made.stages[stage].parts if p in operators]
    return [p for p in parts if operators[p].signature_facts() or operators[p].table_states()]


def running(
    graph: PlacedGraph, views: Mapping[str, DaemonView], stage: str
) -> set[tuple[str, int]]:
    """(daemon, instance) of a stage's jobs as they run."""
    prefix = f"{graph.plan.name}-{stage}-"
    return {
        (view.name, int(name.removeprefix(prefix)))
        for view in views.values()
        for name in view.jobs
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
    }


def moved(graph: PlacedGraph, views: Mapping[str, DaemonView]) -> Iterator[str]:
    """The stages with state that run elsewhere, or in another number, than the graph says."""
    for name in graph.cut.stages:
        found = running(graph, views, name)
        wanted = {(daemon, i) for i, daemon in enumerate(graph.placement[name])}
        if found and found != wanted and stateful(graph.cut, name):
            yield name
