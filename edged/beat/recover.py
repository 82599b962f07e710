"""Recovery: from a store back to running jobs.

The log is replayed on the jobs of the snapshot; changes of the jobs since are in the log itself
(`edged.beat.jobs`).  Then the job files that the daemon was started with are applied: a new
document adds a job, a changed one inherits the state of the job that it replaces, and a job whose
file is gone is removed.  Jobs that came through the control door stay.  If the files changed
anything, a snapshot is due at once, so that a log never begins under other documents than its
snapshot's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edged.beat.jobs import JobRegistry, carry_over
from edged.beat.record import BeatFacts
from edged.beat.runtime import JobRuntime, arrays_under
from edged.data.flow import BeatContext
from edged.errors import StoreCorrupt
from edged.job.changes import FILE, Change
from edged.job.plan import JobPlan, parse_job
from edged.pages.sealed import SealedPage
from edged.platform.clock import Clock
from edged.sinks.base import SinkContext
from edged.store import BeatRecord, Store


@dataclass(slots=True)
class Recovered:
    """The jobs as of the last durable beat."""

    registry: JobRegistry
    beat: int
    replayed_beats: int = 0
    replayed_rows: int = 0
    fresh: bool = False
    """Whether the jobs differ from those in the store, so that a snapshot is due at once."""
    notes: list[str] = field(default_factory=list)
    """For users: the state that replaced jobs inherited, and what starts empty."""

    @property
    def jobs(self) -> list[JobRuntime]:
        """The jobs."""
        return self.registry.list


def recover(
    store: Store,
    plans: Sequence[JobPlan],
    context: SinkContext,
    clock: Clock,
    origins: Mapping[str, str] | None = None,
    await_room: Callable[[OSError], None] | None = None,
) -> Recovered:
    """Recover the store's jobs and apply `plans`, the documents of job files.

    `origins` has each plan's origin by job name (`file:PATH`); `await_room` is that of the replayed
    beats (`BeatContext`).  Raises StoreCorrupt where a replay does not give the pages that the log
    holds, JobError where the state of a replaced job cannot be carried over.
    """
    recovery = store.recover()
    found = Recovered(JobRegistry(), 0, fresh=recovery.snapshot is None)
    if recovery.snapshot is not None:
        facts = json.loads(recovery.snapshot.facts)
        for name, document in facts["jobs"].items():
            job = JobRuntime(parse_job(document), context)
            job.load(arrays_under(recovery.snapshot.arrays, name))
            found.registry.list.append(job)
        found.registry.load(facts)
        found.beat = recovery.snapshot.beat
    for record in recovery.records:
        found.replayed_rows += replay(found.registry, record, context, await_room)
        found.replayed_beats += 1
        found.beat = record.number
    _take_files(found, plans, context, clock, origins or {})
    if recovery.snapshot is None:
        found.notes.clear()  # everything is new
    for job in found.jobs:
        job.reset_idle_timers(clock.monotonic_us())
        job.apply_state(daemon_drains=False)
    return found


def replay(
    registry: JobRegistry,
    record: BeatRecord,
    context: SinkContext,
    await_room: Callable[[OSError], None] | None = None,
) -> int:
    """Replay one record; returns the rows taken.  The pages must equal those in the log.

    If no job is `exactly_once`, the log has no inputs, and only positions and watermarks advance.
    """
    facts = BeatFacts.decode(record.facts)
    if (change := facts.change) is not None:
        document = change.document
        registry.apply(
            change, None if document is None else JobRuntime(parse_job(document), context)
        )
        return 0
    arrays = (np.asarray(buffer, np.uint8) for buffer in record.inputs)
    beat = BeatContext(record.number, facts.wall_us, context.workers, await_room)
    pages: list[SealedPage] = []
    rows = 0
    replays = any(job.plan.promises.durability == "exactly_once" for job in registry.list)
    for name, job_facts in facts.jobs.items():
        job = registry.get(name)
        if job is None:
            raise StoreCorrupt(f"beat {record.number} is of a job {name} that does not exist")
        if not replays:
            job.skip(record.number, job_facts, record.pages, context)
            continue
        job.replay(job_facts, arrays)
        pages += job.step(beat, job_facts)
        rows += sum(f.take_rows for f in job_facts.streams.values())
    if replays:
        _check_pages(record, pages)
    return rows


def _take_files(
    found: Recovered,
    plans: Sequence[JobPlan],
    context: SinkContext,
    clock: Clock,
    origins: Mapping[str, str],
) -> None:
    registry, wall_us = found.registry, clock.wall_us()
    wanted = {plan.name for plan in plans}
    for job in list(registry.list):
        if job.meta.from_file and job.plan.name not in wanted:
            registry.delete(job.plan.name)
            found.notes.append(f"job {job.plan.name} is gone: no file holds it any more")
            found.fresh = True
    for plan in plans:
        old, origin = registry.get(plan.name), origins.get(plan.name, FILE)
        if old is not None and old.plan.document == plan.document:
            old.meta.origin = origin
            continue
        job = JobRuntime(plan, context)
        found.notes += carry_over(old, job)
        change = Change("put", plan.name, wall_us, plan.document, origin)
        registry.put(job, change)
        found.fresh = True


def _check_pages(record: BeatRecord, pages: Sequence[SealedPage]) -> None:
    logged = {p.key: bytes(p.data) for p in record.pages}
    made = {p.key: bytes(p.data) for p in pages}
    if logged != made:
        wrong = sorted(str(k) for k in logged.keys() | made.keys() if logged.get(k) != made.get(k))
        raise StoreCorrupt(
            f"replaying beat {record.number} gives other pages than were logged: {wrong[:3]}; "
            "this is a defect of edged or of the machine's memory: keep the store and report it"
        )
