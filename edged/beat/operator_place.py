"""Where an operator's state files lie, and how much memory each of its tables may take."""

from __future__ import annotations

from edged.job.plan import JobPlan
from edged.operators.base import OperatorPlace
from edged.platform.disk import SystemDisk
from edged.sinks.base import SinkContext
from edged.tables.base import TableScratch

TABLES_SHARE = 8
"""Part of a job's memory, 1 in TABLES_SHARE, that the states of its tables take together."""


def table_scratch(plan: JobPlan) -> TableScratch:
    """The scratch memory that all table states of the job share: as much again as they hold."""
    return TableScratch(plan.promises.memory_bytes // TABLES_SHARE)


def operator_place(
    plan: JobPlan, context: SinkContext, id: str, scratch: TableScratch
) -> OperatorPlace:
    """The place of an operator of the job."""
    tables = sum(p.table_states() for p in plan.operators.values())
    root = context.tables or f"{context.directory}/tables"
    return OperatorPlace(
        context.disk or SystemDisk(),
        f"{root}/{plan.name}/{id}",
        context.workers,
        plan.promises.memory_bytes // TABLES_SHARE // max(1, tables),
        scratch,
        context.pricing,
        plan.promises.latency_us // 2 // max(1, tables),
        plan.promises.latency_us,
        context.wake,
    )
