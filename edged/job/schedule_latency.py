"""What the schedules of a job add to its latency promise."""

from __future__ import annotations

from edged.documents.units import show_duration
from edged.job.plan import JobPlan


def added_us(plan: JobPlan) -> dict[str, int | None]:
    """By sink, how long schedules may hold its rows back in all; None: without a bound.  Sinks
    behind no schedule are left out."""
    waits: dict[str, int | None] = {}
    for id in (*plan.order, *plan.sinks):
        before = [waits.get(link.partition(".")[0], 0) for link in plan.inputs.get(id, ())]
        own = plan.schedules.get(id)
        if None in before or (own is not None and not own.every_us):
            waits[id] = None
            continue
        longest = max((us for us in before if us is not None), default=0)
        waits[id] = longest + (own.every_us if own is not None else 0)
    return {id: waits[id] for id in plan.sinks if waits[id] != 0}


def sink_line(plan: JobPlan, id: str) -> list[str]:
    """How late a sink's rows may be by schedules, as lines for `edged explain`."""
    waits = added_us(plan)
    if id not in waits:
        return []
    us, promised = waits[id], plan.promises.latency_us
    if us is None:
        return ["a schedule without every holds rows back: no latency is promised"]
    return [f"with schedules, results within {show_duration(promised + us)}"]


def warnings(plan: JobPlan) -> list[str]:
    """Schedules without a bound, and sinks whose rows come later than promised by them."""
    found = [
        f"operators.{id}.schedule: rows may wait for ever without every"
        for id, schedule in plan.schedules.items()
        if not schedule.every_us
    ]
    for id, us in added_us(plan).items():
        if us:
            found.append(
                f"sinks.{id}: schedules add up to {show_duration(us)} to the latency of"
                f" {show_duration(plan.promises.latency_us)}"
            )
    return found
