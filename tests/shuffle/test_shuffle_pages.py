"""Pages of the shuffle family: their sizes, their number, and what reaches them at which cost."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.hashing import hash_columns
from edged.pages.format import verify
from edged.pages.read import read_page
from edged.pages.shuffle import (
    MEMBERS,
    ColumnInput,
    GeneratedInput,
    Shuffle,
    ShufflePlan,
    copy_limit,
    warm,
)
from tests.naive import pages as naive_pages
from tests.naive.shuffle import key_of, partitioned
from tests.pages import shapes
from tests.shuffle.support import by_partition, pages_of, run
from tests.whole import examples

BUFFERED = [member for member in MEMBERS if "/" not in member or "buffered" in member]


@pytest.mark.parametrize("member", MEMBERS)
def test_no_tuple_makes_no_page_and_one_tuple_one_page_of_its_partition_alone(member):
    for tuples in (0, 1):
        source = GeneratedInput(tuples, 16)
        finished = run(member, source, 4096, threads=3, page_bytes=5 << 20)
        assert finished.pages == finished.peak_pages == tuples
        assert by_partition(finished, 4096) == partitioned(source, 4096, "hash")


@pytest.mark.parametrize("member", ["on_demand/lock", "on_demand/lock_free", "hybrid", "ranges"])
@pytest.mark.parametrize("size,layout,stride", [(64, "dense", 64), (0, "slotted", 120)])
@pytest.mark.parametrize("tuples", [64, (16 << 20) // 128 - 64])
def test_a_page_that_is_exactly_full_is_handed_on_at_its_last_tuple(
    member, tuples, size, layout, stride
):
    """Rows of one size: 100 bytes of data, key, length and slot are 120."""
    page_bytes = 224 + tuples * stride
    for more in (0, 1):
        source = GeneratedInput(tuples + more, size, (100, 100), layout, fresh=False)
        finished = run(member, source, 1, page_bytes=page_bytes)
        assert [page.tuples for page in finished.handed()] == [tuples, 1][: 1 + more]
        full = next(finished.handed())
        assert full.raw.size == page_bytes
        assert verify(finished.sealed(full)).tuples == tuples


@pytest.mark.parametrize("member", MEMBERS)
def test_a_tuple_larger_than_a_page_gets_a_page_of_its_own_size(member):
    source = GeneratedInput(40, 0, (0, 9000), batch=8)
    finished = run(member, source, 3, threads=2, page_bytes=4096, yields=1)
    assert by_partition(finished, 3) == partitioned(source, 3, "hash")
    large = [page for page in finished.handed() if page.capacity > 4096]
    assert large and {page.tuples for page in large} == {1}


@pytest.mark.parametrize("member", MEMBERS)
def test_pages_are_used_again_in_a_pool_and_a_run_can_be_repeated(member):
    source = GeneratedInput(30_000, 20, batch=500, fresh=False)
    units = min(2, 1 + member.startswith("units"))
    plan = ShufflePlan(member, 5, 2, 4096, units=units, pool_bytes=1)
    shuffle = Shuffle(plan, source)
    for _ in range(2):
        finished = shuffle.run()
        assert finished.counters["inserted"] == 30_000
        assert finished.page_bytes_written == 30_000 * (12 + 24)
        assert finished.pages >= 30_000 * 36 // 4096
        assert finished.latency_ns(0.5) <= finished.latency_ns(0.99)
        assert member.startswith("radix") or finished.peak_pages < finished.pages / 2
        assert list(finished.handed()) == []


@pytest.mark.parametrize("member", ["ranges", "merge", "on_demand_buffered/lock_minimal"])
def test_partitions_of_four_pages_need_hardly_more_pages_than_the_least(member):
    source = GeneratedInput(8 * 4 * 130, 16, batch=64, fresh=False)
    finished = run(member, source, 8, threads=2, page_bytes=4096)
    assert finished.pages <= finished.pages_least + 8


ACCESSES = {
    "on_demand": 1, "on_demand_buffered": 2, "hybrid": 2, "hybrid_buffered": 3, "radix": 3,
    "radix_buffered": 4,
}  # fmt: skip


@pytest.mark.parametrize("member", MEMBERS)
def test_tuples_are_accessed_as_often_as_the_thesis_says(member):
    """3.8: once on demand, twice with buffers, once more for a histogram and for materialising;
    at most 2p times in p ranges, 2 pt in units of pt threads, and 3 times where pages are merged.
    """
    threads, tuples = 4, 20_000
    finished = run(member, GeneratedInput(tuples, 16, batch=500), 64, threads=threads, yields=50)
    accesses, counters = finished.accesses_per_tuple, finished.counters
    if member == "ranges":
        assert accesses == threads + 1 <= 2 * threads
    elif member.startswith("units"):
        assert accesses == threads / 2 + 1 <= 2 * threads / 2
    elif member == "merge":
        assert accesses == 2 + counters["moved"] / tuples <= 3
    else:
        assert accesses == ACCESSES[member.partition("/")[0]]


@pytest.mark.parametrize("member,share", [("ranges", 1 / 4), ("units/lock_free", 1 / 2)])
def test_a_tuple_lies_in_a_threads_range_with_the_probability_of_the_thesis(member, share):
    """3.6: 1/p with p ranges, 1/pt in units of pt threads."""
    finished = run(member, GeneratedInput(50_000, 4), 64, threads=4)
    counters = finished.counters
    assert counters["inserted"] / counters["scanned"] == pytest.approx(share)
    assert counters["inserted"] == 50_000


def test_merging_leaves_at_most_one_open_page_of_a_partition():
    """Repeated until several threads have had tuples, so that some were merged."""
    shuffle = Shuffle(ShufflePlan("merge", 6, 4, 4096, yields=1), GeneratedInput(5000, 0, (0, 60)))
    until = time.monotonic() + 120
    while True:
        finished = shuffle.run()
        sizes = [(page.partition, page.raw.size) for page in finished.handed()]
        light = Counter(partition for partition, size in sizes if size < 3800)
        assert len(sizes) == finished.pages and set(light.values()) <= {1}
        if finished.counters["moved"] > 0:
            break
        assert time.monotonic() < until


def test_skewed_keys_come_from_the_table():
    source = GeneratedInput(4000, 4, layout="dense", zipf=1.2)
    table = source.key_table()
    found = by_partition(run("ranges", source, 7), 7)
    assert found == partitioned(source, 7, "hash", table)
    keys = Counter(key_of(i, 1, table) for i in range(4000))
    assert keys.most_common(1)[0][1] > 400


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_rows_of_columns_become_the_pages_that_the_page_reader_reads(data):
    """Any schema, nulls and texts, rows by number."""
    schema = data.draw(shapes.schemas())
    rows = data.draw(shapes.rows(schema).filter(len))
    batch, partitions = shapes.batch_of(schema, rows), data.draw(st.sampled_from([1, 4, 9]))
    count = data.draw(st.integers(0, 300))
    numbers = np.random.default_rng(count).integers(0, len(rows), count)
    by = data.draw(st.sampled_from([("time",), schema.names]))
    member = data.draw(st.sampled_from(MEMBERS))
    source = ColumnInput(batch, numbers, by, batch=data.draw(st.sampled_from([3, 50, 400])))
    finished = run(member, source, partitions, threads=2, page_bytes=4096, yields=3)
    found, expected = Counter(), Counter()
    for page, _ in pages_of(finished):
        header, values, _, keys = naive_pages.read_page(finished.sealed(page), shapes.plain(schema))
        for row, key in zip(values, keys or [None] * len(values), strict=True):
            found[header["partition"], key, str(shapes.bits(row))] += 1
        assert read_page(finished.sealed(page), schema).num_rows == page.tuples
    for number in numbers:
        h = int(hash_columns(batch, by)[number])
        key = None if schema.fixed_width else h & 0xFFFFFFFF
        expected[(h >> 32) % partitions, key, str(shapes.bits(rows[number]))] += 1
    assert found == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"member": "on_demand/none"}, {"partitions": 0}, {"partitions": 4097}, {"threads": 0},
        {"page_bytes": 4095}, {"units": 2}, {"function": "range"},
    ],
)  # fmt: skip
def test_a_plan_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(ValueError):
        ShufflePlan(**{"member": "ranges", "partitions": 4} | wrong)


def test_inputs_and_pools_that_cannot_be_are_refused():
    with pytest.raises(ValueError):
        GeneratedInput(1, 0, layout="dense")
    with pytest.raises(ValueError):
        GeneratedInput(1, 3)
    with pytest.raises(ValueError):
        Shuffle(ShufflePlan("ranges", 1, page_bytes=4096, pool_bytes=1), GeneratedInput(9, 5000))


def test_the_limit_is_measured_with_both_kinds_of_copy():
    warm()
    assert min(copy_limit(1 << 22, 2, 4096, 1)) > 0
