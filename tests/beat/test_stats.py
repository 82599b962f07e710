"""What the heart counts."""

from hypothesis import given
from hypothesis import strategies as st

from edged.beat.committer import Committed
from edged.beat.stats import BeatTimes, Stats
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


def test_another_promise_is_counted_anew():
    stats = Stats(HandClock(), None, publisher())
    durable(stats, 7_000, 30_000)
    durable(stats, 8_000, 40_000)
    histogram = stats.latency("a")
    assert 40_000 in histogram["bounds_us"] and 30_000 not in histogram["bounds_us"]
    assert histogram["count"] == 1
