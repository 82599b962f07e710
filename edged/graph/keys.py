"""Whether operators with state see all rows of their keys.

Each instance of an operator keeps its own state.  With several instances the rows of a key must all
come to one, so every input must be partitioned by columns that are among the operator's keys.  What
a part's rows are partitioned by follows them through operators that keep the columns:

    stream          nothing is known: its instances take any rows
    hash link       the columns of `by`;  broadcast: every instance has all rows
    filter, enrich  as their input;  map: if it passes the columns under their names
    window          as its input, whose columns are among its keys
    interval_join   as its left input;  union: if all inputs agree
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edged.errors import JobError
from edged.graph.document import GraphPlan
from edged.graph.stages import Cut, Exchange
from edged.links.partition import BROADCAST, HASH
from edged.links.partition import SCHEMES as PARTITIONS

EVERYWHERE = ("*",)
"""Each instance has all rows."""
Columns = tuple[str, ...] | None
"""Columns by which rows are partitioned; None: by nothing known."""


def faults(made: Cut) -> list[JobError]:
    """The operators whose state would be torn."""
    plan, found = made.plan, list[JobError]()
    known = dict[str, Columns]()
    for id in plan.order():
        stage = made.stages[made.stage_of[id]]
        if id not in plan.whole.operators:
            known[id] = None
            continue
        inputs = [_arrives(made, id, rows, known) for rows in plan.inputs(id)]
        part = plan.parts[id]
        if stage.instances > 1 and not part.per_instance:
            found += _torn(made, id, inputs)
        for link in (id, *(f"{id}.{name}" for name in plan.whole.operators[id].outputs())):
            known[link] = _output(plan, id, link, inputs)
    return found


def keys_of(plan: GraphPlan, id: str) -> tuple[tuple[str, ...], ...] | None:
    """The key columns of each input of an operator with state; None: it has no state by key."""
    operator = plan.whole.operators[id]
    if not operator.signature_facts() or operator.table_states():
        return None
    document = plan.parts[id].document
    inputs = len(plan.inputs(id))
    if "on" in document and inputs == 2:
        pairs = [entry.partition("=") for entry in document["on"]]
        left = tuple(a.strip() for a, _, _ in pairs)
        return left, tuple((b if equals else a).strip() for a, equals, b in pairs)
    return (tuple(document.get("keys", ())),) * inputs


def _arrives(made: Cut, id: str, rows: str, known: dict[str, Columns]) -> Columns:
    exchange = _exchange(made, id, rows)
    if exchange is None:
        return known.get(rows)
    if exchange.terms is None:
        return None
    if exchange.terms.partition == BROADCAST:
        return EVERYWHERE
    if exchange.terms.partition not in PARTITIONS:
        return _named(made.plan, exchange)
    return exchange.terms.by or None


def _exchange(made: Cut, id: str, rows: str) -> Exchange | None:
    path = made.plan.parts[id].path
    for one in made.into(made.stage_of[id]):
        if one.rows == rows and any(r.startswith(f"{path}.") for r in one.readers):
            return one
    return None


def _named(plan: GraphPlan, exchange: Exchange) -> Columns:
    """The columns that an expression names: the instance is a function of them."""
    assert exchange.terms is not None
    words = set(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", exchange.terms.partition))
    return tuple(n for n in plan.whole.links[exchange.rows].schema.names if n in words) or None


def _torn(made: Cut, id: str, inputs: Sequence[Columns]) -> list[JobError]:
    keys = keys_of(made.plan, id)
    if keys is None:
        return []
    found, count = [], made.stages[made.stage_of[id]].instances
    kind = made.plan.whole.operators[id].kind
    for rows, by, wanted in zip(made.plan.inputs(id), inputs, keys, strict=True):
        if by == EVERYWHERE:
            continue
        exchange = _exchange(made, id, rows)
        declared = exchange is not None and exchange.terms is not None
        path = exchange.path if declared and exchange else f"{made.plan.parts[id].path}.input"
        asked = f"by = [{', '.join(repr(n) for n in wanted)}]" if wanted else "one instance"
        if by is None or not set(by) <= set(wanted):
            how = exchange.terms.partition if declared and exchange and exchange.terms else ""
            at = f"{path}.{'by' if how == HASH else 'partition'}" if declared else path
            means = f"{how} link" if declared else "input that is not partitioned by its keys"
            problem = f"{id} is a {kind} with state in {count} instances behind a {means}"
            if how == HASH:
                problem = f"{', '.join(by or ())} are not all keys of {id}, a {kind}"
            advice = f"partition by its keys: hash with {asked}, or set per_instance = true"
            found.append(JobError(at, problem, advice))
    sides = [tuple(k.index(c) for c in by) for by, k in zip(inputs, keys, strict=True)
             if by and by != EVERYWHERE and set(by) <= set(k)]  # fmt: skip
    if not found and len(set(sides)) > 1:
        problem = f"the inputs of {id} are partitioned by different keys"
        found.append(JobError(f"{made.plan.parts[id].path}.on", problem, "use the same in both"))
    return found


def _output(plan: GraphPlan, id: str, link: str, inputs: Sequence[Columns]) -> Columns:
    streams = [by for rows, by in zip(plan.inputs(id), inputs, strict=True)
               if plan.whole.links[rows].table is None]  # fmt: skip
    first = streams[0] if streams else None
    if any(by != first for by in streams) and plan.whole.operators[id].kind == "union":
        return None
    if first is None or first == EVERYWHERE:
        return first
    passed = plan.parts[id].document.get("columns")
    if isinstance(passed, dict) and plan.whole.operators[id].kind == "map":
        return first if all(str(passed.get(n, "")).strip() == n for n in first) else None
    schema = plan.whole.links[link].schema
    return first if all(name in schema for name in first) else None
