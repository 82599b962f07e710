"""Stages: the parts of a graph that run in one job, and the exchanges between them.

Neighbours share a stage where rows need not travel: both are placed alike, and no link is declared
between them.  Each instance of a stage is a job on one daemon.

1. The stages form a graph without cycles: each has a level, the largest number of exchanges between
   it and a stream, and an exchange leads to a higher level only.  Parts that could share a stage at
   two levels get two stages, because a job that waits for itself over a link would stand still.
2. Every stage has the instances of its parts, in one order: instance i of all parts is job i.
3. Rows that several parts of a stage read over equal links travel once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from edged.data.flow import owner
from edged.graph.document import SECTIONS, GraphPart, GraphPlan, LinkTerms

Placement = tuple[str, ...]
"""The daemon of each instance; with a name in front, an automatic one that is not resolved yet."""


@dataclass(frozen=True)
class Exchange:
    """Rows that travel from one stage to the next."""

    id: str
    """The link's name, declared or made: the `edge` sink's id."""
    rows: str
    """The link of the plan whose rows travel: `readings`, `readings.late`."""
    source: str
    """The stage that sends."""
    target: str
    stream: str
    """The stream that they are in the target's job."""
    terms: LinkTerms | None
    """None: it is not declared."""
    readers: tuple[str, ...]
    """Parts of the target that read it."""

    @property
    def path(self) -> str:
        """Where a fault of it is shown."""
        return f"links.{self.id}" if self.terms is not None else self.readers[0]


@dataclass(frozen=True)
class Stage:
    """Parts that run in one job, `instances` times."""

    name: str
    parts: tuple[str, ...]
    tables: tuple[str, ...]
    instances: int
    on: Placement
    """Empty: chosen by `edged.graph.placement`."""
    level: int


@dataclass
class Cut:
    """A graph, cut into stages, upstream first."""

    plan: GraphPlan
    stages: dict[str, Stage] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    stage_of: dict[str, str] = field(default_factory=dict)

    def into(self, stage: str) -> list[Exchange]:
        """What a stage receives."""
        return [e for e in self.exchanges if e.target == stage]

    def out_of(self, stage: str) -> list[Exchange]:
        """What a stage sends."""
        return [e for e in self.exchanges if e.source == stage]


def cut(plan: GraphPlan) -> Cut:
    """The stages of a graph."""
    made = Cut(plan)
    places, levels = _places(plan), dict[str, int]()
    local = dict[str, list[str]]()
    for id in plan.order():
        inputs = _travelling(plan, id)
        apart = [i for i in inputs if places[owner(i)] != places[id] or _declared(plan, i, id)]
        beside = [i for i in inputs if i not in apart]
        level = max((levels[owner(i)] + 1 for i in apart), default=0)
        levels[id] = max([level, *(levels[owner(i)] for i in beside)])
        local[id] = [owner(i) for i in beside if levels[owner(i)] == levels[id]]
    groups = _groups(plan.order(), local)
    for members in groups:
        first = plan.parts[members[0]]
        tables = {i for m in members for i in plan.inputs(m) if _is_table(plan, i)}
        on = places[members[0]]
        stage = Stage(
            first.id, tuple(members), tuple(sorted(tables)), _instances(plan, first.id),
            () if on[:1] == ("",) else on, levels[first.id],
        )  # fmt: skip
        made.stages[stage.name] = stage
        made.stage_of |= dict.fromkeys(members, stage.name)
    made.stages = dict(sorted(made.stages.items(), key=lambda one: one[1].level))
    made.exchanges = _exchanges(made)
    return made


def _travelling(plan: GraphPlan, id: str) -> list[str]:
    """The inputs of a part that are not tables."""
    return [i for i in plan.inputs(id) if not _is_table(plan, i)]


def _is_table(plan: GraphPlan, link: str) -> bool:
    return plan.whole.links[link].table is not None


def _declared(plan: GraphPlan, rows: str, reader: str) -> LinkTerms | None:
    ends = (rows, reader)
    return next((k for k in plan.links.values() if (k.source, k.target) == ends), None)


def _first_input(plan: GraphPlan, id: str) -> str:
    return next(owner(i) for i in (*_travelling(plan, id), *plan.inputs(id)))


def _places(plan: GraphPlan) -> dict[str, Placement]:
    """The daemons of each part; `("", part)` where they are chosen later."""
    found = dict[str, Placement]()
    for id in plan.order():
        part = plan.parts[id]
        if part.on:
            found[id] = part.on
        elif part.instances or _first_input(plan, id) not in found:
            found[id] = ("", id)
        else:
            found[id] = found[_first_input(plan, id)]
    return found


def _instances(plan: GraphPlan, id: str) -> int:
    part: GraphPart = plan.parts[id]
    while not part.instances:
        before = _first_input(plan, part.id)
        if before not in plan.parts:  # a table
            return 1
        part = plan.parts[before]
    return part.instances


def _groups(order: Sequence[str], local: dict[str, list[str]]) -> list[list[str]]:
    """Parts that are joined by local inputs, each group in the order of the graph."""
    root = {id: id for id in order}

    def find(id: str) -> str:
        while root[id] != id:
            id = root[id]
        return id

    for id in order:
        for before in local[id]:
            a, b = sorted((find(id), find(before)), key=order.index)
            root[b] = a
    groups = dict[str, list[str]]()
    for id in order:
        groups.setdefault(find(id), []).append(id)
    return list(groups.values())


def _exchanges(made: Cut) -> list[Exchange]:
    plan, found = made.plan, dict[tuple[str, str, str], Exchange]()
    for id in plan.order():
        for rows in _travelling(plan, id):
            source, target = made.stage_of[owner(rows)], made.stage_of[id]
            if source == target:
                continue
            terms = _declared(plan, rows, id)
            same = "" if terms is None else repr((terms.partition, terms.by, terms.settings))
            key = (rows, target, same)
            name = f"{rows}-{id}".replace(".", "-") if terms is None else terms.id
            reader = f"{plan.parts[id].path}.{_input_key(plan, id, rows)}"
            if key in found:
                one = found[key]
                found[key] = Exchange(
                    one.id, rows, source, target, one.stream, one.terms or terms,
                    (*one.readers, reader),
                )  # fmt: skip
                continue
            several = any(e.rows == rows and e.target == target for e in found.values())
            stream = name if several else rows.replace(".", "-")
            found[key] = Exchange(name, rows, source, target, stream, terms, (reader,))
    return list(found.values())


def _input_key(plan: GraphPlan, id: str, rows: str) -> str:
    """The key of a part's table that names an input."""
    part = plan.parts[id]
    if part.section == SECTIONS[2]:
        return "input"
    for key in plan.whole.operators[id].links:
        value = part.document.get(key.lstrip("*"))
        if value == rows:
            return key.lstrip("*")
        if isinstance(value, list) and rows in value:
            return f"{key.lstrip('*')}[{value.index(rows)}]"
    return "input"
