"""`edged bench fleet`: a small fleet against a real collector, and how gaps are counted."""

from __future__ import annotations

from edged.bench import fleet
from edged.bench.fleet_devices import Acks


def test_a_small_fleet_is_acknowledged_and_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet.tempfile, "tempdir", str(tmp_path))
    row = fleet.measure(5, fleet.Phases(10, 5), lambda _: None)
    assert row.pop("devices") == 5
    assert set(fleet.AIMS) < set(row) and all(value > 0 for value in row.values())
    assert not list(tmp_path.iterdir())


def test_a_gap_counts_only_while_an_acknowledgement_is_due(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    acks = Acks()
    for at, told in ((0, acks.begin), (1, acks.begin), (3, None), (4, None), (9, acks.begin)):
        now[0] = at
        told() if told else acks.end(0.0)
    now[0] = 10
    acks.end(9.0)
    assert acks.longest_gap_s == 3
    assert acks.p99_ms() == 4000
