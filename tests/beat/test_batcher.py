"""The batcher: waits as long as the promises allow, and not longer."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.beat.batcher import RACE_US_MAX, ROWS_MIN, Batcher, BeatCosts

SECOND = 1_000_000


def test_an_idle_stream_is_batched_for_nearly_the_whole_tolerance():
    b = Batcher(SECOND, SECOND)
    for _ in range(20):
        b.learn(BeatCosts(rows=1000, ingest_us=0, race_us=2_000, fill=0.01))
        b.committed(1_000)
    wake = b.wake(oldest_us=0, first_us=0)
    assert wake.race
    assert 0.9 * SECOND < wake.at_us < SECOND - 3_000


@given(
    latency=st.integers(20_000, 60 * SECOND),
    ack=st.integers(5_000, 60 * SECOND),
    races=st.lists(st.integers(10, 400_000), max_size=20),
    oldest=st.integers(0, 10**12),
)
def test_a_wake_leaves_time_for_the_expected_race_and_commit(latency, ack, races, oldest):
    b = Batcher(latency, ack)
    for race in races:
        b.learn(BeatCosts(rows=race * 10, ingest_us=0, race_us=race, fill=0.0))
        b.committed(race // 2)
    wake = b.wake(oldest, oldest)
    assert wake.at_us >= oldest
    spent = max(races, default=0) + max(races, default=0) // 2 if races else 0
    last = races[-1] + races[-1] // 2 if races else 0
    if wake.race and wake.at_us > oldest:
        assert wake.at_us + last <= oldest + latency
    assert wake.at_us + min(last, spent) <= oldest + latency or wake.at_us == oldest


def test_a_short_ack_promise_commits_without_racing():
    b = Batcher(10 * SECOND, SECOND // 2)
    wake = b.wake(0, 0)
    assert not wake.race
    assert wake.at_us <= SECOND // 2


def test_rows_that_were_only_committed_are_raced_within_their_latency():
    b = Batcher(10 * SECOND, SECOND // 2)
    wake = b.wake(9_600_000, 9_600_000, unraced_us=0)
    assert wake.race
    assert wake.at_us <= 10 * SECOND


def test_full_buffers_shorten_the_wait_to_nothing_and_it_grows_back():
    b = Batcher(SECOND, SECOND)
    for _ in range(40):
        b.learn(BeatCosts(rows=10**6, ingest_us=0, race_us=20_000, fill=0.9))
    assert b.wake(0, 0).at_us == 0
    for _ in range(40):
        b.learn(BeatCosts(rows=10**4, ingest_us=0, race_us=1_000, fill=0.1))
    assert b.wake(0, 0).at_us > SECOND // 2


def test_a_race_is_kept_under_half_the_tolerance():
    b = Batcher(SECOND, SECOND)
    for _ in range(50):
        b.learn(BeatCosts(rows=100_000, ingest_us=0, race_us=200_000, fill=0.0))
    assert abs(b.rows_max() - 250_000) < 1_000
    for _ in range(50):
        b.learn(BeatCosts(rows=50_000, ingest_us=0, race_us=500_000, fill=0.0))
    assert b.rows_max() == ROWS_MIN, "so many in any case, though they take a little longer"
    for _ in range(50):
        b.learn(BeatCosts(rows=2_000, ingest_us=0, race_us=900_000, fill=0.0))
    assert b.rows_max() == RACE_US_MAX // 450, "but no race is to last longer than a second"


def test_the_row_limit_recovers_when_rows_become_cheap_again():
    b = Batcher(SECOND, SECOND)
    for _ in range(10):
        b.learn(BeatCosts(rows=100, ingest_us=0, race_us=2_000_000, fill=0.9))
    assert b.rows_max() <= 50
    for _ in range(100):
        rows = b.rows_max()
        b.learn(BeatCosts(rows, ingest_us=0, race_us=100 + rows // 10, fill=0.9))
    assert b.rows_max() >= 1_000_000


def test_beats_that_are_held_up_by_the_beat_are_not_cut_up():
    """Regression: beside busy loops each race waited some 15 ms for a core.  Counted by the row,
    that cut a backlog into beats of 65 536 rows, which took longer than the rows needed to come:
    the daemon stayed seconds behind a load that it had carried."""
    r, b = random.Random(3), Batcher(50_000, 50_000)
    for _ in range(100):
        rows = min(10**6, b.rows_max())
        held_up_us = r.choice([0, 10_000, 15_000, 20_000])
        b.learn(BeatCosts(rows, 0, int(2_000 + 0.03 * rows) + held_up_us, 0.9))
    assert b.rows_max() > 400_000


def test_one_beat_of_cheap_rows_does_not_lift_the_limit_far():
    b = Batcher(SECOND, SECOND)
    for race_us in [200_000] * 50 + [10]:
        b.learn(BeatCosts(100_000, 0, race_us, 0.0))
    assert b.rows_max() < 1_300_000


def test_pages_are_flushed_when_the_next_beat_would_be_too_late_and_not_before():
    b = Batcher(SECOND, SECOND)
    for _ in range(60):
        b.learn(BeatCosts(rows=10**5, ingest_us=0, race_us=5_000, fill=0.9))
    assert not b.must_flush(oldest_open_us=0, now_us=100_000)
    assert b.must_flush(oldest_open_us=0, now_us=970_000)


@given(
    race_us=st.integers(0, 400_000), commit_us=st.integers(0, 400_000),
    fill_us=st.integers(0, SECOND), share=st.floats(0, 1), planned_us=st.floats(0, 1e6),
)  # fmt: skip
def test_the_beat_that_open_pages_are_due_for_seals_them_in_time(
    race_us, commit_us, fill_us, share, planned_us
):
    b = Batcher(SECOND, SECOND)
    b.race_us, b.commit_us, b.fill_us = float(race_us), float(commit_us), float(fill_us)
    b.steer(share, planned_us, 0)
    due_us = max(b.race_by(0), b.flush_from(0))
    assert b.must_flush(0, due_us)
    assert due_us <= max(0, SECOND - max(race_us, planned_us) - commit_us - b.margin_us + 1)


def steered(**changes):
    b = Batcher(SECOND, SECOND)
    for _ in range(20):
        b.learn(BeatCosts(rows=1000, ingest_us=0, race_us=2_000, fill=0.01))
        b.committed(1_000)
    b.steer(**{"wait_share": 1.0, "race_us": 0.0, "not_before_us": 0, **changes})
    return b


def test_a_share_of_the_wait_shortens_it_by_what_is_left_unspent():
    full, half = steered().wake(0, 0), steered(wait_share=0.5).wake(0, 0)
    assert full.at_us - half.at_us == SECOND // 2
    assert half.race


def test_a_race_that_is_planned_slower_than_the_last_ones_begins_earlier():
    full, slow = steered().wake(0, 0), steered(race_us=102_000.0).wake(0, 0)
    assert full.at_us - slow.at_us == 100_000
    assert steered(race_us=500.0).wake(0, 0) == full, "not later than the last ones tell"


def test_nothing_is_raced_before_the_time_that_the_governor_says():
    b = steered(not_before_us=5 * SECOND)
    wake = b.wake(0, 0)
    assert (wake.at_us, wake.race) == (5 * SECOND, True)
    assert b.race_by(0) == 5 * SECOND
    assert b.wake(6 * SECOND, 6 * SECOND).at_us > 6 * SECOND, "after it all is as before"


def test_the_governors_delay_precedes_the_ack_promise_too():
    b = Batcher(10 * SECOND, SECOND // 2)
    b.steer(1.0, 0.0, 3 * SECOND)
    assert b.wake(0, 0).at_us == 3 * SECOND and b.wake(0, 0).race


class Twin:
    """The waits of the batcher by their definition: it keeps all that it has seen."""

    def __init__(self, latency_us):
        self.latency_us, self.late, self.legs = latency_us, [], []
        self.race_us = self.leg_us = 0.0

    def wake_at(self, oldest_us):
        least = max(2_000, self.latency_us // 50)
        margin = max(least, self.covered(self.late) + least // 2)
        leg_us = max(self.leg_us, self.covered(self.legs))
        return oldest_us + self.latency_us - int(self.race_us + leg_us) - margin

    def covered(self, seen):
        last = sorted(seen[-1000:])
        return min(last[-2] if len(last) > 1 else 0, self.latency_us // 4)

    def observe(self, late_us, race_us, leg_us):
        self.late.append(max(0, late_us))
        self.legs.append(leg_us)
        self.race_us = max(race_us, 0.9 * self.race_us + 0.1 * race_us)
        self.leg_us = max(leg_us, 0.9 * self.leg_us + 0.1 * leg_us)


def beats(batcher, drawn, twin=None):
    """Simulate beats on a stream without a pause; yields the time from arrival to durable of each.
    `drawn` are the lateness of its wake, the time of its race, and that from there to durable."""
    for late_us, race_us, leg_us in drawn:
        wake = batcher.wake(0, 0)
        if twin is not None:
            assert wake.at_us == max(0, twin.wake_at(0))
            twin.observe(late_us, race_us, leg_us)
        yield max(0, wake.at_us + late_us) + race_us + leg_us
        batcher.woke(late_us)
        batcher.learn(BeatCosts(1000, 0, race_us, 0.0))
        batcher.committed(leg_us)


@given(
    st.sampled_from([50_000, 250_000, SECOND]),
    st.lists(
        st.tuples(st.integers(-1_000, 40_000), st.integers(10, 9_000), st.integers(10, 90_000)),
        max_size=450,
    ),
)
def test_waits_are_those_of_a_twin_that_keeps_all_it_has_seen(latency_us, drawn):
    took = list(beats(Batcher(latency_us, latency_us), drawn, Twin(latency_us)))
    assert len(took) == len(drawn)


def draws(count, late_us, leg_us, seed=1):
    """Beats with exponential lateness and legs, of these means, and a race of about 1 ms."""
    r = random.Random(seed)
    return [
        (int(r.expovariate(1 / late_us)), int(r.gauss(1_000, 50)), int(r.expovariate(1 / leg_us)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("latency_us", [50_000, 250_000, SECOND])
def test_late_wakes_and_slow_commits_that_recur_leave_few_beats_late(latency_us):
    batcher = Batcher(latency_us, latency_us)
    took = list(beats(batcher, draws(4_000, 1_500, 1_500)))[400:]
    late = sum(us > latency_us for us in took)
    assert late <= len(took) // 1000
    least = 0.65 if latency_us == 50_000 else 0.9
    assert sum(took) / len(took) > least * latency_us, "the waits stay long"


def test_on_a_quiet_machine_the_margin_is_the_least_one():
    batcher = Batcher(SECOND, SECOND)
    list(beats(batcher, draws(1_000, 500, 500)))
    assert batcher.margin_us == SECOND // 50


def test_one_hiccup_leaves_the_margin_and_holds_the_waits_up_for_a_few_beats_only():
    batcher = Batcher(SECOND, SECOND)
    list(beats(batcher, draws(50, 500, 500)))
    margin_us, wake_us = batcher.margin_us, batcher.wake(0, 0).at_us
    list(beats(batcher, [(500_000, 1_000, 500_000)]))
    assert batcher.margin_us == margin_us
    assert all(us <= SECOND for us in beats(batcher, draws(45, 500, 500, seed=2)))
    assert batcher.wake(0, 0).at_us > 0.98 * wake_us


def test_the_margin_never_exceeds_a_share_of_the_latency():
    batcher = Batcher(SECOND, SECOND)
    for _ in range(300):
        batcher.woke(5 * SECOND)
    assert batcher.margin_us == SECOND // 4 + SECOND // 100
    batcher.promise(50_000, 50_000)
    assert batcher.margin_us == 50_000 // 4 + 1_000
