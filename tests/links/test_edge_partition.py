"""Partitioning schemes against their naive twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.hashing import hash_columns
from edged.data.schema import INT32, INT64, STRING, Field, Schema
from edged.errors import JobError
from edged.links.partition import Direction, Partitioner
from tests.links.support import plan
from tests.naive import link_partition as naive
from tests.pages import shapes
from tests.whole import examples

SCHEMA = Schema.of(
    [Field("k", INT32, True), shapes.TIME, Field("name", STRING, True), Field("to", INT64, True)]
)
KEYS = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))
ROWS = st.lists(
    st.tuples(KEYS, st.integers(0, 99), st.text(max_size=9) | st.none(),
              st.integers(-2, 6) | st.none()).map(list), max_size=60,
)  # fmt: skip


def dealt(partitioner, batch):
    """The rows of each instance, as lists, and how many have none."""
    shares = partitioner.deal(batch, shapes.ONE)
    whole = list(range(batch.rows))
    return [whole if rows is None else rows.tolist() for rows in shares.rows], shares.lost


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(ROWS, max_size=3), st.integers(1, 5), st.sampled_from(["hash", "random",
       "round_robin", "broadcast", "direct"]))  # fmt: skip
def test_each_scheme_deals_as_its_naive_twin(batches, instances, scheme):
    by = {"hash": ("k", "name"), "direct": ("to",)}.get(scheme, ())
    partitioner, first = Partitioner(scheme, instances, by), 0
    for rows in batches:
        n = len(rows)
        batch = shapes.batch_of(SCHEMA, rows)
        of = {
            "hash": lambda b=batch: naive.by_hash(hash_columns(b, by).tolist(), instances),
            "random": lambda n=n, f=first: naive.at_random(f, n, instances),
            "round_robin": lambda n=n, f=first: naive.round_robin(f, n, instances),
            "direct": lambda r=rows: [-1 if row[3] is None else row[3] for row in r],
        }
        if scheme == "broadcast":
            wanted = [list(range(len(rows)))] * instances, 0
        else:
            wanted = naive.group(of[scheme](), instances)
        assert dealt(partitioner, batch) == wanted
        first += len(rows)


def test_an_expression_yields_the_instance_and_rows_in_error_have_none():
    direction = Direction.of("sinks.out.partition", "10 // k", SCHEMA)
    batch = shapes.batch_of(SCHEMA, [[k, 0, "", 0] for k in (10, 5, 0, None, 1, 4)])
    found, lost = dealt(Partitioner("10 // k", 3, (), direction), batch)
    assert found == [[], [0], [1, 5]]
    assert lost == 3
    for wrong in ("name", "k +", "nothing"):
        with pytest.raises(JobError) as fault:
            plan(SCHEMA, partition=wrong)
        assert fault.value.path == "sinks.out.partition"


def test_the_rows_of_an_instance_fill_all_partitions_of_a_daemon():
    batch = shapes.batch_of(SCHEMA, [[k, 0, "", 0] for k in range(20_000)])
    inside = (hash_columns(batch, ("k",)) >> np.uint64(58)).astype(int)
    found, _ = dealt(Partitioner("hash", 4, ("k",)), batch)
    for rows in found:
        assert 4_000 < len(rows) < 6_000
        counts = np.bincount(inside[rows], minlength=64)
        assert counts.min() > 40
