"""Every member of the shuffle family loses, repeats and tears no tuple."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.pages.shuffle import MEMBERS, GeneratedInput, ShufflePlan
from edged.pages.shuffle_plan import sizes_of
from tests.naive.shuffle import partitioned
from tests.shuffle.support import (
    ORDERED,
    by_partition,
    number_of,
    pages_of,
    run,
    settings_of_plans,
    sources,
)  # fmt: skip
from tests.whole import examples


@pytest.mark.parametrize("member", MEMBERS)
@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_member_gives_the_tuples_of_a_naive_partitioner(member, data):
    """With more threads than cores, which yield between reserve, write and hand-over, while pages
    are flushed."""
    source, plan = data.draw(sources()), data.draw(settings_of_plans())
    partitions, function = plan.pop("partitions"), plan["function"]
    finished = run(member, source, partitions, **plan)
    assert by_partition(finished, partitions) == partitioned(source, partitions, function)
    assert finished.counters["inserted"] == source.tuples


@st.composite
def wide_sources(draw):
    size, layout = draw(
        st.sampled_from(
            [(64, "dense"), (67, "dense"), (257, "dense"), (60, "slotted"), (121, "slotted")]
            + [(0, "slotted")] * 3
        )
    )
    low = draw(st.integers(0, 60))
    high = draw(st.sampled_from([max(low, 60), 130, 300, 6000]))
    return GeneratedInput(
        draw(st.integers(0, 60 if high == 6000 else 1500)), size, (low, high), layout,
        batch=draw(st.sampled_from([1, 7, 64, 300])),
    )  # fmt: skip


@pytest.mark.parametrize("member", ["merge", "ranges"])
@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_rows_that_go_straight_to_pages_are_those_of_a_naive_partitioner(member, data):
    """Also where a page is closed by a flush in the middle of a cache line, and opened again."""
    source, plan = data.draw(wide_sources()), data.draw(settings_of_plans())
    partitions, function = plan.pop("partitions"), plan["function"]
    plan |= {"buffer_bytes": 0, "nontemporal": True, "two_step": True, "batch_insert": True}
    sizes = sizes_of(ShufflePlan(member, partitions, **plan), source.shape, source.batch, 0)
    assert sizes.lines
    finished = run(member, source, partitions, **plan)
    assert by_partition(finished, partitions) == partitioned(source, partitions, function)
    assert finished.counters["inserted"] == source.tuples


@pytest.mark.parametrize("member", ORDERED)
@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_a_batch_keeps_its_order_within_a_partition(member, data):
    plan = data.draw(settings_of_plans())
    size, layout = data.draw(st.sampled_from([(16, "dense"), (20, "slotted"), (0, "slotted")]))
    source = GeneratedInput(1000, size, (8, 200), layout, batch=50)
    last = defaultdict(lambda: -1)
    for page, tuples in pages_of(run(member, source, **plan)):
        for _, row in tuples:
            number = number_of(row, layout == "slotted")
            assert number > last[page.partition, number // 50]
            last[page.partition, number // 50] = number


@pytest.mark.parametrize("size,layout", [(24, "dense"), (24, "slotted"), (0, "slotted")])
def test_the_pages_of_ranges_are_the_same_bytes_for_any_number_of_threads(size, layout):
    source = GeneratedInput(5000, size, layout=layout, batch=100)
    of_threads = []
    for threads in (1, 2, 5):
        finished = run("ranges", source, 12, threads=threads, page_bytes=4096, yields=3)
        of_threads.append([finished.sealed(page) for page in finished.handed()])
    assert of_threads[0] == of_threads[1] == of_threads[2]
