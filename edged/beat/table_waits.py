"""Which streams wait for which tables: enrichment begins when the first rows of its table are
there.

A stream that waits stays staged.  The end of a table's first rows is a fact of a beat's record: the
watermark of a source that has ended, or `populated` where the source says so before it ends.  A
replay so takes the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edged.beat.record import StreamFacts
from edged.beat.stream_alignment import StagedChunks, upstream
from edged.beat.stream_runtime import StreamRuntime
from edged.data.flow import WATERMARK_MAX_US
from edged.job.plan import JobPlan


class TableWaits:
    """The waits of one job's streams."""

    def __init__(self, plan: JobPlan) -> None:
        self._tables: dict[str, set[str]] = {}
        """By stream, the tables that it waits for."""
        for id in plan.order:
            links = plan.inputs[id]
            for waits, table in plan.operators[id].waits():
                for stream in upstream(plan, links[waits]):
                    self._tables.setdefault(stream, set()).update(upstream(plan, links[table]))

    def held(self, streams: Mapping[str, StreamRuntime]) -> set[str]:
        """The streams whose rows must stay staged."""
        return {
            name
            for name, tables in self._tables.items()
            if not all(streams[t].populated for t in tables)
        }

    def waits_for(self, name: str, streams: Mapping[str, StreamRuntime]) -> list[str]:
        """The tables that a stream waits for now."""
        tables = self._tables.get(name, set())
        return sorted(t for t in tables if not streams[t].populated)

    def release(
        self,
        held: set[str],
        streams: Mapping[str, StreamRuntime],
        facts: Mapping[str, StreamFacts],
    ) -> bool:
        """Whether a beat with these facts lets rows go on that wait, so that another is due."""
        complete = {
            name
            for name, s in streams.items()
            if s.populated or facts[name].populated or facts[name].watermark_us == WATERMARK_MAX_US
        }
        return any(self._tables[name] <= complete and streams[name].staging.rows for name in held)


def empty(chunks: StagedChunks) -> StagedChunks:
    """The chunks of a stream that waits: a beat finds none of them."""
    return replace(chunks, stop=chunks.stop[:0], time_min=chunks.time_min[:0], full=False)
