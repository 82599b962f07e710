"""Simulated flows: what bounds them, and the shape of NEPTUNE's experiment."""

from __future__ import annotations

import pytest

from edged.graph.check import load
from edged.graph.flow import DaemonMachine, all_to_all, row_bytes, steady_flow
from tests.graph.support import farm

PACKET = {
    "seq": "int64", "time": "timestamp", "a": "float64", "b": "float64", "c": "int64",
    "d": "int64", "e": "int16",
}  # fmt: skip


def carried(daemons, **machine):
    return steady_flow(load(all_to_all(daemons, PACKET)), DaemonMachine(**machine))


def test_a_simulated_cluster_grows_as_neptunes_does():
    """About 100 M packets/s of 50 bytes on 50 nodes at 1 Gbit/s; linear in their number."""
    flows = {n: carried(n) for n in (2, 3, 10, 25, 50)}
    assert 80e6 < flows[50].rows_per_s < 130e6
    assert flows[50].rows_per_s / flows[25].rows_per_s == pytest.approx(2, rel=0.05)
    assert all(a.rows_per_s < b.rows_per_s for a, b in zip(
        [flows[n] for n in (2, 3, 10, 25)], [flows[n] for n in (3, 10, 25, 50)], strict=True
    ))  # fmt: skip
    assert all("cores" not in flow.bound_by for flow in flows.values())


def test_a_simulated_graph_is_bound_by_the_resource_that_is_used_up():
    flow = carried(1)
    assert flow.bound_by == "d0: cores" and flow.wire_bytes_per_s == 0
    assert flow.used["d0"]["cores"] == pytest.approx(1)
    slow = carried(3, bits_per_s=1e6)
    assert slow.rows_per_s == pytest.approx(carried(3).rows_per_s / 1000)
    assert max(share for used in slow.used.values() for share in used.values()) == pytest.approx(1)


def test_a_simulated_link_carries_what_its_filter_gives():
    graph = load(farm())
    flow = steady_flow(graph, DaemonMachine())
    sent = flow.rows_per_s * graph.plan.whole.operators["producing"].rows_out
    size = row_bytes(graph.plan.whole.links["producing"].schema)
    assert flow.wire_bytes_per_s == pytest.approx(sent * size)
    assert flow.taken_per_s == pytest.approx(flow.rows_per_s + sent)
