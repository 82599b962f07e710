"""What sinks get: the daemon's context, as a job's durability and a sink's id change it."""

from __future__ import annotations

from dataclasses import replace

from edged.job.plan import JobPlan
from edged.sinks.base import SinkContext


def context_of(plan: JobPlan, context: SinkContext) -> SinkContext:
    """A job's context.  Without a log its epoch is that of this run, since numbers begin again with
    each one; the pages of a job with one go into the log."""
    if plan.promises.logs:
        return replace(context, segments=None)
    return replace(context, epoch=context.run_epoch)


def sink_context(context: SinkContext, id: str) -> SinkContext:
    """The context of one sink: its directory is its own."""
    return replace(context, directory=f"{context.directory}/{id}")
