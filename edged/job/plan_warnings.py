"""Legal but suspicious parts of a job."""

from __future__ import annotations

from edged.job import schedule_latency
from edged.job.plan import JobPlan


def warnings(plan: JobPlan) -> list[str]:
    """Legal but suspicious parts: streams and operators without a reader, and what sources say."""
    found = []
    for name, stream in plan.streams.items():
        path = f"{stream.section}.{name}"
        found += [f"{path}.source: {text}" for text in stream.source.warnings()]
        if not plan.readers(name):
            found.append(f"{path}: no reader")
        if stream.late == "dead_letter" and not plan.readers(f"{name}.late"):
            found.append(f"streams.{name}: no reader of its late rows, {name}.late")
    for id in plan.order:
        unread = _unread(plan, id)
        found += [f"operators.{id}: no reader" + (f" of {n}" if n != id else "") for n in unread]
    return found + schedule_latency.warnings(plan)


def _unread(plan: JobPlan, id: str) -> list[str]:
    """The outputs of an operator without a reader; the operator alone where none has one."""
    named = [f"{id}.{name}" for name in plan.operators[id].outputs()]
    unread = [name for name in named if not plan.readers(name)]
    if len(unread) == len(named) and not plan.readers(id):
        return [id]
    return [name for name in unread if name != named[0] or not plan.readers(id)]
