"""State that a changed job keeps from its predecessor.

Parts are compared by id: `streams.power`, `operators.joined`, `sinks.curve`.

    same id, same signature              kept: the state carries over
    same id, another signature           refused: the state would have another meaning
    id only in the old job               dropped: the state is deleted
    id only in the new job               new: starts empty

A stream's signature is its columns and its time column: staged rows and the producers' sequence
numbers carry over to any source, lateness and limits.  A part without state (no signature facts) is
never refused: a filter's condition may change at any time.

A new sink may not ship pages of a stream that another sink of the old job ships: its sequence
numbers would begin again at 1, and the centre would take its pages for duplicates.
"""

from __future__ import annotations

from dataclasses import dataclass

from edged.data.schema import Field, Schema
from edged.errors import JobError
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
    kept, started, refused = [], [], []
    for path, part in after.items():
        if path not in before:
            started.append(path)
        elif fault := _refusal(path, before[path], part):
            refused.append(fault)
        elif _stateless(part) or _stateless(before[path]):
            started.append(path)
        else:
            kept.append(path)
    refused += _moved_pages(old, new)
    dropped = tuple(path for path in before if path not in after)
    return CarryOver(tuple(kept), tuple(started), dropped, tuple(refused))


_Part = StreamPlan | OperatorPlan | SinkPlan


def _parts(plan: JobPlan) -> dict[str, _Part]:
    parts: dict[str, _Part] = {}
    parts.update({f"streams.{id}": stream for id, stream in plan.streams.items()})
    parts.update({f"operators.{id}": plan.operators[id] for id in plan.order})
    parts.update({f"sinks.{id}": sink for id, sink in plan.sinks.items()})
    return parts


def _stateless(part: _Part) -> bool:
    return isinstance(part, OperatorPlan) and not part.signature_facts()


def _refusal(path: str, old: _Part, new: _Part) -> JobError | None:
    advice = "give it another id to start it empty, or undo the change"
    if isinstance(old, StreamPlan) and isinstance(new, StreamPlan):
        if change := _schema_change(old.schema, new.schema):
            return JobError(f"{path}.columns", f"cannot change in a running job: {change}", advice)
        if old.time != new.time:
            problem = f"cannot change in a running job: was {old.time}"
            return JobError(f"{path}.time", problem, advice)
        return None
    if _stateless(old) or isinstance(old, StreamPlan) or isinstance(new, StreamPlan):
        return None
    if old.kind != new.kind:
        return JobError(f"{path}.type", f"cannot change in a running job: was {old.kind}", advice)
    if old.version != new.version:
        problem = f"saves its state as version {new.version}, the store holds {old.version}"
        return JobError(path, problem, advice)
    if old.signature() != new.signature():
        problem = "its state does not fit: its schema, keys or sizes have changed"
        return JobError(path, problem, advice)
    return None


def _schema_change(old: Schema, new: Schema) -> str:
    for f in old:
        if f.name not in new:
            return f"{f.name} is gone"
        if new.field(f.name) != f:
            return f"{f.name} was {_type(f)}"
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
