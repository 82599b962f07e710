"""State that is dealt out to other instances: windows and joins give the same rows afterwards."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from edged.data.columns import Batch
from edged.data.flow import BeatContext, Flow
from edged.data.hashing import hash_columns
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError
from edged.job.plan import parse_job
from edged.job.state_transfer import pack, redistributed, unpack
from kernels.cpu import link_partition

COLUMNS = {"key": "string", "time": "timestamp", "value": "int64"}
STREAM = {"source": {"type": "http"}, "columns": COLUMNS, "time": "time", "max_ahead": "36500d"}
WINDOW = {
    "type": "window", "input": "left", "keys": ["key"], "size": "1h",
    "aggregates": {"n": "count(*)", "total": "sum(value)"},
}  # fmt: skip
JOIN = {
    "type": "interval_join", "left": "left", "right": "right", "on": ["key"],
    "before": "1h", "after": "1h",
    "columns": {"key": "left.key", "time": "left.time", "a": "left.value", "b": "right.value"},
}  # fmt: skip


def plan_of(operator):
    return parse_job({
        "name": "j", "streams": {"left": STREAM, "right": STREAM}, "operators": {"o": operator},
        "sinks": {"s": {"type": "pages", "input": "o"}},
    })  # fmt: skip


def batch(plan, first, count):
    schema = plan.streams["left"].schema
    numbers = np.arange(first, first + count)
    table = pa.record_batch(
        {
            "key": pa.array([f"k{n % 11}" for n in numbers]),
            "time": pa.array(numbers * 1_000_000, pa.timestamp("us", tz="UTC")),
            "value": pa.array(numbers, pa.int64()),
        },
        schema=schema.to_arrow(),
    )
    return Batch.from_arrow(table, schema)


def instances(count):
    def of(hashes):
        found = np.empty(hashes.size, np.int64)
        link_partition.by_hash(hashes, count, found)
        return found

    return of


class Stage:
    """Instances of one operator behind hash links."""

    def __init__(self, plan, count, states=None):
        self.plan, self.count, self.workers = plan, count, Workers(1)
        self.operators = [plan.operators["o"].build(self.workers) for _ in range(count)]
        for operator, state in zip(self.operators, states or (), strict=False):
            operator.load({k.removeprefix("operators/o/"): a for k, a in state.items()})

    def run(self, batches, watermark_us):
        """The rows that all instances give, sorted."""
        found, beat = [], BeatContext(1, 0, self.workers)
        for i, operator in enumerate(self.operators):
            flows = []
            for one in batches:
                goes = instances(self.count)(hash_columns(one, ["key"]))
                mine = one.to_arrow().take(pa.array(np.flatnonzero(goes == i)))
                flows.append(Flow(Batch.from_arrow(mine, one.schema), watermark_us))
            found += operator.run(beat, flows).batch.to_arrow().to_pylist()
        return sorted(map(repr, found))

    def scaled(self, count):
        saved = [
            {f"operators/o/{k}": a.copy() for k, a in operator.save(Scratch()).items()}
            for operator in self.operators
        ]
        by = {"left": ("key",), "right": ("key",)}
        states = redistributed(self.plan, by, saved, count, instances(count))
        return Stage(self.plan, count, [unpack(pack(state)) for state in states])


@pytest.mark.parametrize(("operator", "inputs"), [(WINDOW, 1), (JOIN, 2)])
def test_rescaled_instances_give_what_one_gives(operator, inputs):
    plan = plan_of(operator)
    stage, twin = Stage(plan, 2), Stage(plan, 1)
    assert stage.run([batch(plan, 0, 500)] * inputs, 0) == twin.run(
        [batch(plan, 0, 500)] * inputs, 0
    )
    for count, first in ((3, 500), (1, 900), (2, 1300)):
        stage = stage.scaled(count)
        rows = [batch(plan, first, 400)] * inputs
        assert stage.run(rows, 0) == twin.run(rows, 0)
    empty, end_us = [batch(plan, 0, 0)] * inputs, 10**15
    assert stage.run(empty, end_us) == twin.run(empty, end_us)


def test_a_damaged_state_is_refused():
    data = bytearray(pack({"operators/o/x": np.arange(5)}))
    data[-1] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        unpack(bytes(data))


def test_a_state_without_keys_on_its_links_is_refused():
    plan = plan_of(WINDOW)
    saved = {f"operators/o/{k}": a for k, a in Stage(plan, 1).operators[0].save(Scratch()).items()}
    with pytest.raises(JobError, match="not dealt out by keys"):
        redistributed(plan, {}, [saved], 2, instances(2))
