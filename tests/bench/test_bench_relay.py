"""The paper's experiments over links: short runs on real daemons, and their parts alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.bench import compress, relay, staircase
from edged.bench.equipment_data import FIELDS, POWER, equipment_records
from edged.bench.relay_packets import PacketTemplate
from edged.bench.relay_tally import Tally, percentile_ms, share_above, tally_packets
from edged.bench.tukey import studentized_range_above, tukey_p_values

ROW = {
    "mode", "packet_bytes", "buffer_bytes", "packets_per_s", "wire_bytes_per_s",
    "cpu_s_per_mpacket", "ms_p50", "ms_p99", "in_order_once",
}  # fmt: skip


@pytest.mark.whole
def test_packets_reach_the_third_daemon_once_and_in_order():
    scope = dataclasses.replace(relay.SCOPES["quick"], seconds=1.0)
    result = relay.run(scope, lambda _: None, relay.MODES, lambda _: None)
    (row,) = result["rows"]
    assert set(row) >= ROW and row["in_order_once"]
    assert row["packets_per_s"] > 0 and row["wire_bytes_per_s"] > 0
    assert 0 < row["ms_p50"] <= row["ms_p99"]
    assert result["raw"]["packets_per_s"] > 0 and result["disk"]["bytes_per_s"] > 0


@pytest.mark.whole
def test_the_first_daemon_slows_down_with_the_last():
    result = staircase.measure(staircase.Stair(4.0, (1, 3)), lambda _: None)
    assert result["lost"] == 0 and result["in_order_once"]
    fast, slow = result["steps"]
    assert fast["source_rate"] > slow["source_rate"] > 0


def test_a_link_that_compresses_by_entropy_leaves_random_bytes_alone():
    scope = compress.CompressScope(2, 0.05, ("random",), (None,))
    rows = {r["mode"]: r for r in compress.measure("random", scope, lambda _: None)}
    assert set(rows) == {"never", "auto", "always"}
    # as many bytes, but for the heads of messages, whose number differs from run to run
    assert rows["auto"]["wire_ratio"] == pytest.approx(rows["never"]["wire_ratio"], abs=1e-3)
    assert all(r["packets_per_s"] > 0 and 0 <= r["p_value"] <= 1 for r in rows.values())


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3), st.integers(0, 10**7))))
def test_a_tally_counts_as_a_plain_loop(tmp_path_factory, packets):
    tally = Tally.create(tmp_path_factory.mktemp("tally") / "t")
    columns = [np.array(c, np.int64) for c in zip(*packets, strict=True)] or [
        np.empty(0, np.int64)
    ] * 3
    seq, sender, ts = columns
    now_us = 10**7 + 5
    tally_packets(tally.cells, seq, sender.astype(np.int32), ts, now_us)
    last, disorder = {}, 0
    for n, s, _ in packets:
        disorder += n <= last.get(s, 0)
        last[s] = n
    assert (tally.rows, tally.sum, tally.disorder) == (len(packets), seq.sum(), disorder)
    late_ms = sorted((now_us - t) / 1000 for _, _, t in packets)
    if late_ms:
        found = percentile_ms(tally.latencies(), 1.0)
        assert late_ms[-1] <= found + 0.001 <= late_ms[-1] * 1.07 + 0.003
        assert share_above(tally.latencies(), late_ms[-1] * 1.1 + 1) == 0


def test_once_in_order_needs_each_number(tmp_path):
    for numbers, right in (([1, 2, 3], True), ([1, 3, 2], False), ([1, 2, 4], False)):
        tally = Tally.create(tmp_path / "t")
        seq = np.array(numbers)
        tally_packets(tally.cells, seq, np.zeros(3, np.int32), np.zeros(3, np.int64), 5)
        assert tally.once_in_order(3) is right


@pytest.mark.parametrize("size", [50, 200, 10_000])
def test_a_packet_has_its_size_on_the_wire(size):
    one, many = PacketTemplate(size, 8, 0), PacketTemplate(size, 4008, 0)
    assert (many.bytes.size - one.bytes.size) / 4000 == pytest.approx(size, abs=0.1)


@pytest.mark.parametrize(
    ("q", "groups", "free"), [(3.578, 3, 20), (3.506, 3, 27), (2.950, 2, 20), (4.367, 5, 15)]
)
def test_the_studentized_range_has_its_tabulated_five_per_cent_points(q, groups, free):
    assert studentized_range_above(q, groups, free) == pytest.approx(0.05, abs=2e-4)


def test_tukey_tells_equal_groups_from_different_ones():
    dice = np.random.default_rng(1)
    a, b, c = (dice.normal(mean, 1, 10) for mean in (10, 10, 14))
    p = tukey_p_values({"a": a, "b": b, "c": c})
    assert p["a", "b"] > 0.05 > 1e-4 > p["a", "c"]


def test_equipment_records_have_the_challenges_shape():
    records = equipment_records(20_000)
    assert records.num_columns == FIELDS + 1
    for name, (low, high) in POWER.items():
        values = records[name].to_numpy()
        assert low <= values.min() <= values.max() <= high
        assert 0.78 < (np.diff(values) != 0).mean() < 0.88
