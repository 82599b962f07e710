"""What the heart counts."""

from hypothesis import given
from hypothesis import strategies as st

from edged.beat.committer import Committed
from edged.beat.stats import ENDED_JOBS_MAX, WAIT_US, BeatTimes, BucketCounts, Stats
from tests.beat.support import HandClock, publisher


def committed(durable_us):
    return Committed(1, 0, durable_us, durable_us, durable_us)


def durable(stats, latency_us, promise_us):
    times = BeatTimes(1, 0, 0, 0, 0, 0, 10, 10, {"a": promise_us})
    stats.durable(times, committed(latency_us))


@given(st.integers(1, 100_000_000), st.lists(st.integers(0, 200_000_000), min_size=1))
def test_how_many_beats_broke_a_job_s_promise_is_counted_exactly(promise_us, latencies_us):
    stats = Stats(HandClock(), None, publisher())
    for latency_us in latencies_us:
        durable(stats, latency_us, promise_us)
    histogram = stats.latency("a")
    kept = sum(histogram["counts"][: histogram["bounds_us"].index(promise_us) + 1])
    assert kept == sum(latency_us <= promise_us for latency_us in latencies_us)
    assert histogram["count"] == len(latencies_us) and histogram["sum_us"] == sum(latencies_us)


def test_with_another_promise_its_bound_replaces_the_old_one_and_all_observations_stay():
    stats = Stats(HandClock(), None, publisher())
    durable(stats, 7_000, 30_000)
    durable(stats, 8_000, 40_000)
    histogram = stats.latency("a")
    assert 40_000 in histogram["bounds_us"] and 30_000 not in histogram["bounds_us"]
    assert histogram["count"] == 2 and histogram["sum_us"] == 15_000


def test_percentiles_are_of_the_last_minute_or_of_twice_a_longer_promise():
    clock = HandClock()
    stats = Stats(clock, None, publisher())

    def percentiles():
        found = stats.snapshot()
        return found["latency_ms_p50"], found["latency_ms_p99"]

    durable(stats, 7_000, 30_000)
    assert percentiles() == (7.0, 7.0)
    clock.now = 60_007_000
    assert percentiles() == (None, None)
    times = BeatTimes(1, 60_000_000, 0, 0, 0, 0, 10, 10, {"a": 100_000_000, "b": 30_000})
    stats.durable(times, committed(60_009_000))
    clock.now = 260_008_999
    assert percentiles() == (9.0, 9.0)
    clock.now += 1
    assert percentiles() == (None, None)


def test_the_histogram_tells_how_nearly_a_promise_is_kept_or_missed():
    stats = Stats(HandClock(), None, publisher())
    for latency_us in (44_000, 47_000, 49_000, 50_500, 52_000, 54_000, 60_000):
        durable(stats, latency_us, 50_000)
    histogram = stats.latency("a")
    around = dict(zip(histogram["bounds_us"], histogram["counts"], strict=False))
    bounds = (45_000, 47_500, 50_000, 51_000, 52_500, 55_000, 62_500)
    assert [around[bound] for bound in bounds] == [1] * 7


def test_a_job_that_is_put_again_goes_on_from_its_latencies_and_few_ended_ones_are_kept():
    stats = Stats(HandClock(), None, publisher())
    durable(stats, 7_000, 30_000)
    for other in range(ENDED_JOBS_MAX):
        stats.jobs[f"other-{other}"] = BucketCounts(WAIT_US)
        stats.keep([])
    assert len(stats.jobs) == ENDED_JOBS_MAX and stats.latency("a")["count"] == 0
    durable(stats, 7_000, 30_000)
    stats.keep([])
    durable(stats, 8_000, 30_000)
    assert stats.latency("a")["count"] == 2
