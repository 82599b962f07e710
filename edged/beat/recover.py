"""From a store back to running jobs: snapshot, log, and the carry-over of a replaced job.

The log is replayed under the job documents that it was written with (they stand in the snapshot),
and only then are the states handed over to the documents that are wanted now.  A snapshot is taken
at once whenever the two differ, so that a log never mixes documents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edged.beat.record import BeatFacts
from edged.beat.runtime import JobRuntime
from edged.clock import Clock
from edged.errors import StoreCorrupt
from edged.job.carry import compare
from edged.job.plan import JobPlan, parse_job
from edged.operators.base import WATERMARK_MIN_US, BeatContext, State
from edged.sinks.base import SealedPage, SinkContext
from edged.store import BeatRecord, Store


@dataclass(slots=True)
class Recovered:
    """Jobs as they stood when the last beat became durable."""

    jobs: list[JobRuntime]
    beat: int
    replayed_beats: int = 0
    replayed_rows: int = 0
    fresh: bool = False
    """The documents differ from those in the store: a snapshot is due before the first beat."""
    notes: list[str] = field(default_factory=list)
    """What a replaced job could carry over and what starts fresh, for people."""


def recover(
    store: Store, plans: Sequence[JobPlan], context: SinkContext, clock: Clock
) -> Recovered:
    """Bring `plans` up on top of what the store holds.

    Raises StoreCorrupt where a replay does not give the pages that the log holds, JobError where
    a replaced job's state cannot be carried over.
    """
    recovery = store.recover()
    if recovery.snapshot is None:
        jobs = [JobRuntime(plan, context) for plan in plans]
        return Recovered(jobs, 0, fresh=True)
    documents = json.loads(recovery.snapshot.facts)["jobs"]
    old = {name: JobRuntime(parse_job(d), context) for name, d in documents.items()}
    for name, job in old.items():
        job.load(under(recovery.snapshot.arrays, name))
    found = Recovered(list(old.values()), recovery.snapshot.beat)
    for record in recovery.records:
        found.replayed_rows += replay(old, record, context)
        found.replayed_beats += 1
        found.beat = record.number
    if documents != {plan.name: plan.document for plan in plans}:
        found.jobs = [replaced(old.get(p.name), p, context, found.notes) for p in plans]
        found.fresh = True
    for job in found.jobs:
        _connect_anew(job, clock.monotonic_us())
    return found


def replay(jobs: Mapping[str, JobRuntime], record: BeatRecord, context: SinkContext) -> int:
    """Run one record; returns the rows taken.  The pages must come out as they were logged.

    Where no job is `exactly_once` the log has no inputs: the record is passed over.
    """
    facts = BeatFacts.decode(record.facts)
    arrays = (np.asarray(buffer, np.uint8) for buffer in record.inputs)
    beat = BeatContext(record.number, facts.wall_us, context.workers)
    pages: list[SealedPage] = []
    rows = 0
    remade = any(job.plan.promises.durability == "exactly_once" for job in jobs.values())
    for name, job_facts in facts.jobs.items():
        job = jobs[name]
        if not remade:
            job.skip(record.number, job_facts, record.pages, context)
            continue
        job.replay(job_facts, arrays)
        pages += job.step(beat, job_facts)
        rows += sum(f.take_rows for f in job_facts.streams.values())
    if remade:
        _check_pages(record, pages)
    return rows


def replaced(
    old: JobRuntime | None, plan: JobPlan, context: SinkContext, notes: list[str]
) -> JobRuntime:
    """A runtime for `plan` with all the state of `old` that it can carry over."""
    job = JobRuntime(plan, context)
    if old is None:
        notes.append(f"job {plan.name} is new")
        return job
    carry = compare(old.plan, plan)
    carry.check()
    notes.extend(f"job {plan.name} {line}" for line in carry.lines())
    kept = {path.replace(".", "/", 1) for path in carry.kept}
    state = {k: v for k, v in old.save().items() if "/".join(k.split("/", 2)[:2]) in kept}
    job.load(state)
    return job


def under(arrays: State, prefix: str) -> State:
    """The arrays whose names start with `prefix/`, without it."""
    return {k[len(prefix) + 1 :]: v for k, v in arrays.items() if k.startswith(prefix + "/")}


def _check_pages(record: BeatRecord, pages: Sequence[SealedPage]) -> None:
    logged = {p.key: bytes(p.data) for p in record.pages}
    made = {p.key: bytes(p.data) for p in pages}
    if logged != made:
        wrong = sorted(str(k) for k in logged.keys() | made.keys() if logged.get(k) != made.get(k))
        raise StoreCorrupt(
            f"replaying beat {record.number} gives other pages than were logged: {wrong[:3]}; "
            "this is a defect of edged or of the machine's memory: keep the store and report it"
        )


def _connect_anew(job: JobRuntime, now_us: int) -> None:
    """Producers of before the restart count as heard just now: they get `idle_after` to return."""
    for s in job.streams.values():
        producers = s.staging.producers
        n = len(producers.ids)
        known = producers.latest_us[:n] > WATERMARK_MIN_US
        producers.seen_us[:n] = np.where(known, now_us, 0)
