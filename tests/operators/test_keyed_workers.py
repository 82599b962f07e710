"""Operators with state by key: beats that several workers share give the bytes of one worker."""

from __future__ import annotations

import pytest

from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow, Link
from edged.data.scratch import Scratch
from edged.operators.base import OPERATORS
from tests.operators.keyed_cases import SCHEMA, WORKERS, wide

OPERATORS.load()
DOCUMENTS = [
    {
        "type": "lag", "keys": ["k", "n"], "columns": {"was": "on", "s_was": "s", "since": "time"},
        "changes_only": ["on", "x"], "keep": 9_000,
    },
    {"type": "deduplicate", "keys": ["k"], "within": 5_000},
    {"type": "throttle", "keys": ["k", "x"], "rows": 3, "per": 9_000},
    {"type": "throttle", "keys": ["n"], "rows": 100, "per": 1_000, "aligned": True},
    {"type": "sample", "keys": ["k"], "every": 3},
    {"type": "sample", "fraction": 0.2},
]  # fmt: skip
BEATS = [wide(20_000, number, 20_000 * number, 500) for number in range(3)]


def outputs(document, count):
    """The Arrow batches of each beat, and the state before the last."""
    kind = dict(document)
    plan = OPERATORS[kind.pop("type")].parse("operators.o", "o", kind, [Link(SCHEMA, "time")])
    workers = WORKERS[count]
    operator, found = plan.build(workers), []
    for number, batch in enumerate(BEATS):
        if number == len(BEATS) - 1:
            state = {name: a.tobytes() for name, a in operator.save(Scratch()).items()}
        mark = int(batch["time"].values.max()) - 500
        flow = operator.run(BeatContext(number, 0, workers), [Flow(batch, mark)])
        found.append(flow.batch.to_arrow())
    empty = Flow(BEATS[0].slice(0, 0), WATERMARK_MAX_US)
    found.append(operator.run(BeatContext(9, 0, workers), [empty]).batch.to_arrow())
    return found, state


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d["type"])
def test_rows_and_state_are_those_of_one_worker(document):
    rows, state = outputs(document, 1)
    assert sum(batch.num_rows for batch in rows) > 100
    for count in (2, 12):
        others, other_state = outputs(document, count)
        assert all(a.equals(b) for a, b in zip(rows, others, strict=True))
        assert other_state == state
