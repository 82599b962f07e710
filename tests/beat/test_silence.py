"""How long a stream has been silent, and how long is too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edged.beat.silence import LEARN, LEAST_US, Silence
from tests.beat.loop import Loop, batch
from tests.beat.support import SECOND, copy_job

MINUTE = 60 * SECOND


@given(st.lists(st.integers(1, 40 * MINUTE), min_size=1, max_size=50))
def test_a_stream_that_goes_on_as_before_is_never_silent_for_too_long(pauses):
    silence, now = Silence(0), 0
    silence.arrived(now)
    for pause in pauses:
        limit = silence.limit_us()
        now += pause
        assert silence.silent_us(now) == pause
        silence.arrived(now)
        known = now >= LEAST_US
        assert (silence.limit_us() is not None) == known
        assert limit is None or limit >= LEAST_US
    if silence.limit_us() is not None:
        assert silence.limit_us() == max(LEAST_US, LEARN * max(pauses))


def test_a_stream_without_a_row_and_one_delivery_have_no_limit():
    silence = Silence(0)
    assert silence.silent_us(MINUTE) is None and silence.limit_us() is None
    for second in range(60):
        silence.arrived(second * SECOND)
    assert silence.silent_us(24 * 60 * MINUTE) and silence.limit_us() is None


def test_the_setting_counts_from_the_first_row_and_time_before_a_resumption_does_not():
    silence = Silence(5 * MINUTE)
    silence.arrived(0)
    assert silence.limit_us() == 5 * MINUTE
    silence.resumed(60 * MINUTE)
    assert silence.silent_us(61 * MINUTE) == MINUTE
    learned = Silence(0)
    learned.arrived(0)
    learned.resumed(60 * MINUTE)
    learned.arrived(61 * MINUTE)
    assert learned.limit_us() == LEAST_US, "a pause of the job is no pause of its senders"


def test_a_paused_job_s_stream_is_not_silent_and_begins_anew_when_it_goes_on(tmp_path):
    with Loop(copy_job(silent_after="1min"), tmp_path) as loop:
        (stream,) = loop.job.streams.values()
        assert stream.silence.silent_us(loop.heart.looked_us) is None
        with loop.producer() as producer:
            producer.send(batch([1]))
            producer.flush()
            loop.leap(90 * SECOND)
            loop.until(lambda: stream.silence.silent_us(loop.heart.looked_us) >= 90 * SECOND)
            assert stream.silence.limit_us() == MINUTE
            loop.change("state", "copying", state="paused")
            loop.leap(90 * SECOND)
            loop.change("state", "copying", state="running")
            assert stream.silence.silent_us(loop.heart.looked_us) < 90 * SECOND
