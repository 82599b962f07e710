"""What comes a second, against plain differences of the counters of two states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.rates import OLD_S, SPAN_S, SPAN_S_MIN, Rates

STEPS = st.lists(
    st.tuples(
        st.floats(0.01, 2 * OLD_S).map(lambda s: round(s, 3)), st.integers(0, 10_000_000),
        st.integers(0, 20).map(lambda n: n == 0),
    ),
    min_size=1, max_size=60,
)  # fmt: skip


def state(session, uptime_s, rows, created_us=1):
    streams = {"power": {"rows": rows}}
    return {
        "session": session, "uptime_s": uptime_s,
        "jobs": {"a": {"created_us": created_us, "streams": streams}},
        "sources": [{"name": "tcp:1", "rows": rows, "bytes": 10 * rows}],
    }  # fmt: skip


@given(STEPS)
def test_a_rate_is_that_of_two_states_of_one_session_neither_too_near_nor_too_far(steps):
    """Every state is asked about; gaps of any length between them, and restarts."""
    rates, session, uptime_s, rows, all_of = Rates(), 1, 0.0, 0, []
    for gap_s, more, restarts in steps:
        if restarts:
            session, uptime_s, rows, all_of = session + 1, 0.0, 0, []
        uptime_s, rows = uptime_s + gap_s, rows + more
        all_of.append((uptime_s, rows))
        rates.take(state(session, uptime_s, rows))
        told = rates.per_s("stream", "a", "1", "power")
        heard = rates.per_s("source", "tcp:1", "bytes")
        assert heard == (None if told is None else pytest.approx(10 * told))
        possible = {
            (rows - r) / (uptime_s - at)
            for at, r in all_of[:-1]
            if SPAN_S_MIN <= uptime_s - at <= OLD_S
        }
        assert (told is not None) == rates.known()
        if told is None:
            assert all(uptime_s - at < SPAN_S_MIN or uptime_s - at > OLD_S for at, _ in all_of)
        else:
            assert any(abs(told - one) <= 1e-9 * max(1.0, one) for one in possible)


def test_states_that_come_often_give_the_rate_of_the_last_seconds():
    rates = Rates()
    for tick in range(400):  # 100 rows a second for a minute, then none
        rates.take(state(1, tick * 0.25, 25 * min(tick, 240)))
    assert rates.per_s("stream", "a", "1", "power") == 0.0
    assert len(rates._past) <= SPAN_S / SPAN_S_MIN + 3  # however often it is looked


def test_a_job_that_was_made_anew_has_no_rate_and_a_state_that_was_overtaken_counts_not():
    rates = Rates()
    for at_s, rows, created_us in ((1.0, 500, 1), (3.0, 40, 2), (2.0, 700, 1)):
        rates.take(state(1, at_s, rows, created_us))
    assert rates.known() and rates.per_s("stream", "a", "2", "power") is None
    rates.take(state(1, 5.0, 60, 2))
    rates.take(state(1, 9.0, 100, 2))
    assert rates.per_s("stream", "a", "2", "power") == 60 / 6
