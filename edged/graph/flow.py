"""What a graph can carry: a steady flow through its daemons, simulated.

Every daemon has cores and one network port; a stream's rows pass the stages, and the first resource
that is used up bounds the rate.  Assumptions:

1. All streams have the same rate, spread evenly over instances; keys are even, too.
2. A row costs cycles: those of `edged.simulate.work` for each operator (measured, on its reference
   core), and `TAKE` and `SEND` for a hop, by its bytes (measured, `LinkCost`).
3. A row has the bytes of its columns, a text those that the caller says, and nothing is compressed.
   Of a port's bits `SHARE` carry them, in each direction; rows between two stages of one daemon
   cross no port.
4. Operators give `rows_out` rows for each that they read, as simulations of one job assume.
5. Nothing else limits: disks, batching, and the latency of the network are not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edged.data.flow import owner
from edged.data.schema import Schema
from edged.graph.check import PlacedGraph
from edged.graph.document import LinkTerms
from edged.links.partition import BROADCAST
from edged.simulate.work import HOST_HZ, UNMEASURED

TEXT_BYTES = 16
"""Of a text or binary value where nothing else is said."""
SHARE = 0.937
"""The share of a link's bits that NEPTUNE's measurements reach."""
BITS_A_BYTE = 8


@dataclass(frozen=True)
class LinkCost:
    """Cycles of a row that crosses one end of a link: CPU seconds of `edged bench relay`,
    `volatile`, alone, of 27 November 2026 (Zen 4 at 3.65 GHz) times HOST_HZ, fitted to packets of
    50 and 10 000 bytes.  Beats are full, and their fixed cost is in it."""

    row: float
    byte: float

    def cycles(self, schema: Schema, text_bytes: int) -> float:
        """Of one row."""
        return self.row + self.byte * row_bytes(schema, text_bytes)


TAKE, SEND = LinkCost(13.0, 5.4), LinkCost(0.0, 2.7)
"""What the last daemon spends, and what each before it spends beyond that."""


@dataclass(frozen=True)
class DaemonMachine:
    """A daemon's machine."""

    cores: float = 2.0
    hz: float = HOST_HZ
    bits_per_s: float = 1e9
    """Of its port, in each direction."""
    text_bytes: int = TEXT_BYTES


@dataclass(frozen=True)
class SteadyFlow:
    """The largest steady rate."""

    rows_per_s: float
    """Of each stream."""
    bound_by: str
    """The first resource that is used up: `DAEMON: cores`, `DAEMON: sends`, `DAEMON: receives`."""
    taken_per_s: float
    """Rows that all stages take in, each hop counted: NEPTUNE's cumulated throughput."""
    wire_bytes_per_s: float
    used: dict[str, dict[str, float]]
    """By daemon, the shares of cores, sends and receives."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "rows_per_s": self.rows_per_s, "bound_by": self.bound_by,
            "taken_per_s": self.taken_per_s, "wire_bytes_per_s": self.wire_bytes_per_s,
            "used": self.used, "provenance": "simulated",
        }  # fmt: skip


def steady_flow(graph: PlacedGraph, machine: DaemonMachine) -> SteadyFlow:
    """The largest rate of a placed graph whose daemons run on such machines."""
    rates = _rates(graph)
    none = dict.fromkeys(("cores", "sends", "receives"), 0.0)
    needs = {name: dict(none) for name in graph.plan.daemons}
    taken, wire = _work(graph, rates, machine, needs), _wire(graph, rates, machine, needs)
    bound = max(
        ((share, f"{name}: {what}") for name, need in needs.items() for what, share in need.items())
    )
    rate = 1.0 / bound[0]
    used = {n: {k: share * rate for k, share in need.items()} for n, need in needs.items()}
    return SteadyFlow(rate, bound[1], taken * rate, wire * rate, used)


def _rates(graph: PlacedGraph) -> dict[str, float]:
    """Rows on each part's output where each stream has one row a second."""
    plan, rates = graph.plan, dict[str, float]()
    for id in plan.order():
        if id in plan.whole.streams:
            rates[id] = 1.0
        elif id in plan.whole.operators:
            read = sum(rates[owner(i)] for i in plan.inputs(id) if owner(i) in rates)
            rates[id] = read * plan.whole.operators[id].rows_out
    return rates


def _work(
    graph: PlacedGraph,
    rates: Mapping[str, float],
    machine: DaemonMachine,
    needs: Mapping[str, dict[str, float]],
) -> float:
    """Add what each job computes; returns the rows that all take in."""
    plan, taken = graph.plan, 0.0
    for stage in graph.cut.stages.values():
        links, text = plan.whole.links, machine.text_bytes
        into = [
            (links[e.rows].schema, rates[owner(e.rows)] * _copies(e.terms, stage.instances))
            for e in graph.cut.into(stage.name)
        ]
        into += [(links[part].schema, 1.0) for part in stage.parts if part in plan.whole.streams]
        out = [
            (links[e.rows].schema,
             rates[owner(e.rows)] * _copies(e.terms, graph.cut.stages[e.target].instances))
            for e in graph.cut.out_of(stage.name)
        ]  # fmt: skip
        cycles = sum(rate * TAKE.cycles(schema, text) for schema, rate in into)
        cycles += sum(rate * SEND.cycles(schema, text) for schema, rate in out)
        for part in stage.parts:
            if part in plan.whole.operators:
                read = sum(rates.get(owner(i), 0.0) for i in plan.inputs(part))
                cycles += read * (plan.whole.operators[part].cycles or UNMEASURED)[1]
        for name in graph.placement[stage.name]:
            share = cycles / stage.instances / machine.hz / machine.cores
            needs[name]["cores"] += share
        taken += sum(rate for _, rate in into)
    return taken


def _wire(
    graph: PlacedGraph,
    rates: Mapping[str, float],
    machine: DaemonMachine,
    needs: Mapping[str, dict[str, float]],
) -> float:
    """Add what each port carries; returns the bytes on all of them."""
    wire = 0.0
    for exchange in graph.cut.exchanges:
        senders, receivers = graph.placement[exchange.source], graph.placement[exchange.target]
        size = row_bytes(graph.plan.whole.links[exchange.rows].schema, machine.text_bytes)
        copies = _copies(exchange.terms, len(receivers))
        each = rates[owner(exchange.rows)] * copies * size / len(senders) / len(receivers)
        for sender in senders:
            for receiver in receivers:
                if sender != receiver:
                    share = each * BITS_A_BYTE / (machine.bits_per_s * SHARE)
                    needs[sender]["sends"] += share
                    needs[receiver]["receives"] += share
                    wire += each
    return wire


def _copies(terms: LinkTerms | None, instances: int) -> int:
    return instances if terms is not None and terms.partition == BROADCAST else 1


def row_bytes(schema: Schema, text_bytes: int = TEXT_BYTES) -> int:
    """Assumed bytes of a row on a link."""
    return sum(f.dtype.width or text_bytes for f in schema)


def all_to_all(daemons: int, columns: Mapping[str, str]) -> dict[str, Any]:
    """NEPTUNE's graph of two stages, a source and a relay on each daemon, all joined to all."""
    names = [f"d{i}" for i in range(daemons)]
    return {
        "name": "all",
        "daemons": {n: {"api": f"/{n}", "host": n} for n in names},
        "streams": {
            "packets": {
                "source": {"type": "generator", "rate": "full"},
                "columns": dict(columns),
                "time": "time",
                "place": names,
            }
        },
        "operators": {
            "relay": {"type": "filter", "input": "packets", "where": "true", "place": names}
        },
        "links": {"all-to-all": {"from": "packets", "to": "relay", "partition": "round_robin"}},
        "sinks": {"end": {"type": "file", "input": "relay", "path": "end-{instance}"}},
    }
