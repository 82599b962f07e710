"""Replay of log records on jobs.  The pages that a replay makes must equal those in the log."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edged.beat.jobs import JobRegistry
from edged.beat.record import BeatFacts
from edged.beat.runtime import JobRuntime
from edged.beat.shelf import RecordPart, ShelfBase
from edged.data.flow import BeatContext, State
from edged.errors import EdgedError, JobError, StoreCorrupt
from edged.job.plan import parse_job
from edged.pages.sealed import PageKey, SealedPage
from edged.sinks.base import SinkContext
from edged.store import BeatRecord

AwaitRoom = Callable[[OSError], None]


def build_job(
    document: Mapping[str, Any], context: SinkContext, arrays: State | None = None
) -> JobRuntime:
    """A job of the store with its saved state.

    Raises JobError where it cannot be loaded: its document no longer parses, as when a plug-in is
    gone, or one of its parts fails to build or to load its state.
    """
    plan = parse_job(document)
    try:
        job = JobRuntime(plan, context)
        if arrays:
            job.load(arrays)
    except (EdgedError, OSError, MemoryError):
        raise
    except Exception as problem:  # a plug-in raises anything
        raise JobError(plan.name, f"cannot be loaded: {_text(problem)}") from problem
    return job


def part_of(record: BeatRecord, facts: BeatFacts, logged: bool) -> RecordPart:
    """All of a record; `logged` is what `JobRegistry.logs_inputs` says before it."""
    inputs = [np.asarray(buffer, np.uint8) for buffer in record.inputs]
    pages: dict[PageKey, bytes | int] = {page.key: bytes(page.data) for page in record.pages}
    return RecordPart(record.number, facts, inputs, pages, logged)


def beat_of(part: RecordPart, context: SinkContext, await_room: AwaitRoom | None) -> BeatContext:
    """The beat of a record."""
    return BeatContext(part.number, part.facts.wall_us, context.workers, await_room)


def replay_beat(
    registry: JobRegistry, part: RecordPart, context: SinkContext, await_room: AwaitRoom | None
) -> int:
    """Replay a beat; returns the rows taken.

    If no job is `exactly_once`, the log has no inputs, and only positions and watermarks advance.
    Raises StoreCorrupt where the pages differ from the part's.
    """
    arrays = iter(part.inputs)
    beat = beat_of(part, context, await_room)
    pages: list[SealedPage] = []
    rows = 0
    for name, facts in part.facts.jobs.items():
        job = registry.get(name)
        if job is None:
            raise StoreCorrupt(f"beat {part.number} is of a job {name} that does not exist")
        if not part.logged:
            job.skip(part.number, facts, list(part.pages), context)
            continue
        job.replay(facts, arrays)
        pages += job.step(beat, facts)
        rows += sum(f.rows for f in facts.streams.values())
    if part.logged:
        _check_pages(part, pages)
    return rows


def replay_shelf(
    base: ShelfBase | None,
    parts: Sequence[RecordPart],
    context: SinkContext,
    await_room: AwaitRoom | None,
) -> JobRuntime:
    """A shelved job as of its last record.

    Raises JobError where it still cannot be loaded, or where its plug-ins of now do not give the
    pages that are in the log.
    """
    registry = JobRegistry()
    changes = [part.facts.change for part in parts]
    for document in [c.document for c in changes if c is not None and c.document is not None]:
        parse_job(document)  # before a replay writes anything
    if base is not None:
        job = build_job(base.document, context, base.arrays)
        job.meta = base.meta
        registry.list.append(job)
    try:
        for part in parts:
            _replay_part(registry, part, context, await_room)
    except (JobError, OSError, MemoryError):
        raise
    except Exception as problem:  # a plug-in raises anything
        raise JobError("replay", f"its logged beats cannot be raced: {_text(problem)}") from problem
    (job,) = registry.list
    return job


def _replay_part(
    registry: JobRegistry, part: RecordPart, context: SinkContext, await_room: AwaitRoom | None
) -> None:
    change = part.facts.change
    if change is None:
        replay_beat(registry, part, context, await_room)
        return
    if part.retired is not None:
        registry.load_retired(part.retired)
    document = change.document
    registry.apply(change, None if document is None else build_job(document, context))


def _check_pages(part: RecordPart, pages: Sequence[SealedPage]) -> None:
    logged, made = part.pages, {page.key: page for page in pages}
    wrong = [
        key for key in logged.keys() | made.keys() if not _equal(logged.get(key), made.get(key))
    ]
    if wrong:
        raise StoreCorrupt(
            f"replaying beat {part.number} gives other pages than were logged: "
            f"{sorted(map(str, wrong))[:3]}; this is a defect of edged or of the machine's memory: "
            "keep the store and report it"
        )


def _equal(logged: bytes | int | None, made: SealedPage | None) -> bool:
    if logged is None or made is None:
        return False
    data = bytes(made.data)
    return logged == data if isinstance(logged, bytes) else logged == zlib.crc32(data)


def _text(problem: Exception) -> str:
    kind = "" if isinstance(problem, EdgedError) else f"{type(problem).__name__}: "
    return f"{kind}{problem}"
