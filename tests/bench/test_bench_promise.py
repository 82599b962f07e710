"""`edged bench promise`: a row on a real daemon, and which rows a run has."""

from __future__ import annotations

from edged.bench import promise

KEYS = {
    "promise_ms", "load", "busy_loops", "beats", "late_fraction", "ms_p50", "ms_p99",
    "joules_per_mtuple",
}  # fmt: skip


def test_a_row_counts_beats_and_simulated_joules(monkeypatch):
    monkeypatch.setattr(promise, "WARM_S", 0.3)
    row = promise.measure(50, 0.5, 100_000, 0, 10, 1.0)
    assert set(row) >= KEYS
    assert row["beats"] > 0 and 0 <= row["late_fraction"] <= 1
    assert 0 < row["ms_p50"] <= row["ms_p99"]
    assert row["joules_per_mtuple"] > 0 and row["tuples_per_s"] > 0


def test_a_default_run_has_each_promise_at_each_load_and_some_beside_busy_loops():
    rows = promise.plan(promise.DEFAULT)
    quiet = {(ms, load) for ms, load, loops in rows if not loops}
    assert quiet == {(ms, load) for ms in (50, 250, 1000) for load in (0.01, 0.25, 0.5, 0.9)}
    assert {ms for ms, _, loops in rows if loops == 2} == {50}
