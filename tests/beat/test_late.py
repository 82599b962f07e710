"""Late rows are counted exactly, and dropped, processed or dead-lettered as the job sets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.beat.support import SECOND, T0, Live, copy_job, join_job
from tests.whole import examples


def naive(beats, lateness):
    """Which rows are on time and which late, beat by beat, and the watermark after each.

    `beats` are lists of messages (producer, times); every producer is active throughout.
    """
    latest, watermark, on_time, late, n = {}, None, [], [], 0
    for messages in beats:
        for producer, times in messages:
            for t in times:
                (late if watermark is not None and t < watermark else on_time).append((n, t))
                n += 1
            if times:
                latest[producer] = max([latest.get(producer, times[0]), *times])
        if len(latest) == 3:
            watermark = max(watermark or 0, min(latest.values()) - lateness)
    return on_time, late


beats_strategy = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.lists(st.integers(T0, T0 + 1000), min_size=1, max_size=4),
        ),
        max_size=4,
    ),
    max_size=8,
)


@pytest.mark.parametrize("choice", ["drop", "process", "dead_letter"])
@settings(max_examples=examples(40), deadline=None)
@given(beats=beats_strategy, lateness=st.sampled_from([0, 1, 100, 2000]))
def test_late_rows_are_counted_exactly_and_go_where_the_job_says(choice, beats, lateness):
    on_time, late = naive(beats, lateness)
    with Live(copy_job(late=choice, lateness=lateness, idle_after="1h")) as live:
        for producer in "abc":
            live.connect("r", producer)
        n = 0
        for messages in beats:
            for producer, times in messages:
                live.send("r", [(1, t, n + i) for i, t in enumerate(times)], producer)
                n += len(times)
            live.beat()
        live.drain()
        assert live.late("r") == len(late)
        got = sorted((row[2], row[1]) for row in live.rows("rows"))
        assert got == sorted(on_time + late if choice == "process" else on_time)
        if choice == "dead_letter":
            assert sorted((row[2], row[1]) for row in live.rows("dead")) == sorted(late)


def test_a_row_exactly_at_the_watermark_is_on_time_and_one_below_it_is_late():
    with Live(copy_job(lateness="1s")) as live:
        live.send("r", [(1, T0 + SECOND, 0)])
        live.beat()
        live.send("r", [(1, T0, 1), (1, T0 - 1, 2)])
        live.drain()
        assert live.late("r") == 1
        assert [row[2] for row in live.rows("rows")] == [0, 1]


def test_rows_of_one_beat_do_not_make_each_other_late():
    with Live(copy_job()) as live:
        live.send("r", [(1, T0 + 100, 0), (1, T0, 1)])
        live.send("r", [(1, T0 + 50, 2)])
        live.drain()
        assert live.late("r") == 0


def test_a_late_row_that_is_processed_meets_the_partners_that_are_still_held():
    with Live(join_job(before=1000, after=1000, late="process")) as live:
        for t in (0, 500, 900):
            live.send("r", [(1, T0 + t, t)])
            live.send("s", [(1, T0 + t, t)])
            live.beat()
        live.send("s", [(1, T0 + 100, 7)])
        live.drain()
        assert live.late("s") == 1
        assert sum(pair[-1] == 7 for pair in live.rows("pairs")) == 3


def test_a_late_row_that_is_dropped_matches_no_row():
    with Live(join_job(before=1000, after=1000, late="drop")) as live:
        live.send("r", [(1, T0 + 500, 0)])
        live.send("s", [(1, T0 + 500, 0)])
        live.beat()
        live.send("s", [(1, T0 + 100, 7)])
        live.drain()
        assert live.late("s") == 1
        assert len(live.rows("pairs")) == 1


def test_dead_letters_keep_all_columns_nulls_and_strings_included():
    columns = {"name": "string?", "time": "timestamp", "value": "float64?"}
    document = copy_job(late="dead_letter", columns=columns)
    rows = [("ä", T0 - 3, None), (None, T0 - 2, 1.5), ("", T0 - 1, None)]
    with Live(document) as live:
        live.send("r", [("now", T0, 0.0)])
        live.beat()
        live.send("r", [*rows[:2], ("on time", T0 + 1, 2.5), *rows[2:]])
        live.drain()
        assert live.rows("dead") == rows
        assert live.rows("rows") == [("now", T0, 0.0), ("on time", T0 + 1, 2.5)]
