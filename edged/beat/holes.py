"""Replay past a hole in the log (`edged.store.records.Hole`), or on a state that lost a part.

The state behind a hole is that before it: operators keep their windows and receive the rows of the
records behind the hole.  What the lost beats did is unknown, so three rules keep results from being
sent twice.

1. The log's pages win.  Page numbers follow the log; a page that the replay makes and the log has
   too is dropped.  One whose bytes in the log are damaged is kept (`Store.regain`).
2. From a hole on, a job is *astray*: its operators run, and their results are dropped, because the
   beats may have sealed them.  Rows that were staged before the hole count as taken in it.
3. A job is back on its way after a beat that sealed all of its open pages and left nothing staged:
   nothing that is dropped was open then.  A beat whose pages differ from those in the log leads it
   astray again.

What was acknowledged to producers from the hole until then is a gap: some of it is in pages and
windows, some is lost.  Numbers of pages that are neither pending nor acknowledged are gaps too.
Where the log does not say how many pages a partition got in the hole, its numbers go on behind the
most that can have been there, so that no number is used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import numpy as np
import numpy.typing as npt

from edged.beat.jobs import JobRegistry
from edged.beat.record import JobFacts, StreamFacts, input_count, read_inputs
from edged.beat.runtime import JobRuntime
from edged.beat.shelf import RecordPart
from edged.data.flow import BeatContext
from edged.data.schema import Schema
from edged.pages.sealed import PageKey, SealedPage
from edged.sinks.base import Flush, SinkContext
from edged.store.gaps import DAMAGED, Gap
from edged.store.records import Hole

Arrays = Iterator[npt.NDArray[np.uint8]]
Positions = dict[str, dict[str, int]]
"""Of each stream: the number of the last batch of each producer."""


@dataclass
class Astray:
    """A job whose sinks do not follow the replay."""

    after: int
    """The newest beat that was replayed before."""
    wall_us: int
    """Its wall clock; 0: unknown."""
    positions: Positions
    staged: dict[str, int] = field(default_factory=dict)
    """Chunks staged before, by stream, until a beat takes them."""
    text: str = ""


class HoleReplay:
    """Replays records behind holes on the jobs of a registry."""

    def __init__(
        self,
        registry: JobRegistry,
        context: SinkContext,
        numbers: Callable[[str, int], int],
        adopt: Callable[[str], JobRuntime | None],
        regain: Callable[[Sequence[SealedPage]], None],
    ) -> None:
        """`numbers` has the highest known page number of a stream's partition; `adopt` makes a job
        of which the record is lost, None where it cannot; `regain` takes pages that the replay
        makes again and the log has lost."""
        self._registry, self._context = registry, context
        self._numbers, self._adopt, self._regain = numbers, adopt, regain
        self._astray: dict[str, Astray] = {}
        self._clean: dict[str, Positions] = {}
        """Where each job was when nothing was open or staged."""
        self._hole: Hole | None = None
        """The last hole."""
        self.passed = False
        """Whether state was lost: replayed pages may differ from the log's."""
        self._beat = self._wall_us = 0
        self.gaps: list[Gap] = []
        """Batches that were acknowledged and may be lost."""
        self.unknown: set[str] = set()
        """Jobs that records name and that are lost with the record of their document."""

    def loaded(self) -> None:
        """The jobs of the snapshot are loaded."""
        for job in self._registry.list:
            if not any(sink.open_rows() for sink in job.sinks.values()) and not job.staged():
                self._clean[job.plan.name] = positions(job)

    def distrust(self, job: JobRuntime) -> None:
        """Go on with a job of whose state the snapshot has lost a part."""
        self.passed = True
        self._lead_astray(job, "a part of its state is lost")

    def reached(self, part: RecordPart) -> None:
        """Note a record that was replayed as usual."""
        self._beat, self._wall_us = part.number, part.facts.wall_us
        for job in self._registry.list:
            facts = part.facts.jobs.get(job.plan.name)
            if facts is not None and _sealed_all(job, facts):
                self._clean[job.plan.name] = positions(job)

    def pass_hole(self, hole: Hole) -> None:
        """Go on behind a hole."""
        self._hole, self.passed = hole, True
        for job in self._registry.list:
            self._lead_astray(job, hole.text or "the state before it is lost")
            self._number(job, hole)
            lose_positions(job)
        self._beat = max(hole.before - 1, self._beat)

    def _number(self, job: JobRuntime, hole: Hole) -> None:
        """Let a job's page numbers go on behind a hole."""
        keys = [
            PageKey(stream, p, self._last(hole, stream, p, last))
            for stream, lasts in job.last_pages().items()
            for p, last in enumerate(lasts)
        ]
        _skip_sinks(job, max(hole.before - 1, self._beat), keys)

    def _last(self, hole: Hole, stream: str, partition: int, last: int) -> int:
        """The number of the last page that a partition can have got in a hole."""
        behind = hole.next_pages.get((stream, partition))
        if behind is not None:
            return max(last, behind - 1)
        return max(last, self._numbers(stream, partition)) + hole.unknown_pages

    def replay(self, part: RecordPart, lost: Sequence[PageKey], beat: BeatContext) -> int:
        """Replay a beat; `lost` are its pages that are damaged.  Returns the rows taken."""
        self._adopt_unknown(part)
        inputs, rows = _Inputs(self._registry, part), 0
        for name, facts in part.facts.jobs.items():
            job = self._registry.get(name)
            if job is not None:
                keys = [key for key in (*part.pages, *lost) if key.stream in job.shipped()]
                mine = _Part(part, facts, inputs.of(name), keys, frozenset(lost))
                self._replay_job(job, mine, beat)
                rows += sum(f.rows for f in facts.streams.values())
        self.reached(part)
        return rows

    def _adopt_unknown(self, part: RecordPart) -> None:
        """Begin jobs with an empty state that are lost and known from their files."""
        for name in part.facts.jobs:
            if self._registry.find(name) is None and name not in self.unknown:
                job = self._adopt(name)
                if job is None or self._hole is None:
                    self.unknown.add(name)
                else:
                    self._lead_astray(job, "the job's document and state are lost")
                    self._number(job, self._hole)
                    lose_positions(job)

    def finish(self) -> list[Gap]:
        """The gaps of all jobs at the end of the log."""
        for name in list(self._astray):
            self._back(name)
        return self.gaps

    def _replay_job(self, job: JobRuntime, part: _Part, beat: BeatContext) -> None:
        name, facts, keys = job.plan.name, part.facts, part.keys
        if not part.record.logged:
            job.skip(beat.number, _known(job, facts), keys, self._context)
            return
        if part.arrays is None:
            self._restart(job, part, f"the inputs of beat {beat.number} do not fit the job")
            return
        again = list[SealedPage]()
        try:
            self._restore(job, facts, part.arrays)
            if name in self._astray:
                if facts.race:
                    job.operate(beat, facts)
                    job.consume(facts)
                _skip_sinks(job, beat.number, keys)
            elif part.equals(pages := job.step(beat, facts)):
                again = [page for page in pages if page.key in part.lost]
            else:
                self._lead_astray(job, "the replay gives other pages than the log has")
                _skip_sinks(job, beat.number, keys)
        except (OSError, MemoryError):
            raise
        except Exception as problem:  # an operator may refuse a state that no live run makes
            text = f"the replay of beat {beat.number} failed: {type(problem).__name__}: {problem}"
            self._restart(job, part, text)
        if again:
            self._regain(again)
        if name in self._astray and _sealed_all(job, facts):
            self._beat = beat.number
            self._back(name)

    def _restart(self, job: JobRuntime, part: _Part, text: str) -> None:
        """Go on with the positions of a record and an empty state."""
        self._clean.pop(job.plan.name, None)
        self._astray.pop(job.plan.name, None)
        self._lead_astray(job, text)
        job.skip(part.record.number, _known(job, part.facts), part.keys, self._context)

    def _restore(self, job: JobRuntime, facts: JobFacts, arrays: Arrays) -> None:
        """Restore staging and watermarks as `JobRuntime.replay`, with what is there."""
        waits = self._astray[job.plan.name].staged if job.plan.name in self._astray else {}
        facts.processed = None if self.passed else facts.processed
        for name, f in facts.streams.items():
            s = job.streams[name]
            producers = s.staging.producers
            if f.producers:
                producers.apply_behind_hole(f.producers)
                s.time.forget(f.producers["forgotten"])
            if f.logged_rows:
                batch, chunks = read_inputs(s.plan.schema, f, arrays)
                known = np.array([n == 0 or bool(id) for n, id in enumerate(producers.ids)])
                number = chunks.producer
                inside = number < known.size
                named = inside & known[np.where(inside, number, 0)]
                chunks = replace(chunks, producer=np.where(named, number, 0).astype(np.int32))
                s.staging.append_logged(batch, chunks)
            s.staging.refused_ahead = f.refused_ahead
            if f.reopen_us is not None:
                s.time.reopen(f.reopen_us)
            if f.set_aside:
                count, gone = _clamped(job, name, f.set_aside[0])
                s.time.take(s.staging.chunks(), count)
                s.staging.consume(count, gone)
            if facts.race:
                wanted = f.take_chunks + waits.pop(name, 0)
                f.take_chunks, f.take_rows = _clamped(job, name, wanted)
                s.time.take(s.staging.chunks(), f.take_chunks)

    def _lead_astray(self, job: JobRuntime, text: str) -> None:
        staged = {name: len(s.staging.chunks()) for name, s in job.streams.items()}
        before = self._clean.get(job.plan.name, {})
        since = self._astray.setdefault(
            job.plan.name, Astray(self._beat, self._wall_us, before, staged, text)
        )
        since.staged = staged

    def _back(self, name: str) -> None:
        """A job is back on its way: what it lost is known."""
        astray, job = self._astray.pop(name), self._registry.get(name)
        if job is not None:
            begun = f" from {_time(astray.wall_us)}" if astray.wall_us else ""
            until = f" until {_time(self._wall_us)}" if self._wall_us else ""
            detail = f"beats {astray.after + 1} to {self._beat}{begun}{until}; {astray.text}"
            self.gaps += batch_gaps(job, astray.positions, detail)


@dataclass(frozen=True)
class _Part:
    """One job's part of a record."""

    record: RecordPart
    facts: JobFacts
    arrays: Arrays | None
    keys: list[PageKey]
    """Its pages."""
    lost: frozenset[PageKey]

    def equals(self, pages: Iterable[SealedPage]) -> bool:
        """Whether these pages are those of the record that are not lost."""
        made = {page.key: bytes(page.data) for page in pages}
        logged = {key: self.record.pages[key] for key in self.keys if key not in self.lost}
        return logged == {key: data for key, data in made.items() if key not in self.lost}


def _time(wall_us: int) -> str:
    return datetime.fromtimestamp(wall_us / 1e6, timezone.utc).isoformat(timespec="seconds")


class _Inputs:
    """The arrays of a record, by job, where they can be told apart."""

    def __init__(self, registry: JobRegistry, part: RecordPart) -> None:
        counts: dict[str, int | None] = {}
        for name, facts in part.facts.jobs.items():
            counts[name] = _count(registry, name, facts)
        known = sum(n for n in counts.values() if n is not None)
        rest = len(part.inputs) - known
        unknown = [name for name, n in counts.items() if n is None]
        self._of: dict[str, list[npt.NDArray[np.uint8]]] = {}
        if rest < 0 or (len(unknown) != 1 and rest > 0):
            return
        at = 0
        for name, n in counts.items():
            count = rest if n is None else n
            arrays = part.inputs[at : at + count]
            job = registry.get(name)
            if job is None or _fit(job, part.facts.jobs[name], arrays):
                self._of[name] = arrays
            at += count

    def of(self, name: str) -> Arrays | None:
        """The arrays of a job; None where they do not fit its schema."""
        found = self._of.get(name)
        return None if found is None else iter(found)


def _count(registry: JobRegistry, name: str, facts: JobFacts) -> int | None:
    """The number of a job's arrays; None where its schema is not known."""
    if not any(f.logged_rows for f in facts.streams.values()):
        return 0
    job, shelved = registry.get(name), registry.shelved.get(name)
    if shelved is not None:
        return shelved.count_inputs(facts)
    if job is None or not facts.streams.keys() <= job.streams.keys():
        return None
    logged = (job.streams[s] for s, f in facts.streams.items() if f.logged_rows)
    return sum(input_count(s.plan.schema) for s in logged)


def _fit(job: JobRuntime, facts: JobFacts, arrays: list[npt.NDArray[np.uint8]]) -> bool:
    """Whether arrays have the sizes that the job's schemas give them."""
    if not facts.streams.keys() <= job.streams.keys():
        return False
    at = 0
    for name, f in facts.streams.items():
        if f.logged_rows:
            schema = job.streams[name].plan.schema
            sizes = _sizes(schema, f)
            found = [array.size for array in arrays[at : at + len(sizes)]]
            if len(found) != len(sizes):
                return False
            if any(w is not None and w != n for w, n in zip(sizes, found, strict=True)):
                return False
            at += len(sizes)
    return at == len(arrays)


def _sizes(schema: Schema, f: StreamFacts) -> list[int | None]:
    """The bytes of each array of a stream's logged rows; None: it is variable."""
    rows, chunks = f.logged_rows, f.logged_chunks
    sizes: list[int | None] = [4 * chunks, 8 * chunks, 8 * chunks, 8 * chunks]
    for field_ in schema:
        if field_.dtype.variable:
            sizes += [8 * (rows + 1), None]
        else:
            sizes.append(rows * np.dtype(field_.dtype.numpy).itemsize)
        if field_.nullable:
            sizes.append(rows)
    return sizes


def _clamped(job: JobRuntime, stream: str, chunks: int) -> tuple[int, int]:
    """At most `chunks` staged chunks of a stream, and their rows."""
    staged = job.streams[stream].staging.chunks()
    count = min(chunks, len(staged))
    return count, int(staged.stop[count - 1]) if count else 0


def _known(job: JobRuntime, facts: JobFacts) -> JobFacts:
    """The facts without streams that the job does not have, and producers without a name."""
    streams = {}
    for name, f in facts.streams.items():
        if name in job.streams:
            if f.producers:
                job.streams[name].staging.producers.apply_behind_hole(f.producers)
            streams[name] = replace(f, producers={})
    return replace(facts, streams=streams)


def _skip_sinks(job: JobRuntime, beat: int, keys: list[PageKey]) -> None:
    """Drop what is open in the sinks; pages go on behind `keys`."""
    for sink in job.sinks.values():
        partitions = {s: len(lasts) for s, lasts in sink.numbers().items()}
        mine = [key for key in keys if key.partition < partitions.get(key.stream, 0)]
        sink.skip(beat, mine)


def _sealed_all(job: JobRuntime, facts: JobFacts) -> bool:
    """Whether nothing that the job took can be open after a beat."""
    if not facts.race or job.staged() or job.waiting() or job.schedules.waiting():
        return False
    return all(
        sink.numbers() and facts.flush >= (Flush.PROMPT if sink.prompt else Flush.ALL)
        for sink in job.sinks.values()
    )


def lose_positions(job: JobRuntime) -> None:
    """Let producers go on ahead of their numbers, which may be too low."""
    for s in job.streams.values():
        s.staging.producers.lose_positions()


def positions(job: JobRuntime) -> Positions:
    """The last batch of each producer."""
    found: Positions = {}
    for name, s in job.streams.items():
        producers = s.staging.producers
        found[name] = {id: int(producers.seq[n]) for n, id in enumerate(producers.ids) if id}
    return found


def batch_gaps(job: JobRuntime, before: Mapping[str, Mapping[str, int]], detail: str) -> list[Gap]:
    """A gap for each producer that has got ahead of its number in `before`."""
    gaps = []
    for stream, numbers in positions(job).items():
        known = before.get(stream, {})
        for producer, last in numbers.items():
            first = known.get(producer, 0) + 1
            if last >= first:
                gaps.append(
                    Gap(DAMAGED, stream, first, last, None, job.plan.name, producer, detail=detail)
                )
    return gaps
