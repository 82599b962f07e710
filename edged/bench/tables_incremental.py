"""The incremental join of `edged bench tables`: members, DuckDB's delta query, and a floor.

Each beat's changes are appended to a log with one fdatasync, as the store does; states are saved
and synced every SNAPSHOT_BEATS beats.  DuckDB keeps both tables in a file of its own, with indexes
on the identifiers, and commits each beat.  CPU time is that of the process and all of its threads.
The time of summing the results, which all do alike to be compared, is taken off.  The floor
(`edged.bench.tables_floor`) touches the lines that the join must touch, and does nothing else.
Pathway runs in an environment of its own (`edged.bench.tables_pathway`).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa

from edged.bench.tables_data import (
    Incremental,
    PairSums,
    Row,
    TableBeat,
    TableChanges,
    Tick,
    beat_of,
    made_state,
    members,
    settle,
)
from edged.bench.tables_floor import LineFloor
from edged.bench.tables_pathway import measure_pathway
from edged.errors import EdgedError
from edged.tables.runs import SLICE_ROWS

SNAPSHOT_BEATS = 20
_MEMORY = 1 << 28
_WARM = 3
"""Beats before the clock starts."""


def measure_incremental(
    size: Incremental, tick: Tick, pathway: bool = True
) -> tuple[list[Row], list[str]]:
    """A row for each member, and what was not measured, and why."""
    rows: list[Row] = []
    missing: list[str] = []
    for member in members():
        tick(f"incremental join, {member}")
        rows.append(_row(member, size, lambda m=member: _Member(m, size)))  # type: ignore[misc]
    if find_spec("duckdb") is None:
        missing.append("duckdb is not installed: pip install 'edged[central]'")
    else:
        tick("incremental join, duckdb")
        rows.append(_row("duckdb", size, lambda: _DuckDB(size)))
    answers = [row.pop("answers") for row in rows]
    for row, answer in zip(rows, answers, strict=True):
        row["equal"] = answer == answers[-1]
    tick("incremental join, floor")
    floor = LineFloor(size)
    row = _row("floor", size, lambda: floor)
    del row["answers"]
    lines, touched = floor.touched(size.made[-1])
    rows.append({**row, "equal": None, "lines_a_change": lines, "bytes_a_change": touched})
    if pathway:
        try:
            rows.append(measure_pathway(size, tick))
        except EdgedError as problem:
            missing.append(str(problem))
    return rows, missing


class _Member:
    """A member of the family: two states and a log."""

    def __init__(self, member: str, size: Incremental) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._u = made_state(member, f"{self._folder.name}/u", _MEMORY)
        self._t = made_state(member, f"{self._folder.name}/t", _MEMORY)
        self._log = os.open(f"{self._folder.name}/log", os.O_WRONLY | os.O_CREAT)
        self._beats = 0
        self.sums = PairSums()
        self._u.apply(size.u.batch(), size.u.weight)
        self._t.apply(size.t.batch(), size.t.weight)
        settle(self._u, self._t)

    def beat(self, beat: TableBeat) -> None:
        """One beat."""
        beat_of(self._u, self._t, beat, self.sums)
        for changes in (beat.of_u, beat.of_t):
            os.writev(self._log, [changes.k.data, changes.id.data, changes.v.data,
                                  changes.weight.data])  # fmt: skip
        os.fdatasync(self._log)
        for state in (self._u, self._t):
            state.work(SLICE_ROWS)
        self._beats += 1
        if self._beats % SNAPSHOT_BEATS == 0:
            for state in (self._u, self._t):
                saved = state.save()
                state.sync()
                state.keep([saved])

    def close(self) -> None:
        """Remove the files."""
        self._u.close()
        self._t.close()
        os.close(self._log)
        self._folder.cleanup()


class _DuckDB:
    """Delta queries: each side's changes joined with the other side's table, then applied."""

    def __init__(self, size: Incremental) -> None:
        import duckdb

        self._folder = tempfile.TemporaryDirectory()
        self._db = duckdb.connect(str(Path(self._folder.name) / "tables.db"))
        self._db.execute("SET threads = 1")
        for name, rows in (("u", size.u), ("t", size.t)):
            self._db.execute(f"CREATE TABLE {name} (k BIGINT, id BIGINT, v BIGINT)")
            self._insert(name, rows)
            self._db.execute(f"CREATE INDEX {name}_id ON {name} (id)")
        self.sums = PairSums()

    def _insert(self, name: str, rows: TableChanges) -> None:
        self._db.register("new_rows", _arrow(rows))
        self._db.execute(f"INSERT INTO {name} SELECT k, id, v FROM new_rows WHERE w > 0")

    def _meet(self, changes: TableChanges, other: str, changes_are_u: bool) -> None:
        self._db.register("delta", _arrow(changes))
        found = self._db.sql(
            f"SELECT d.id, d.v, o.id AS oid, o.v AS ov, d.w FROM delta d JOIN {other} o USING (k)"
        ).to_arrow_table()
        d_id, d_v, o_id, o_v, w = (found.column(i).to_numpy() for i in range(5))
        u, t = ((d_id, d_v), (o_id, o_v)) if changes_are_u else ((o_id, o_v), (d_id, d_v))
        self.sums.add(u, t, w.astype(np.int64))

    def _apply(self, name: str, changes: TableChanges) -> None:
        self._db.register("delta", _arrow(changes))
        self._db.execute(f"DELETE FROM {name} WHERE id IN (SELECT id FROM delta WHERE w < 0)")
        self._insert(name, changes)

    def beat(self, beat: TableBeat) -> None:
        """One beat.  Deletes and inserts of one identifier are transactions of their own, because
        an index takes no row that its transaction has deleted."""
        self._meet(beat.of_u, "t", True)
        self._apply("u", beat.of_u)
        self._meet(beat.of_t, "u", False)
        self._apply("t", beat.of_t)

    def close(self) -> None:
        """Remove the file."""
        self._db.close()
        self._folder.cleanup()


def _arrow(rows: TableChanges) -> pa.Table:
    return pa.table({"k": rows.k, "id": rows.id, "v": rows.v, "w": rows.weight})


def _row(member: str, size: Incremental, make: Callable[[], _Member | LineFloor | _DuckDB]) -> Row:
    """Run all beats; the first ones before the clock starts."""
    joined, answers, slowest_s = make(), [], 0.0
    for beat in size.made[:_WARM]:
        joined.beat(beat)
    cpu, wall, changes = time.process_time(), time.perf_counter(), 0
    joined.sums.cpu_s = 0.0
    for beat in size.made[_WARM:]:
        start = time.perf_counter()
        joined.beat(beat)
        slowest_s = max(slowest_s, time.perf_counter() - start)
        changes += beat.changes
        answers.append(joined.sums.answer)
    cpu_s = time.process_time() - cpu - joined.sums.cpu_s
    wall_s = time.perf_counter() - wall
    joined.close()
    return {
        "member": member, "changes": changes, "pairs": joined.sums.pairs, "cpu_s": cpu_s,
        "wall_s": wall_s, "changes_per_cpu_s": changes / cpu_s, "beat_ms_max": 1e3 * slowest_s,
        "answers": answers,
    }  # fmt: skip
