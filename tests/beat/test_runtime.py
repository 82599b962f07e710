"""Event time of a job: idle and lagging producers, wrong clocks, the end of streams."""

from __future__ import annotations

import pytest

from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US
from tests.beat.support import SECOND, T0, Live, changed, copy_job, join_job

IDLE = 10 * SECOND
HOUR = 3600 * SECOND
YEAR_2106 = 4_291_747_200_000_000


def at(*seconds):
    return [(1, T0 + round(s * SECOND), i) for i, s in enumerate(seconds)]


def test_the_watermark_is_the_least_of_the_active_producers_latest_times_less_the_lateness():
    with Live(copy_job(lateness="2s")) as live:
        live.send("r", at(0, 30, 20), producer="a")
        live.send("r", at(0, 15), producer="b")
        live.send("r", at(0, 40), producer="c")
        live.beat()
        assert live.watermark("r") == T0 + 13 * SECOND


def test_a_silent_producer_stops_counting_after_idle_after():
    with Live(copy_job(idle_after="5s")) as live:
        live.send("r", at(0), producer="silent")
        live.send("r", at(60), producer="talks")
        live.beat()
        assert live.watermark("r") == T0
        live.clock.advance(5 * SECOND - 1)
        live.send("r", at(61), producer="talks")
        live.beat()
        assert live.watermark("r") == T0
        live.clock.advance(1)
        live.beat()
        assert live.watermark("r") == T0 + 61 * SECOND


def test_a_producer_that_comes_back_counts_again_and_holds_the_watermark_where_it_is():
    with Live(copy_job(idle_after="5s", late="process")) as live:
        live.send("r", at(0), producer="silent")
        live.send("r", at(60), producer="talks")
        live.clock.advance(5 * SECOND)
        live.send("r", at(61), producer="talks")
        live.beat()
        live.send("r", at(1), producer="silent")
        live.beat()
        live.send("r", at(99), producer="talks")
        live.beat()
        assert live.watermark("r") == T0 + 61 * SECOND
        assert live.late("r") == 1


def test_no_row_of_a_producer_that_lags_beside_a_fast_one_is_late():
    with Live(copy_job()) as live:
        live.connect("r", "slow")
        for i in range(50):
            live.clock.advance(SECOND)
            for j in range(20):
                live.send("r", [(2, T0 + (i * 20 + j) * SECOND, 0)], producer="fast")
            live.send("r", [(1, T0 + i * SECOND, 0)], producer="slow")
            live.beat()
        live.drain()
        assert live.late("r") == 0
        assert len(live.rows("rows")) == 50 * 21


def test_rows_of_a_lagging_producer_of_a_joined_stream_all_find_their_partners():
    document = changed(join_job(before=0, after=0), streams={})
    with Live(document) as live:
        live.connect("r", "slow")
        for i in range(40):
            live.clock.advance(SECOND)
            for j in range(10):
                n = i * 10 + j
                live.send("r", [(2, T0 + n, n)], producer="fast")
                live.send("s", [(1, T0 + n, n), (2, T0 + n, n)])
            live.send("r", [(1, T0 + i, i)], producer="slow")
            live.beat()
        live.drain()
        assert live.late("r") == live.late("s") == 0
        pairs = live.rows("pairs")
        assert sum(p[0] == 2 for p in pairs) == 400
        assert sum(p[0] == 1 for p in pairs) == 40


def test_one_timestamp_in_the_year_2106_is_refused_and_counted_and_makes_nothing_late():
    with Live(copy_job()) as live:
        live.send("r", [(1, T0, 0), (1, YEAR_2106, 1), (1, T0 + 5, 2)])
        live.beat()
        live.send("r", [(1, T0 + 8, 3), (1, T0 + 6, 4)], producer="other")
        live.beat()
        live.drain()
        assert live.job.streams["r"].staging.refused_ahead == 1
        assert live.late("r") == 0
        assert sorted(row[2] for row in live.rows("rows")) == [0, 2, 3, 4]


def test_a_time_up_to_max_ahead_is_taken_and_one_microsecond_more_is_not():
    with Live(copy_job(max_ahead="1h")) as live:
        assert live.send("r", [(1, live.clock.wall + HOUR, 0)]) == 1
        assert live.send("r", [(1, live.clock.wall + HOUR + 1, 0)]) == 0


@pytest.mark.parametrize("wall_us", [0, 1, 60 * SECOND, 500_000_000 * SECOND])
def test_on_a_board_that_booted_in_1970_the_rows_themselves_say_what_is_ahead(wall_us):
    with Live(copy_job()) as live:
        live.clock.wall = wall_us
        assert live.send("r", at(0)) == 1, "the first row is believed"
        assert live.send("r", [(1, T0 + HOUR, 1), (1, YEAR_2106, 2)]) == 1
        assert live.send("r", [(1, T0 + 2 * HOUR, 3)]) == 1, "counted from the latest accepted"
        live.drain()
        assert live.job.streams["r"].staging.refused_ahead == 1
        assert [row[2] for row in live.rows("rows")] == [0, 1, 3]


def test_a_wall_clock_that_jumps_when_the_network_sets_it_loses_and_repeats_nothing():
    with Live(copy_job()) as live:
        live.clock.wall = 0
        for i in range(10):
            if i == 5:
                live.clock.wall = T0 + 5 * SECOND
            live.send("r", [(1, T0 + i * SECOND, i)])
            live.beat()
        live.drain()
        assert [row[2] for row in live.rows("rows")] == list(range(10))
        assert live.late("r") == live.job.streams["r"].staging.refused_ahead == 0


def test_a_stream_is_over_when_all_its_producers_have_said_so_and_all_is_taken():
    with Live(copy_job()) as live:
        live.send("r", at(1), producer="a")
        live.send("r", at(2), producer="b")
        live.end("r", "a")
        live.beat()
        assert live.watermark("r") == T0 + 2 * SECOND
        assert not live.job.ended()
        live.end("r", "b")
        live.beat()
        assert live.watermark("r") == WATERMARK_MAX_US
        assert live.job.ended()


def test_a_producer_that_is_only_connected_holds_the_watermark_back():
    with Live(copy_job()) as live:
        live.connect("r", "new")
        live.send("r", at(50), producer="old")
        live.beat()
        assert live.watermark("r") == WATERMARK_MIN_US
        live.send("r", at(40), producer="new")
        live.beat()
        assert live.watermark("r") == T0 + 40 * SECOND
        assert live.late("r") == 0


def test_a_beat_that_only_commits_takes_nothing_and_moves_no_watermark():
    with Live(copy_job()) as live:
        live.send("r", at(1, 2, 3))
        facts = live.beat(race=False)
        assert facts.streams["r"].logged_rows == 3
        assert facts.streams["r"].take_rows == 0
        assert live.watermark("r") == WATERMARK_MIN_US
        facts = live.beat()
        assert facts.streams["r"].logged_rows == 0
        assert facts.streams["r"].take_rows == 3


def test_a_state_saved_into_reused_memory_is_the_same_also_where_it_has_shrunk():
    with Live(join_job()) as live:
        for n, rows in enumerate((90, 3, 40)):
            for name in "rs":
                live.send(name, [(i % 7, T0 + 10_000 * n + i, i) for i in range(rows)])
            live.beat()
            reused = {k: v.tobytes() for k, v in live.job.save(reuse=True).items()}
            assert reused == {k: v.tobytes() for k, v in live.job.save().items()}
            assert len(reused["operators/joined/left.hash"]) == 8 * rows


def test_a_beat_of_nothing_changes_nothing():
    with Live(join_job()) as live:
        live.send("r", at(1))
        live.send("s", at(1))
        live.beat()
        before = live.save()[1]
        live.beat()
        after = live.save()[1]
        assert {k: v.tobytes() for k, v in before.items()} == {
            k: v.tobytes() for k, v in after.items()
        }
