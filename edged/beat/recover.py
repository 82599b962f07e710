"""Recovery: from a store back to running jobs.

The log is replayed on the jobs of the snapshot; changes of the jobs since are in the log itself
(`edged.beat.jobs`).  Then the job files that the daemon was started with are applied: a new
document adds a job, a changed one inherits the state of the job that it replaces, and a job whose
file is gone is removed.  Jobs that came through the control door stay.  If the files changed
anything, a snapshot is due at once, so that a log never begins under other documents than its
snapshot's.

Where the store has lost a part of the log or of the snapshot, the replay goes on past it
(`edged.beat.holes`), what is lost is recorded in the store's gaps (`edged.beat.losses`), and a
snapshot is due at once.

A job of the store that cannot be loaded, as when its plug-in is gone, is shelved
(`edged.beat.shelf`).  Its part of each record is collected instead of replayed; all other jobs are
replayed as usual.  `Recovered.drafts` must be durable before the snapshot that is due then.  A
shelved job that can be loaded again is replayed from its file and runs on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edged.beat.holes import HoleReplay, lose_positions
from edged.beat.jobs import JobRegistry, carry_over
from edged.beat.losses import Losses, number_behind, whole_parts
from edged.beat.record import BeatFacts
from edged.beat.replay import AwaitRoom, beat_of, build_job, part_of, replay_beat, replay_shelf
from edged.beat.runtime import JobRuntime
from edged.beat.saved_arrays import arrays_under
from edged.beat.shelf import RecordPart, ShelfBase, ShelfDraft, ShelvedJob, read_shelf
from edged.documents.reader import plain
from edged.errors import JobError, StoreCorrupt
from edged.job.changes import FILE, Change, JobMetadata
from edged.job.footprint import Footprint
from edged.job.plan import JobPlan, parse_job
from edged.platform.clock import Clock
from edged.sinks.base import SinkContext
from edged.store import BeatRecord, Snapshot, Store
from edged.store.records import Hole


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
    drafts: dict[str, ShelfDraft] = field(default_factory=dict)
    """Newly shelved jobs: what to write into their shelf files before that snapshot."""

    @property
    def jobs(self) -> list[JobRuntime]:
        """The running jobs."""
        return self.registry.list


@dataclass(frozen=True)
class FaultyFile:
    """A job file whose document cannot be planned.  It is allowed for a job that is shelved."""

    document: dict[str, Any]
    fault: JobError


def recover(
    store: Store,
    plans: Sequence[JobPlan],
    context: SinkContext,
    clock: Clock,
    origins: Mapping[str, str] | None = None,
    await_room: AwaitRoom | None = None,
    faulty: Sequence[FaultyFile] = (),
) -> Recovered:
    """Recover the store's jobs and apply `plans`, the documents of job files.

    `origins` has each plan's origin by job name (`file:PATH`); `await_room` is that of the replayed
    beats (`BeatContext`).  Raises StoreCorrupt where a replay of undamaged records does not give
    the pages that the log holds, JobError where the state of a replaced job cannot be carried over,
    and the fault of a file in `faulty` whose job is not shelved.
    """
    recovery = store.recover()
    found = Recovered(JobRegistry(), 0, fresh=recovery.snapshot is None or bool(store.salvaged))
    recoverer = _Recoverer(found, store, context, await_room, plans, origins or {})
    if recovery.snapshot is not None:
        recoverer.load(recovery.snapshot)
    for record in recovery.records:
        recoverer.replay(record)
    if recovery.end is not None:
        recoverer.pass_hole(recovery.end)
    for name in found.drafts:
        found.registry.shelved[name].beat = found.beat
    known = {job.plan.name for job in found.jobs}
    _take_files(found, plans, context, clock, origins or {}, faulty)
    if recovery.snapshot is None and store.salvaged:
        for job in found.jobs:
            if job.plan.name not in known:
                lose_positions(job)
    recoverer.settle(clock.wall_us())
    found.fresh |= any(p.table_states() for j in found.jobs for p in j.plan.operators.values())
    if recovery.snapshot is None:
        found.notes.clear()  # everything is new
    for job in found.jobs:
        job.reset_idle_timers(clock.monotonic_us())
        job.apply_state(daemon_drains=False)
    return found


class _Recoverer:
    """Loads a snapshot and replays the records after it into `found`."""

    def __init__(
        self,
        found: Recovered,
        store: Store,
        context: SinkContext,
        await_room: AwaitRoom | None,
        plans: Sequence[JobPlan],
        origins: Mapping[str, str],
    ) -> None:
        self._found, self._registry, self._store = found, found.registry, store
        self._context, self._await_room = context, await_room
        self._plans, self._origins = {plan.name: plan for plan in plans}, origins
        self._losses = Losses(store, self._registry, await_room)
        losses = self._losses
        self._holes = HoleReplay(
            self._registry, context, losses.last_page, self._adopt, losses.regain
        )
        self._careful = bool(store.salvaged)
        """Whether something was damaged, so that the replay may have to get past a hole."""

    def load(self, snapshot: Snapshot) -> None:
        """Load the jobs; shelve those that cannot be loaded, and take back those that can again."""
        facts, registry = json.loads(snapshot.facts), self._registry
        self._found.beat = snapshot.beat
        for name, document in facts["jobs"].items():
            arrays = arrays_under(snapshot.arrays, name)
            missing = self._losses.missing_parts(snapshot, name)
            try:
                job = build_job(document, self._context, whole_parts(arrays, missing))
                registry.list.append(job)
                self._losses.restore(job, arrays, missing, facts.get("last", {}).get(name, {}))
            except JobError as problem:
                meta = JobMetadata(**facts.get("about", {}).get(name, {}))
                footprint = facts.get("footprints", {}).get(name)
                if footprint is None:  # an older version wrote the snapshot
                    raise
                last = facts["last"][name]
                shelved = ShelvedJob(document, meta, Footprint(**footprint), last, str(problem))
                self._shelve(shelved, ShelfBase(document, replace(meta), arrays))
        registry.load(facts)
        for given in facts.get("shelved", {}).values():
            self._take_back(ShelvedJob.from_json(given))
        if self._careful:
            self._holes.loaded()
            for job in registry.list:
                if self._losses.missing_parts(snapshot, job.plan.name):
                    self._holes.distrust(job)

    def replay(self, record: BeatRecord) -> None:
        """Replay a record: its change, or its beat without the parts of shelved jobs."""
        found, registry = self._found, self._registry
        if record.hole is not None:
            self.pass_hole(record.hole)
        facts = BeatFacts.decode(record.facts)
        part = part_of(record, facts, registry.logs_inputs())
        found.replayed_beats += 1
        found.beat = record.number
        if facts.change is not None:
            if self._holes.passed:
                self._change_behind_hole(part, facts.change)
            else:
                self._change(part, facts.change)
            return
        if self._holes.passed or record.lost or (self._careful and not registry.shelved):
            part.logged |= bool(part.inputs)
            for shelved in registry.shelved.values():
                shelved.take_pages(record.pages)
            beat = beat_of(part, self._context, self._await_room)
            found.replayed_rows += self._holes.replay(part, record.lost, beat)
            return
        if registry.shelved:
            part = self._without_shelved(record, part)
        found.replayed_rows += replay_beat(registry, part, self._context, self._await_room)
        if self._careful:
            self._holes.reached(part)

    def pass_hole(self, hole: Hole) -> None:
        """Go on behind a hole.  What newly shelved jobs have of the log ends there: their state
        is that of the snapshot."""
        for draft in self._found.drafts.values():
            draft.records.clear()
            draft.inputs.clear()
        self._holes.pass_hole(hole)
        self._found.beat = max(self._found.beat, hole.before - 1)

    def settle(self, wall_us: int) -> None:
        """Record what is lost, and let page numbers go on behind all that were used."""
        if self._careful:
            self._losses.settle(self._holes.finish(), self._found.beat, wall_us)
        for name in sorted(self._holes.unknown):
            self._found.notes.append(f"job {name} is lost: the record of its document is damaged")

    def _adopt(self, name: str) -> JobRuntime | None:
        """Begin a job from its file with an empty state: the store has lost its document."""
        plan = self._plans.get(name)
        if plan is None:
            return None
        job = JobRuntime(plan, self._context)
        origin = self._origins.get(name, FILE)
        self._registry.put(job, Change("put", name, 0, plan.document, origin))
        return job

    def _change_behind_hole(self, part: RecordPart, change: Change) -> None:
        """Apply a change; the job that it applies to may be lost."""
        if change.op != "put" and self._registry.find(change.name) is None:
            return
        try:
            self._change(part, change)
        except JobError as problem:
            self._found.notes.append(f"job {change.name}: its change is left out: {problem}")

    def _without_shelved(self, record: BeatRecord, part: RecordPart) -> RecordPart:
        """Collect the shelved jobs' parts of a beat; returns what is left of it."""
        shelved, arrays = self._registry.shelved, iter(part.inputs)
        rest = RecordPart(part.number, BeatFacts(part.facts.wall_us, {}), [], {}, part.logged)
        rest.pages = dict(part.pages)
        running = {job.plan.name: job for job in self._registry.list}
        for name, facts in part.facts.jobs.items():
            if (job := shelved.get(name)) is not None:
                inputs = job.take_inputs(facts, arrays) if part.logged else []
                pages = job.take_pages(record.pages)
                mine = BeatFacts(part.facts.wall_us, {name: facts})
                self._draft(name).add(RecordPart(part.number, mine, inputs, pages, part.logged))
                rest.pages = {key: data for key, data in rest.pages.items() if key not in pages}
            elif (runs := running.get(name)) is not None:
                rest.facts.jobs[name] = facts
                if part.logged:
                    rest.inputs += runs.take_inputs(facts, arrays)
            else:
                raise StoreCorrupt(f"beat {part.number} is of a job {name} that does not exist")
        return rest

    def _change(self, part: RecordPart, change: Change) -> None:
        registry, name = self._registry, change.name
        if change.op == "put" and name not in registry.shelved:
            assert change.document is not None
            try:
                registry.apply(change, build_job(change.document, self._context))
            except JobError as problem:
                self._shelve_put(part, change, problem)
        elif name not in registry.shelved:
            registry.apply(change, None)
        elif change.op == "delete":
            self._draft(name)
            registry.delete(name)
            del self._found.drafts[name]
        else:
            self._add_change(part, change)
            if change.op == "put":
                registry.put_shelved(change, registry.shelved[name].reason)
            else:
                registry.apply(change, None)

    def _shelve_put(self, part: RecordPart, change: Change, problem: JobError) -> None:
        """Shelve a job from the change on whose document cannot be loaded."""
        if change.footprint is None:  # an older version wrote the record
            raise problem
        base, old = None, self._registry.get(change.name)
        if old is not None:
            base = ShelfBase(old.plan.document, replace(old.meta), old.save())
            self._registry.shelve(
                ShelvedJob(
                    old.plan.document, old.meta, old.footprint, old.last_pages(), str(problem)
                )
            )
        self._found.drafts[change.name] = ShelfDraft(base)
        self._found.fresh = True
        self._add_change(part, change)
        self._registry.put_shelved(change, str(problem))

    def _add_change(self, part: RecordPart, change: Change) -> None:
        retired = self._registry.retired_facts() if change.op == "put" else None
        self._draft(change.name).add(replace(part, inputs=[], pages={}, retired=retired))

    def _draft(self, name: str) -> ShelfDraft:
        if (draft := self._found.drafts.get(name)) is None:
            beat = self._registry.shelved[name].beat
            raise StoreCorrupt(f"the log goes on with job {name}, which was shelved at beat {beat}")
        return draft

    def _shelve(self, job: ShelvedJob, base: ShelfBase) -> None:
        self._registry.shelve(job)
        self._found.drafts[job.name] = ShelfDraft(base)
        self._found.fresh = True

    def _take_back(self, shelved: ShelvedJob) -> None:
        """Run a shelved job again, or keep it on the shelf where it still cannot be loaded."""
        try:
            parse_job(shelved.document)
            base, parts = self._read_shelf(shelved)
            if base is None and not parts:
                job = build_job(shelved.document, self._context)
                lose_positions(job)
            else:
                job = replay_shelf(base, parts, self._context, self._await_room)
            number_behind(job, shelved.last)
        except JobError as problem:
            shelved.reason = str(problem)
            self._registry.shelve(shelved)
            return
        job.meta.origin = shelved.meta.origin
        self._registry.list.append(job)
        self._found.notes.append(f"job {shelved.name} is back from the shelf, as it was")
        self._found.fresh = True

    def _read_shelf(self, shelved: ShelvedJob) -> tuple[ShelfBase | None, list[RecordPart]]:
        """A shelf file; nothing where it is missing or damaged: the job's state is empty."""
        try:
            return read_shelf(self._store.shelved((shelved.name, shelved.beat)))
        except StoreCorrupt as damage:
            self._careful = True
            self._found.notes.append(f"job {shelved.name} begins with an empty state: {damage}")
            return None, []


def _take_files(
    found: Recovered,
    plans: Sequence[JobPlan],
    context: SinkContext,
    clock: Clock,
    origins: Mapping[str, str],
    faulty: Sequence[FaultyFile],
) -> None:
    registry, wall_us = found.registry, clock.wall_us()
    wanted = {plan.name for plan in plans} | {str(f.document.get("name")) for f in faulty}
    named = {job.plan.name: job.meta for job in registry.list}
    named |= {name: job.meta for name, job in registry.shelved.items()}
    for name, meta in named.items():
        if meta.from_file and name not in wanted:
            registry.delete(name)
            found.drafts.pop(name, None)
            found.notes.append(f"job {name} is gone: no file holds it any more")
            found.fresh = True
    for file in faulty:
        if not _is_shelved(registry, file.document, origins):
            raise file.fault
    for plan in plans:
        if _is_shelved(registry, plan.document, origins):
            continue
        if (shelved := registry.shelved.get(plan.name)) is not None:
            raise _irreplaceable(shelved)
        for aside in registry.shelved.values():
            aside.check_beside(plan)
        old, origin = registry.get(plan.name), origins.get(plan.name, FILE)
        if old is not None and old.plan.document == plan.document:
            old.meta.origin = origin
            continue
        job = JobRuntime(plan, context)
        found.notes += carry_over(old, job)
        change = Change("put", plan.name, wall_us, plan.document, origin)
        registry.put(job, change)
        found.fresh = True


def _is_shelved(
    registry: JobRegistry, document: dict[str, Any], origins: Mapping[str, str]
) -> bool:
    """Whether the job of a file's document is shelved with the same document."""
    shelved = registry.shelved.get(str(document.get("name")))
    if shelved is None or shelved.document != plain(document):
        return False
    shelved.meta.origin = origins.get(shelved.name, FILE)
    return True


def _irreplaceable(shelved: ShelvedJob) -> JobError:
    return JobError(
        f"jobs.{shelved.name}",
        f"the job in the store is shelved and cannot be replaced: {shelved.reason}",
        "repair the plug-in, or start once without the job's file, which deletes its state",
    )
