"""Replay of operators with state by key: equal pages and states after every prefix of the log."""

from __future__ import annotations

import random

import pytest

from edged.config.code_directories import DIRECTORY_VARIABLE
from tests.beat.support import stream
from tests.beat.test_replay import BEATS, COLUMNS, bytes_of, differing, live_run, recovered
from tests.whole import count

STREAM = {"lateness": 20, "late": "process", "idle_after": "5s", "max_behind": 50}
BY_NAME = {"keys": ["name"]}
COUNTS = """
class State:
    n: int64

class Outputs:
    class counts:
        time: timestamp
        name: string
        n: int64

def on_row(row, state, out):
    state.n += 1
    out.counts(time=row.time, name=row.name, n=state.n)
"""
OPERATORS = {
    "before": {
        "type": "lag", "input": "r", **BY_NAME, "columns": {"was": "note", "since": "time"},
        "changes_only": ["note"], "keep": 60,
    },
    "once": {"type": "deduplicate", "input": "r", "keys": ["name", "note"], "within": 200},
    "few": {"type": "throttle", "input": "r", **BY_NAME, "per": 100, "rows": 3},
    "some": {"type": "sample", "input": "r", **BY_NAME, "every": 3, "keep": 50},
    "backward": {"type": "asof_join", "left": "r", "right": "s", "on": ["name"], "how": "left"},
    "nearest": {
        "type": "asof_join", "left": "r", "right": "s", "on": ["name"], "direction": "nearest",
        "tolerance": 60,
    },
    "forward": {
        "type": "asof_join", "left": "r", "right": "s", "on": ["name"], "direction": "forward",
        "tolerance": 60,
    },
    "own": {"type": "kernel", "input": "r", **BY_NAME, "file": "counts.py", "keep": 50},
    "steps": {
        "type": "detect", "input": "r", **BY_NAME, "within": 90,
        "steps": [
            {"name": "a", "where": "note IS NULL"},
            {"name": "b", "where": "value > 0.5", "unless": "note IS NULL"},
        ],
    },
}  # fmt: skip
JOB = {
    "name": "keyed",
    "streams": {name: stream(COLUMNS, **STREAM) for name in "rs"},
    "operators": OPERATORS,
    "sinks": {f"out_{id}": {"type": "pages", "input": id, "page": "4KiB"} for id in OPERATORS},
}  # fmt: skip


@pytest.mark.parametrize("seed", count(range(1), range(6)))
def test_every_prefix_of_the_log_replays_to_equal_pages_and_state(tmp_path, seed, monkeypatch):
    code = tmp_path / "code"
    code.mkdir()
    (code / "counts.py").write_text(COUNTS)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(code))
    snapshots = (5, 11, 12, 20)
    plan, states, pages, _ = live_run(tmp_path, random.Random(seed), snapshots, job=JOB)
    assert {key.stream for key in pages} == set(JOB["sinks"])
    for n in count((4, 13, BEATS), range(1, BEATS + 1)):
        found, _ = recovered(tmp_path / f"after-{n}", plan, workers=1 + n % 2)
        assert differing(bytes_of(found.jobs[0].save()), states[n]) == []
