"""Saved states of windows and joins, dealt out by key to other instances of their operator.

The instances hold disjoint keys before and after.  Numbers that only count go to the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.columns import Batch, Column
from edged.data.flow import State
from edged.data.gather import take
from edged.data.hashing import hash_columns
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.errors import JobError
from edged.operators._join_columns import SIDES
from edged.operators._time_order import deal_waiting
from edged.operators._window_groups import (
    Groups,
    from_state,
    merged,
    selected,
    to_state,
)
from edged.operators.base import InstanceOf
from kernels.cpu.window import GROUP


def window(
    plan: Any,
    by: Sequence[Sequence[str]],
    states: Sequence[State],
    instances: int,
    instance_of: InstanceOf,
) -> list[State]:
    """Of a WindowPlan: groups by the hash of their keys, in order of start and first row."""
    shape, schema = plan.shape(), plan.input.schema
    groups = merged(shape, [from_state(shape, state) for state in states])
    goes = _instances(plan.builder().batch(groups), by[0], instances, instance_of)
    waiting = [State()] * instances
    if plan.opens:

        def dealt(batch: Batch) -> npt.NDArray[np.int64]:
            return _instances(batch, by[0], instances, instance_of)

        waiting = deal_waiting(schema, plan.input.time, "input", states, dealt, instances)
    numbers = np.sum([state["numbers"] for state in states], axis=0)
    firsts = groups.rows[:, GROUP.first]
    found = []
    for i in range(instances):
        mine: Groups = selected(shape, groups, goes == i)
        counts = numbers if i == 0 else np.zeros_like(numbers)
        counts = counts.copy()
        counts[0] = max(int(counts[0]), int(firsts.max(initial=-1)) + 1)
        found.append({"numbers": counts, **to_state(mine), **waiting[i]})
    return found


def join(
    plan: Any,
    by: Sequence[Sequence[str]],
    states: Sequence[State],
    instances: int,
    instance_of: InstanceOf,
) -> list[State]:
    """Of an IntervalJoinPlan: rows of both windows by the hash of their keys, by their times."""
    found = [State() for _ in range(instances)]
    for i, state in enumerate(found):
        counts = np.sum([old["matches"] for old in states], axis=0)
        state["matches"] = counts if i == 0 else np.zeros_like(counts)
    for side, name in enumerate(SIDES):
        schema = plan.kept(side)
        if instances > 1 and not set(by[side]) <= set(schema.names):
            problem = f"does not keep {', '.join(by[side])} of its {name} rows"
            advice = "name the columns in the join's output, or keep the number of its instances"
            raise JobError(f"operators.{plan.id}", problem, advice)
        rows = pa.Table.from_batches(
            [_side(state, name, schema).to_arrow() for state in states]
        ).combine_chunks()
        whole = Batch.from_arrow(_one(rows), schema)
        hashes = np.concatenate([state[f"{name}.hash"] for state in states])
        order = np.argsort(whole[plan.inputs[side].time].values, kind="stable").astype(np.int64)
        goes = _instances(whole, by[side], instances, instance_of)[order]
        for i, state in enumerate(found):
            mine = np.ascontiguousarray(order[goes == i])
            state[f"{name}.hash"] = hashes[mine]
            state |= _arrays(take(whole, mine, Scratch(), name), name)
    return found


def _instances(
    batch: Batch, by: Sequence[str], instances: int, instance_of: InstanceOf
) -> npt.NDArray[np.int64]:
    if instances == 1:
        return np.zeros(batch.rows, np.int64)
    return instance_of(hash_columns(batch, by))


def _side(state: State, name: str, schema: Schema) -> Batch:
    """The rows of a join's side in a saved state."""
    columns = tuple(
        Column(
            state[f"{name}.{i}.values"],
            state.get(f"{name}.{i}.valid"),
            state.get(f"{name}.{i}.offsets"),
        )
        for i in range(len(schema))
    )
    return Batch(schema, state[f"{name}.hash"].size, columns)


def _one(rows: pa.Table) -> pa.RecordBatch:
    """The only batch of a table, also of one without rows."""
    batches = rows.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], rows.schema)


def _arrays(batch: Batch, name: str) -> State:
    """Columns as a join saves them."""
    found = State()
    for i, column in enumerate(batch.columns):
        found[f"{name}.{i}.values"] = column.values.copy()
        if column.valid is not None:
            found[f"{name}.{i}.valid"] = column.valid.copy()
        if column.offsets is not None:
            found[f"{name}.{i}.offsets"] = column.offsets.copy()
    return found
