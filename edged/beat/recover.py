"""From a store back to running jobs: snapshot, log, and the documents that are wanted now.

The log is replayed under the jobs of the snapshot, and what changed them since stands in the log
itself (`edged.beat.jobs`).  Then come the documents of the files that the daemon was started with:
new ones are added, changed ones take over the state of what they replace, and jobs whose files are
gone go.  Jobs that came through the door stay.  A snapshot is due at once where the files changed
anything, so that a log never begins under other documents than its snapshot's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edged.beat.jobs import Jobs, carry_over
from edged.beat.record import BeatFacts
from edged.beat.runtime import JobRuntime
from edged.data.flow import BeatContext, State
from edged.errors import StoreCorrupt
from edged.job.changes import FILE, Change
from edged.job.plan import JobPlan, parse_job
from edged.pages.sealed import SealedPage
from edged.platform.clock import Clock
from edged.sinks.base import SinkContext
from edged.store import BeatRecord, Store


@dataclass(slots=True)
class Recovered:
    """Jobs as they stood when the last beat became durable."""

    book: Jobs
    beat: int
    replayed_beats: int = 0
    replayed_rows: int = 0
    fresh: bool = False
    """The jobs differ from those in the store: a snapshot is due before the first beat."""
    notes: list[str] = field(default_factory=list)
    """What a replaced job could carry over and what starts fresh, for people."""

    @property
    def jobs(self) -> list[JobRuntime]:
        """The jobs."""
        return self.book.list


def recover(
    store: Store,
    plans: Sequence[JobPlan],
    context: SinkContext,
    clock: Clock,
    origins: Mapping[str, str] | None = None,
    await_room: Callable[[OSError], None] | None = None,
) -> Recovered:
    """Bring up what the store holds, and `plans`, which stand in files, on top of it.

    `origins` says where each plan is from by the job's name (`file:PATH`), `await_room` is that of
    the replayed beats (`BeatContext`).  Raises StoreCorrupt
    where a replay does not give the pages that the log holds, JobError where a replaced job's state
    cannot be carried over.
    """
    recovery = store.recover()
    found = Recovered(Jobs(), 0, fresh=recovery.snapshot is None)
    if recovery.snapshot is not None:
        facts = json.loads(recovery.snapshot.facts)
        for name, document in facts["jobs"].items():
            job = JobRuntime(parse_job(document), context)
            job.load(under(recovery.snapshot.arrays, name))
            found.book.list.append(job)
        found.book.load(facts)
        found.beat = recovery.snapshot.beat
    for record in recovery.records:
        found.replayed_rows += replay(found.book, record, context, await_room)
        found.replayed_beats += 1
        found.beat = record.number
    _take_files(found, plans, context, clock, origins or {})
    if recovery.snapshot is None:
        found.notes.clear()  # everything is new
    for job in found.jobs:
        job.connect_anew(clock.monotonic_us())
        job.hold(False)
    return found


def replay(
    book: Jobs,
    record: BeatRecord,
    context: SinkContext,
    await_room: Callable[[OSError], None] | None = None,
) -> int:
    """Run one record; returns the rows taken.  The pages must come out as they were logged.

    Where no job is `exactly_once` the log has no inputs: the record is passed over.
    """
    facts = BeatFacts.decode(record.facts)
    if (change := facts.change) is not None:
        document = change.document
        book.apply(change, None if document is None else JobRuntime(parse_job(document), context))
        return 0
    arrays = (np.asarray(buffer, np.uint8) for buffer in record.inputs)
    beat = BeatContext(record.number, facts.wall_us, context.workers, await_room)
    pages: list[SealedPage] = []
    rows = 0
    remade = any(job.plan.promises.durability == "exactly_once" for job in book.list)
    for name, job_facts in facts.jobs.items():
        job = book.get(name)
        if job is None:
            raise StoreCorrupt(f"beat {record.number} is of a job {name} that there was not")
        if not remade:
            job.skip(record.number, job_facts, record.pages, context)
            continue
        job.replay(job_facts, arrays)
        pages += job.step(beat, job_facts)
        rows += sum(f.take_rows for f in job_facts.streams.values())
    if remade:
        _check_pages(record, pages)
    return rows


def under(arrays: State, prefix: str) -> State:
    """The arrays whose names start with `prefix/`, without it."""
    return {k[len(prefix) + 1 :]: v for k, v in arrays.items() if k.startswith(prefix + "/")}


def _take_files(
    found: Recovered,
    plans: Sequence[JobPlan],
    context: SinkContext,
    clock: Clock,
    origins: Mapping[str, str],
) -> None:
    book, wall_us = found.book, clock.wall_us()
    wanted = {plan.name for plan in plans}
    for job in list(book.list):
        if job.about.from_file and job.plan.name not in wanted:
            book.delete(job.plan.name)
            found.notes.append(f"job {job.plan.name} is gone: no file holds it any more")
            found.fresh = True
    for plan in plans:
        old, origin = book.get(plan.name), origins.get(plan.name, FILE)
        if old is not None and old.plan.document == plan.document:
            old.about.origin = origin
            continue
        job = JobRuntime(plan, context)
        found.notes += carry_over(old, job)
        change = Change("put", plan.name, wall_us, plan.document, origin)
        book.put(job, change)
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
