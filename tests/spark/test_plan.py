"""Positions, limits and tasks: against a naive twin, and in a new process."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.central import row_checks, segments
from edged.central._source_plan import BatchLimits, advance, canonical, drop_retired, tasks
from edged.errors import CentralError
from tests.whole import examples

MINE, OTHER = segments.stream_hash("curve", 1), segments.stream_hash("daily", 1)


def write_index(landing, name, rows):
    """An idx of (length, tuples, is ours, landed_at_us) rows; pages are never read here."""
    table = np.zeros(len(rows), segments.ROW)
    at = 0
    for i, (length, tuples, mine, landed) in enumerate(rows):
        table[i] = (at, length, 0, tuples, 0, i, 1, landed, MINE if mine else OTHER, 0)
        at += length
    path = segments.idx_path(landing, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(table.tobytes() + b"torn")
    row_checks.write_crcs(path.with_suffix(""), row_checks.row_crcs(table), sync=False)


ROWS = st.lists(
    st.tuples(st.integers(300, 9_000_000), st.integers(0, 50), st.booleans(), st.integers(0, 9)),
    max_size=12,
)
LANDINGS = st.dictionaries(
    st.sampled_from(["seg-a-00000001", "seg-a-00000002", "seg-b-00000001"]), ROWS, min_size=1
)
BOUND = st.none() | st.integers(1, 20)


@settings(max_examples=examples(150), deadline=None)
@given(LANDINGS, BOUND, BOUND, BOUND, st.integers(1, 40 << 20))
def test_stepping_through_a_landing_reads_each_page_once_and_keeps_the_limits(
    tmp_path_factory, layout, pages, rows, megabytes, task_bytes
):
    landing = tmp_path_factory.mktemp("landing")
    for name, index in layout.items():
        write_index(landing, name, index)
    limits = BatchLimits(None if megabytes is None else megabytes << 20, pages, rows)
    end = segments.positions(landing)
    position, read = {}, []
    for _ in range(100):
        reached = advance(str(landing), MINE, position, end, limits)
        if reached == canonical(position):
            break
        batch = pages_of(landing, tasks(str(landing), MINE, position, reached, task_bytes))
        assert len(batch) <= 1 or limits_hold(layout, batch, limits)
        assert all(reached.get(name, 0) >= at for name, at in position.items())
        read += batch
        position = reached
    assert position == canonical(end)
    mine = [(n, i) for n in layout for i, row in enumerate(layout[n]) if row[2]]
    assert sorted(read) == sorted(mine)


def pages_of(landing, plan):
    found = []
    for task in plan:
        for name, first, stop in task:
            rows = segments.read_rows(landing, name, first, stop)
            found += [(name, first + i) for i, r in enumerate(rows) if r["stream_hash"] == MINE]
    assert len(set(found)) == len(found)
    return found


def limits_hold(layout, batch, limits):
    chosen = [layout[name][i] for name, i in batch]
    return (
        (limits.bytes is None or sum(r[0] for r in chosen) <= limits.bytes)
        and (limits.pages is None or len(chosen) <= limits.pages)
        and (limits.rows is None or sum(r[1] for r in chosen) <= limits.rows)
    )


def test_pages_are_taken_in_the_order_they_landed_so_that_no_segment_starves(tmp_path):
    write_index(tmp_path, "seg-a-00000001", [(300, 1, True, t) for t in (10, 30, 50)])
    write_index(tmp_path, "seg-b-00000001", [(300, 1, True, t) for t in (20, 40, 60)])
    end = segments.positions(tmp_path)
    reached = advance(str(tmp_path), MINE, {}, end, BatchLimits(pages=4))
    assert reached == {"seg-a-00000001": 2, "seg-b-00000001": 2}


def test_a_page_larger_than_the_limit_is_let_through_alone(tmp_path):
    write_index(tmp_path, "seg-a-00000001", [(100, 1, False, 1), (9000, 1, True, 1)] * 2)
    end = segments.positions(tmp_path)
    assert advance(str(tmp_path), MINE, {}, end, BatchLimits(bytes=10)) == {"seg-a-00000001": 2}


def test_a_minimum_of_rows_waits_until_they_are_there(tmp_path):
    write_index(tmp_path, "seg-a-00000001", [(300, 5, True, 1)] * 2)
    end = segments.positions(tmp_path)
    assert advance(str(tmp_path), MINE, {}, end, BatchLimits(rows_min=11)) == {}
    assert advance(str(tmp_path), MINE, {}, end, BatchLimits(rows_min=10)) == end


def test_tasks_are_the_same_in_a_fresh_interpreter(tmp_path):
    write_index(tmp_path, "seg-a-00000001", [(1 << 20, 9, i % 3 != 0, i) for i in range(40)])
    write_index(tmp_path, "seg-b-00000001", [(3 << 20, 9, True, i) for i in range(20)])
    start, end = {"seg-a-00000001": 3}, {"seg-a-00000001": 37, "seg-b-00000001": 11}
    here = tasks(str(tmp_path), MINE, start, end, 8 << 20)
    write_index(tmp_path, "seg-b-00000002", [(3 << 20, 9, True, 0)])  # lies above `end`
    code = (
        "import json, sys; from edged.central._source_plan import tasks;"
        "print(json.dumps(tasks(*json.loads(sys.argv[1]))))"
    )
    arguments = json.dumps([str(tmp_path), MINE, start, end, 8 << 20])
    there = subprocess.run(
        [sys.executable, "-c", code, arguments], capture_output=True, text=True, check=True
    )
    assert json.loads(there.stdout) == json.loads(json.dumps(here))
    assert len(here) > 1


def test_nothing_between_equal_positions(tmp_path):
    write_index(tmp_path, "seg-a-00000001", [(300, 1, True, 1)])
    assert tasks(str(tmp_path), MINE, {"seg-a-00000001": 1}, {"seg-a-00000001": 1}, 1 << 20) == []


def test_positions_have_one_written_form():
    assert json.dumps(canonical({"b": np.int64(2), "a": 1, "c": 0})) == '{"a": 1, "b": 2}'


def test_a_removed_segment_is_forgotten_but_an_unmounted_landing_is_not(tmp_path):
    position = {"seg-a-00000001": 4, "seg-a-00000002": 1, "seg-b-00000001": 2}
    assert drop_retired(str(tmp_path), position) == position
    write_index(tmp_path, "seg-a-00000002", [(300, 1, True, 1)])
    kept = {"seg-a-00000002": 1, "seg-b-00000001": 2}
    assert drop_retired(str(tmp_path), position) == kept


def test_a_landing_older_than_the_checkpoint_is_refused(tmp_path):
    write_index(tmp_path, "seg-a-00000001", [(300, 1, True, 1)])
    with pytest.raises(CentralError, match="older than the checkpoint"):
        tasks(str(tmp_path), MINE, {}, {"seg-a-00000001": 2}, 1 << 20)
    with pytest.raises(CentralError, match="is gone"):
        tasks(str(tmp_path), MINE, {}, {"seg-z-00000001": 2}, 1 << 20)
