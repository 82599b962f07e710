"""Counters of the jobs' parts, and of the rows that were dropped, over changes of the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from edged.beat.lasting_counts import LastingCounts, growing
from edged.beat.runtime import JobRuntime
from edged.beat.stream_runtime import StreamRuntime

Part: TypeAlias = tuple[str, str, str]
"""Job, section of the document, id."""

_DROPS: Part = ("", "drops", "")


class JobCounts:
    """The counters of all jobs; the heart's thread only."""

    def __init__(self, jobs: Sequence[JobRuntime]) -> None:
        self._jobs = list(jobs)
        self._lasting: LastingCounts[Part] = LastingCounts()

    def follow(self, jobs: Sequence[JobRuntime]) -> None:
        """Take over the counters of the jobs so far; to be called at each change of the jobs,
        before the next beat."""
        self._lasting.move(dict(_counts(self._jobs)), dict(_counts(jobs)))
        self._jobs = list(jobs)

    def shown(self, job: str, section: str, id: str, counters: Mapping[str, Any]) -> dict[str, Any]:
        """The counters of a running part, with those of the earlier parts of its name."""
        return self._lasting.shown((job, section, id), counters)

    def drops(self) -> dict[str, Any]:
        """Rows that were not processed, by reason, those of ended jobs included."""
        return self._lasting.shown(_DROPS, _drops(self._jobs))


def stream_counters(s: StreamRuntime) -> dict[str, int]:
    """The counters of a stream."""
    return {"rows": s.rows, "late": s.late, "refused_ahead": s.staging.refused_ahead}


def _counts(jobs: Sequence[JobRuntime]) -> Iterator[tuple[Part, dict[str, int | float]]]:
    for job in jobs:
        name = job.plan.name
        for id, s in job.streams.items():
            yield (name, "streams", id), {**stream_counters(s)}
        for id, operator in job.operators.items():
            yield (name, "operators", id), growing(operator.counters(), operator.gauges)
        for id, sink in job.sinks.items():
            yield (name, "sinks", id), growing(sink.counters(), sink.gauges)
    yield _DROPS, {**_drops(jobs)}


def _drops(jobs: Sequence[JobRuntime]) -> dict[str, int]:
    streams = [s for job in jobs for s in job.streams.values()]
    dropped = [s for s in streams if s.plan.late == "drop"]
    written = [sink.counters() for job in jobs for sink in job.sinks.values()]
    return {
        "late": sum(s.late for s in dropped),
        "refused_ahead": sum(s.staging.refused_ahead for s in streams),
        "too_large": int(sum(counters.get("rows_too_large", 0) for counters in written)),
    }
