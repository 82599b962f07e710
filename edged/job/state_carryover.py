"""State that a changed job keeps from its predecessor.

Parts are compared by id: `streams.power`, `operators.joined`, `sinks.curve`.

    same id, same signature              kept: the state carries over
    same id, another signature           refused: the state would have another meaning
    id only in the old job               dropped: the state is deleted
    id only in the new job               new: starts empty

A stream's signature is its columns, its time column and its weight column: staged rows and the
producers' sequence numbers carry over to any source, lateness and limits.  A part without state (no
signature facts) is never refused: a filter's condition may change at any time.

A job may not begin or cease to keep a log, since that decides what was acknowledged.  A hop that
keeps none keeps the number of its receivers, since its messages are on their way to them.

An operator with tables may not start empty on a table that the old job has read.

A new sink may not ship pages of a stream that another sink of the old job ships: its sequence
numbers would begin again at 1, and the centre would take its pages for duplicates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edged.data.flow import Link
from edged.data.schema import Field, Schema
from edged.errors import JobError
from edged.job.durability import THROUGH
from edged.job.plan import JobPlan, StreamPlan
from edged.operators.base import OperatorPlan
from edged.sinks.base import SinkPlan


@dataclass(frozen=True)
class CarryOver:
    """The verdict on a replacement, part by part; names are dotted paths such as `streams.a`."""

    kept: tuple[str, ...]
    new: tuple[str, ...]
    dropped: tuple[str, ...]
    refused: tuple[JobError, ...]

    def check(self) -> None:
        """Raise the first refusal, if there is one."""
        if self.refused:
            raise self.refused[0]

    def lines(self) -> list[str]:
        """The verdict as lines of text."""
        rows = (("keeps", self.kept), ("starts", self.new), ("forgets", self.dropped))
        lines = [f"{verb} {', '.join(names)}" for verb, names in rows if names]
        return lines + [f"refuses {fault}" for fault in self.refused]


def compare(old: JobPlan, new: JobPlan) -> CarryOver:
    """The parts that a replacement of `old` by `new` keeps, starts, drops and refuses."""
    before, after = _parts(old), _parts(new)
    links = _Links(old, new)
    kept, started, refused = [], [], []
    for path, part in after.items():
        if path not in before:
            started.append(path)
            refused += _read_tables(path, part, new, before)
        elif fault := _refusal(path, before[path], part, links):
            refused.append(fault)
        elif _stateless(part) or _stateless(before[path]):
            started.append(path)
        else:
            kept.append(path)
    refused += _moved_pages(old, new)
    refused += _another_log(old, new)
    dropped = tuple(path for path in before if path not in after)
    return CarryOver(tuple(kept), tuple(started), dropped, tuple(refused))


_Part = StreamPlan | OperatorPlan | SinkPlan


def _parts(plan: JobPlan) -> dict[str, _Part]:
    parts: dict[str, _Part] = {}
    parts.update({f"{s.section}.{id}": s for id, s in plan.streams.items()})
    parts.update({f"operators.{id}": plan.operators[id] for id in plan.order})
    parts.update({f"sinks.{id}": sink for id, sink in plan.sinks.items()})
    return parts


def _stateless(part: _Part) -> bool:
    return isinstance(part, OperatorPlan) and not part.signature_facts()


def _refusal(path: str, old: _Part, new: _Part, links: _Links) -> JobError | None:
    advice = "give it another id to start it empty, or undo the change"
    if isinstance(old, StreamPlan) and isinstance(new, StreamPlan):
        if change := _schema_change(old.schema, new.schema):
            return JobError(f"{path}.columns", f"cannot change in a running job: {change}", advice)
        if old.time != new.time:
            problem = f"cannot change in a running job: was {old.time}, is {new.time}"
            return JobError(f"{path}.time", problem, advice)
        if old.weight != new.weight:
            problem = f"cannot change in a running job: {_weight_change(old.weight, new.weight)}"
            return JobError(f"{path}.weight", problem, advice)
        return None
    if _stateless(old) or isinstance(old, StreamPlan) or isinstance(new, StreamPlan):
        return None
    if old.kind != new.kind:
        problem = f"cannot change in a running job: was {old.kind}, is {new.kind}"
        return JobError(f"{path}.type", problem, advice)
    if old.version != new.version:
        problem = f"saves its state as version {new.version}, the store holds {old.version}"
        return JobError(path, problem, advice)
    if old.signature() != new.signature():
        problem = f"its state does not fit: {links.changes(path, old)}"
        return JobError(path, problem, advice)
    return None


def _another_log(old: JobPlan, new: JobPlan) -> list[JobError]:
    """Refusals of a durability that keeps no log in the place of one that does, or the opposite,
    and of other receivers of a hop whose messages are on their way: what is in flight was
    acknowledged, or waits, by the rule of the old job."""
    was, now = old.promises, new.promises
    advice = "remove the job and put it again"
    if (was.logs, was.forwards) != (now.logs, now.forwards):
        problem = f"cannot change in a running job: was {was.durability}, is {now.durability}"
        return [JobError("promises.durability", problem, advice)]
    problem = f"the number of receivers cannot change in a running job of durability {THROUGH}"
    return [
        JobError(f"sinks.{id}.to", problem, advice)
        for id in (old.sinks.keys() & new.sinks.keys() if now.forwards else ())
        if _receivers(old.sinks[id]) != _receivers(new.sinks[id])
    ]


def _receivers(plan: SinkPlan) -> int:
    link = plan.link()
    return 0 if link is None else len(link.to)


def _read_tables(
    path: str, part: _Part, plan: JobPlan, before: Mapping[str, _Part]
) -> list[JobError]:
    """Refusals of a new operator whose table the old job has read: its rows do not come again."""
    if not isinstance(part, OperatorPlan) or not part.table_states():
        return []
    known = [name for name in plan.inputs[part.id] if f"tables.{name}" in before]
    advice = "give the table another id as well, so that it is read again"
    return [JobError(path, f"is new, and {n} has been read already", advice) for n in known]


class _Links:
    """Two plans of a job, to say what has changed between them."""

    def __init__(self, old: JobPlan, new: JobPlan) -> None:
        self._old, self._new = old, new

    def changes(self, path: str, part: OperatorPlan | SinkPlan) -> str:
        """The keys and input columns of a part that its state depends on and that have changed."""
        section, id = path.split(".", 1)
        before, after = (plan.document[section][id] for plan in (self._old, self._new))
        found = []
        for key in dict.fromkeys((*before, *after)):
            if before.get(key) != after.get(key) and self._matters(part, before, after, key):
                found += _value_changes(key, before.get(key), after.get(key))
        for was, now in zip(self._old.inputs[id], self._new.inputs[id], strict=False):
            if was in self._old.links and now in self._new.links:
                found += _link_changes(now, self._old.links[was], self._new.links[now])
        return "; ".join(found) or "its inputs have changed"

    def _matters(
        self,
        part: OperatorPlan | SinkPlan,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        key: str,
    ) -> bool:
        """Whether the state depends on the change of this key alone."""
        mixed = {k: v for k, v in before.items() if k != key}
        mixed |= {key: after[key]} if key in after else {}
        links = [self._old.links[name] for name in self._old.inputs[part.id]]
        try:
            if isinstance(part, OperatorPlan):
                other: OperatorPlan | SinkPlan = part.parse("", part.id, mixed, links)
            else:
                other = part.parse("", part.id, mixed, links[0])
        except JobError:
            return True
        return other.signature() != part.signature()


def _value_changes(key: str, old: Any, new: Any) -> list[str]:
    """What was in a key, or in the keys below it."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = [n for n in dict.fromkeys((*old, *new)) if old.get(n) != new.get(n)]
        found = [_value_change(f"{key}.{n}", old.get(n), new.get(n)) for n in names]
        return found or [f"the order of {key} has changed"]
    return [_value_change(key, old, new)]


def _value_change(key: str, old: Any, new: Any) -> str:
    was = "not there" if old is None else json.dumps(old, ensure_ascii=False)
    now = "gone" if new is None else json.dumps(new, ensure_ascii=False)
    return f"{key} was {was}, is {now}"


def _link_changes(name: str, old: Link, new: Link) -> list[str]:
    """What has changed in the rows of an input."""
    found = []
    if change := _schema_change(old.schema, new.schema):
        found.append(f"in its input {name}, {change}")
    if old.time != new.time:
        found.append(f"the time column of its input {name} was {old.time}, is {new.time}")
    if old.weight != new.weight:
        change = _weight_change(old.weight, new.weight)
        found.append(f"the weight column of its input {name} {change}")
    return found


def _weight_change(old: str, new: str) -> str:
    return f"was {old or 'not there'}, is {new or 'gone'}"


def _schema_change(old: Schema, new: Schema) -> str:
    for f in old:
        if f.name not in new:
            return f"{f.name} is gone"
        if new.field(f.name) != f:
            return f"{f.name} was {_type(f)}, is {_type(new.field(f.name))}"
    for f in new:
        if f.name not in old:
            return f"{f.name} was not there"
    return "" if old == new else "the order of the columns has changed"


def _type(f: Field) -> str:
    return f.dtype.name + ("?" if f.nullable else "")


def _moved_pages(old: JobPlan, new: JobPlan) -> list[JobError]:
    owners = {stream: id for id, sink in old.sinks.items() for stream, _, _ in sink.schemas()}
    found = []
    for id, sink in new.sinks.items():
        for stream, _, _ in sink.schemas():
            owner = owners.get(stream, id)
            if owner != id:
                problem = f"{stream} is shipped by sinks.{owner}; its numbering cannot move"
                found.append(JobError(f"sinks.{id}", problem, f"call the sink {owner}"))
    return found
