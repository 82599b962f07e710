"""The sources of all jobs together: which streams share one, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence

from edged.beat.runtime import JobRuntime
from edged.errors import JobError
from edged.sources.base import Source, SourcePlan
from edged.staging import Staging
from edged.workers import Workers


def build_sources(jobs: Sequence[JobRuntime], workers: Workers) -> list[Source]:
    """One source, not started yet, for each group of streams that share it.

    Raises JobError where streams that share a listener have one name, or disagree about it.
    """
    groups: dict[str, list[tuple[str, str, Staging, SourcePlan]]] = {}
    for job in jobs:
        for name, s in job.streams.items():
            plan = s.plan.source
            key = plan.share_key() if plan.listens else f"{plan.share_key()} {job.plan.name}"
            groups.setdefault(key, []).append((job.plan.name, name, s.staging, plan))
    return [_build(members, workers) for members in groups.values()]


def _build(members: Sequence[tuple[str, str, Staging, SourcePlan]], workers: Workers) -> Source:
    stagings: dict[str, Staging] = {}
    for job, name, staging, plan in members:
        if name in stagings:
            other = next(j for j, n, _, _ in members if n == name)
            raise JobError(
                f"streams.{name}.source",
                f"jobs {other} and {job} both have a stream {name} on {plan.share_key()}",
                "give one of them another name or another listener",
            )
        stagings[name] = staging
    first = members[0][3]
    source = first.build(stagings, {name: plan for _, name, _, plan in members}, workers)
    source.kind = first.kind
    source.address = first.share_key().removeprefix(f"{first.kind}:")
    if not first.listens:
        source.address = f"{members[0][0]}/{source.address}"
    source.feeds = tuple((job, name) for job, name, _, _ in members)
    return source
