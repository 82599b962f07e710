"""`edged bench cost`: prices are found again, and a short run of a real daemon has its figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.bench.cost import LOADS, STAGES, CostLoad, measure, prices, stage_prices

POSITIVE = st.floats(0.1, 10.0)


@given(POSITIVE, POSITIVE, POSITIVE)
def test_prices_that_made_the_times_are_found_again(a_beat, a_row, a_message):
    """ms a beat, 10 ns a row, 10 µs a message."""
    rows = []
    for load in LOADS:
        beats = 10.0 if load.latency == "1s" else 100.0
        amounts = np.array([beats, 20.0 * load.rate, 10 * load.messages_per_s])
        spent = float(amounts @ [1e-3 * a_beat, 1e-8 * a_row, 1e-5 * a_message])
        names = ("beats", "rows", "messages", "cpu_s")
        rows.append(dict(zip(names, (*amounts, spent), strict=True)))
    found = prices(rows, "cpu_s")
    assert found["us_per_beat"] == pytest.approx(1e3 * a_beat, rel=1e-2)
    assert found["ns_per_row"] == pytest.approx(10 * a_row, rel=1e-2)
    assert found["us_per_message"] == pytest.approx(10 * a_message, rel=1e-2)
    assert found["error_max"] == 0.0


def test_no_price_is_below_zero():
    """A message that seems to save time costs nothing."""
    rows = [
        {"beats": b, "rows": r, "messages": m, "cpu_s": 1e-3 * b + 1e-8 * r - 1e-6 * m}
        for b, r, m in ((10, 1e6, 10), (100, 1e6, 1_000), (10, 1e7, 100), (50, 1e5, 5_000))
    ]
    found = prices(rows, "cpu_s")
    assert found["us_per_message"] == 0.0
    assert found["us_per_beat"] > 0 and found["ns_per_row"] > 0


def test_a_load_of_a_real_daemon_has_its_beats_rows_and_times():
    row = measure(CostLoad(500, 25, "250ms"), 1.0)
    assert row["beats"] >= 2 and row["rows"] > 0
    assert row["messages"] == pytest.approx(row["rows"] / 25, abs=1)
    assert 0 < row["cpu_s_beat_thread"] < row["cpu_s"] < 2 * row["seconds"]
    stages = row["stages_s"]
    assert stages.keys() >= {"ingest", "race", "seal", "commit"}
    assert 0 < stages["fsync"] < stages["commit"]
    found = stage_prices([row])
    assert found.keys() == set(STAGES.values())
    assert found["log"]["us_per_beat"] >= 0
