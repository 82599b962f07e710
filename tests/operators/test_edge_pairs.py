"""A sensor's edges and the first later edges of its valve, as a job with `lag` and `detect` pairs
them: equal to a plain search and to DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

from edged.data.columns import Batch, Column
from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow
from edged.job.plan import parse_job
from tests.operators.keyed_cases import WORKERS, out
from tests.whole import count

ROWS, BEAT_ROWS = 30_000, 4_000
STREAM = {
    "source": {"type": "generator", "rate": 100, "key": "machine"},
    "columns": {"machine": "int32", "ts": "timestamp", "bm05": "bool", "bm08": "bool"},
    "time": "ts",
}  # fmt: skip
UP = ("bm05 and not sensor_was", "bm08 and not valve_was")
DOWN = ("not bm05 and sensor_was", "not bm08 and valve_was")


def document(sensor, valve):
    """Both columns' changes, then a sensor's edge with the first valve edge before its next."""
    edges = {
        "type": "lag", "input": "plant", "keys": ["machine"], "changes_only": ["bm05", "bm08"],
        "columns": {"sensor_was": "bm05", "valve_was": "bm08"},
    }  # fmt: skip
    steps = [
        {"name": "sensor", "where": sensor},
        {"name": "valve", "where": valve, "unless": "bm05 <> sensor_was"},
    ]
    columns = {"machine": "valve.machine", "since": "sensor.ts", "ts": "valve.ts"}
    pairs = {
        "type": "detect", "input": "edges", "keys": ["machine"], "within": "1h", "steps": steps,
        "columns": columns,
    }  # fmt: skip
    return {
        "name": "equipment", "streams": {"plant": STREAM},
        "operators": {"edges": edges, "pairs": pairs},
        "sinks": {"delays": {"type": "pages", "input": "pairs"}},
    }  # fmt: skip


def plant(machines, seed=5):
    """Booleans of machines at 100 Hz: a valve follows its sensor late, never, or twice."""
    random = np.random.default_rng(seed)
    machine = np.arange(ROWS) % machines
    ts = np.arange(ROWS) // machines * 10_000 + random.integers(0, 3, ROWS)
    sensor, valve = np.zeros((2, ROWS), bool)
    for m in range(machines):
        mine = np.flatnonzero(machine == m)
        edges = np.cumsum(random.integers(2, 40, mine.size))
        edges = edges[edges < mine.size]
        sensor[mine] = np.cumsum(np.bincount(edges, minlength=mine.size)) % 2 == 1
        late = edges + random.integers(0, 9, edges.size)
        late = late[(random.random(late.size) < 0.9) & (late < mine.size)]
        twice = late[random.random(late.size) < 0.1] + 1
        late = np.concatenate([late, twice[twice < mine.size]])
        valve[mine] = np.cumsum(np.bincount(late, minlength=mine.size)) % 2 == 1
    return machine, ts, sensor, valve


def by_search(data, up):
    """(machine, sensor's edge, valve's edge), from each sensor's edge forward."""
    found = []
    machine, ts, sensor, valve = data
    for m in range(machine.max() + 1):
        mine = np.flatnonzero(machine == m)
        s, v = sensor[mine], valve[mine]
        edge, other = np.flatnonzero(s[1:] != s[:-1]) + 1, np.flatnonzero(v[1:] != v[:-1]) + 1
        for place, at in enumerate(edge):
            if s[at] != up:
                continue
            until = edge[place + 1] if place + 1 < edge.size else mine.size
            later = [o for o in other if at < o <= until and v[o] == up]
            if later:
                found.append([m, int(ts[mine[at]]), int(ts[mine[later[0]]])])
    return sorted(found)


def by_duckdb(data, up):
    """The same: a valve's edge with the sensor's edge before it, the first of each."""
    machine, ts, sensor, valve = (np.ascontiguousarray(column) for column in data)
    db = duckdb.connect()
    db.register("plant", {"m": machine, "ts": ts, "s": sensor, "v": valve})
    return sorted(
        map(
            list,
            db.execute(
                """
        with was as (select *, lag(s) over w as sw, lag(v) over w as vw from plant
                     window w as (partition by m order by ts)),
        sensors as (select m, ts, s, lead(ts) over (partition by m order by ts) as following
                    from was where s <> sw),
        valves as (select m, ts from was where v <> vw and v = $up)
        select s.m, s.ts, min(v.ts) from sensors s join valves v on s.m = v.m and v.ts > s.ts
            and v.ts <= coalesce(s.following, 9e18) where s.s = $up group by all
        """,
                {"up": up},
            ).fetchall(),
        )
    )


def run(plan, data, workers):
    """The rows of the job's last operator, over beats."""
    running = {id: plan.operators[id].build(workers) for id in plan.order}
    schema, found = plan.streams["plant"].schema, []
    kinds = (np.int32, np.int64, np.uint8, np.uint8)
    arrays = [column.astype(kind) for column, kind in zip(data, kinds, strict=True)]
    whole = Batch(schema, ROWS, tuple(map(Column, arrays)))
    for start in [*range(0, ROWS, BEAT_ROWS), ROWS]:
        batch = whole.slice(start, min(start + BEAT_ROWS, ROWS))
        mark = int(batch["ts"].values.max()) - 9 if batch.rows else WATERMARK_MAX_US
        flows = {"plant": Flow(batch, mark)}
        for id in plan.order:
            inputs = [flows[name] for name in plan.inputs[id]]
            flows[id] = running[id].run(BeatContext(1, 0, workers), inputs)
        found += out(flows["pairs"])
    return found, running["pairs"].counters()


@pytest.mark.parametrize("up", count([True], [True, False]))
def test_edges_are_paired_with_the_first_later_edge_of_the_valve(up):
    plan = parse_job(document(*(UP if up else DOWN)))
    data = plant(3)
    wanted = by_search(data, up)
    assert len(wanted) > 300
    assert wanted == by_duckdb(data, up)
    for workers in (WORKERS[1], WORKERS[2]):
        found, counted = run(plan, data, workers)
        assert sorted(found) == wanted
        assert counted["matches"] == len(wanted)
        assert counted["attempts"] - len(wanted) > 50  # valves that did not follow
