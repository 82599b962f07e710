"""Watermarks: minimum over the active producers, never falling; idle, ended and new ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.beat.watermarks import WatermarkTracker, behind
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US
from edged.data.staging import Chunks, Producers

IDLE = 10_000_000
LATENESS = 100


def chunk(producer: int, low: int, high: int) -> Chunks:
    return Chunks(
        np.array([producer], np.int32),
        np.array([1], np.int64),
        np.array([low], np.int64),
        np.array([high], np.int64),
    )


class Stream:
    """Producers and a WatermarkTracker, fed by hand."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.time = WatermarkTracker(LATENESS, IDLE)
        self.now = 1

    def connect(self, id: str) -> int:
        n = self.producers.number(id)
        self.producers.seen_us[n] = self.now
        return n

    def send(self, id: str, time: int) -> None:
        n = self.connect(id)
        self.producers.latest_us[n] = max(self.producers.latest_us[n], time)
        self.time.take(chunk(n, time, time), 1)

    def watermark(self, *left: int) -> int:
        numbers, times = np.array(left, np.int32), np.zeros(len(left), np.int64)
        chunks = Chunks(numbers, times, times, times)
        self.time.watermark_us = self.time.propose(self.producers, chunks, self.now)
        return self.time.watermark_us


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_a_lagging_producer_holds_the_watermark_of_a_fast_one(stream):
    stream.send("fast", 9_000)
    stream.send("slow", 2_000)
    assert stream.watermark() == 2_000 - LATENESS


def test_a_connected_producer_counts_before_it_has_sent(stream):
    stream.connect("slow")
    stream.send("fast", 9_000)
    assert stream.watermark() == WATERMARK_MIN_US


def test_a_silent_producer_stops_counting_after_idle_after(stream):
    stream.send("silent", 2_000)
    stream.now += IDLE - 1
    stream.send("live", 9_000)
    assert stream.watermark() == 2_000 - LATENESS
    stream.now += 1
    assert stream.watermark() == 9_000 - LATENESS


def test_a_producer_that_ended_no_longer_counts(stream):
    stream.send("a", 2_000)
    stream.send("b", 9_000)
    stream.producers.ended[1] = 1
    assert stream.watermark() == 9_000 - LATENESS


def test_a_producer_that_ended_counts_while_rows_of_it_wait_in_staging(stream):
    stream.send("a", 2_000)
    stream.send("b", 9_000)
    stream.producers.ended[1] = 1
    assert stream.watermark(1, 2) == 2_000 - LATENESS
    stream.send("a", 5_000)
    assert stream.watermark(2) == 9_000 - LATENESS


def test_when_all_have_ended_and_nothing_is_staged_the_stream_is_over(stream):
    stream.send("a", 2_000)
    stream.producers.ended[1] = 1
    assert stream.watermark(1) == 2_000 - LATENESS
    assert stream.watermark() == WATERMARK_MAX_US


def test_one_that_connected_and_never_sent_keeps_a_stream_open_for_idle_after_only(stream):
    stream.send("a", 2_000)
    stream.connect("vandal")
    stream.producers.ended[1] = 1
    assert stream.watermark() < WATERMARK_MAX_US
    stream.now += IDLE
    assert stream.watermark() == WATERMARK_MAX_US


def test_one_that_sent_and_fell_silent_keeps_a_stream_open(stream):
    stream.send("a", 2_000)
    stream.send("silent", 3_000)
    stream.producers.ended[1] = 1
    stream.now += IDLE
    assert stream.watermark() == 3_000 - LATENESS


def test_a_watermark_never_passes_rows_that_still_wait(stream):
    stream.send("a", 2_000)
    stream.producers.latest_us[1] = 8_000
    assert stream.watermark(1) == 2_000 - LATENESS


def test_without_any_row_the_watermark_is_unknown(stream):
    assert stream.watermark() == WATERMARK_MIN_US


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-(10**6), 10**6), st.integers(0, IDLE)),
        max_size=40,
    )
)
def test_a_watermark_never_falls(sends):
    stream = Stream()
    last = WATERMARK_MIN_US
    for id, time, passed in sends:
        stream.now += passed
        stream.send(id, time)
        assert stream.watermark() >= last
        last = stream.time.watermark_us


def test_state_survives_save_and_load(stream):
    stream.send("a", 5_000)
    stream.watermark()
    other = WatermarkTracker(LATENESS, IDLE)
    other.load(stream.time.save())
    assert other.watermark_us == 5_000 - LATENESS
    none = Chunks.of(0, 0, np.empty(0, np.int64))
    assert other.propose(stream.producers, none, stream.now) == 5_000 - LATENESS


@pytest.mark.parametrize("end", [WATERMARK_MIN_US, WATERMARK_MAX_US])
def test_the_ends_of_time_stay_where_they_are(end):
    assert behind(end, 10) == end
    assert behind(WATERMARK_MIN_US + 5, 10) == WATERMARK_MIN_US
