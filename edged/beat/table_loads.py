"""The first rows of tables skip the log: a beat's record names files in their place.

Until a table is populated, its staged rows become sorted runs in files at once, one for each state
that keeps them, and the record names these with their sizes and checksums:

    ingest ─► rows become runs in files ─► [commit thread: files durable, record durable] ─► acks

A replay loads the files in place of the rows.  So each row is written once.  Such a beat takes all
staged rows of the table.  It goes the ordinary way, through the log, where

1. an operator that reads the table cannot load (`edged.operators.base.Loading`),
2. rows of an earlier beat are still staged: the log has them already,
3. they are few: a file would cost more than the log (LOAD_SHARE),
4. the beat takes no rows, or one chunk at a time to find input that kills the process.
"""

from __future__ import annotations

from collections.abc import Mapping

from edged.beat.operator_place import TABLES_SHARE
from edged.beat.record import JobFacts, StreamFacts
from edged.beat.stream_alignment import ONE_CHUNK
from edged.beat.stream_runtime import StreamRuntime
from edged.job.plan import JobPlan
from edged.operators.base import Loading, Operator

LOAD_SHARE = 8
"""Part of the memory of a table's state, 1 in LOAD_SHARE, that the rows of a file have at least."""


class TableLoads:
    """The loads of one job; `follow` before all else."""

    def __init__(self, plan: JobPlan) -> None:
        self._readers: dict[str, list[tuple[str, int]]] = {}
        """By table, the operators that read it, with the input."""
        for id in plan.order:
            for i, link in enumerate(plan.inputs[id]):
                if link in plan.streams and plan.streams[link].table is not None:
                    self._readers.setdefault(link, []).append((id, i))
        states = sum(p.table_states() for p in plan.operators.values())
        share = plan.promises.memory_bytes // TABLES_SHARE // max(1, states)
        self._least_bytes = share // LOAD_SHARE
        self._operators: dict[str, Loading] = {}

    def follow(self, operators: Mapping[str, Operator]) -> None:
        """Take over the job's running operators."""
        self._operators = {id: o for id, o in operators.items() if isinstance(o, Loading)}

    def chosen(self, streams: Mapping[str, StreamRuntime], rows_max: int) -> set[str]:
        """The tables whose staged rows a beat of `rows_max` rows loads."""
        if rows_max == ONE_CHUNK:
            return set()
        return {
            name
            for name, readers in self._readers.items()
            if self._loads(streams[name]) and all(self._can(id) for id, _ in readers)
        }

    def _can(self, id: str) -> bool:
        return id in self._operators and self._operators[id].can_load

    def _loads(self, s: StreamRuntime) -> bool:
        staging = s.staging
        return (
            not s.populated
            and staging.rows == staging.unlogged_rows > 0
            and staging.live_bytes() >= self._least_bytes
        )

    def begin(self, facts: JobFacts) -> None:
        """Tell the operators which inputs the next run loads, and in a replay from which files."""
        loaded = {name for name, f in facts.streams.items() if f.loaded}
        named = facts.loads
        for id, operator in self._operators.items():
            operator.loads = frozenset(
                i for name in loaded for reader, i in self._readers.get(name, ()) if reader == id
            )
            operator.named = None if named is None else named.get(id, {})

    def end(self, facts: JobFacts, streams: Mapping[str, StreamRuntime]) -> None:
        """After the operators: note what they have loaded, and drop the rows from the stagings."""
        if facts.loads is not None:
            return
        facts.loads = {id: dict(o.made) for id, o in self._operators.items() if o.loads}
        for name, f in facts.streams.items():
            if f.loaded:
                streams[name].staging.consume(*f.loaded)


def skip_log(facts: Mapping[str, StreamFacts], loading: set[str]) -> None:
    """Let the record have no rows of these tables: what a beat takes of them is loaded."""
    for f in (facts[name] for name in loading):
        f.loaded = [f.take_chunks, f.take_rows]
        f.logged_chunks = f.logged_rows = f.take_chunks = f.take_rows = 0
