"""The running sources of all jobs: which streams share one, and how they follow the jobs.

Streams of any jobs that name the same listener share one source.  When the jobs change, the sources
concerned are closed and rebuilt between two beats, with no commit in flight.  All staged rows are
durable then, so that producers that reconnect get the right sequence numbers.  Other sources are
not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from edged.beat.lasting_counts import LastingCounts, growing
from edged.beat.runtime import JobRuntime
from edged.beat.shelf import SHELVED, ShelvedJob
from edged.beat.stats import SourceStalls
from edged.beat.stream_runtime import StreamRuntime
from edged.data.staging import Staging
from edged.data.workers import Workers
from edged.errors import CommandError, ConfigError, JobError
from edged.events.publisher import EventPublisher
from edged.job.plan import JobPlan
from edged.job.promises import REJECT
from edged.platform.event_loop import EventLoop
from edged.sources.base import Source, SourcePlan

Member: TypeAlias = tuple[str, str, Staging, SourcePlan]
"""Job, stream, the stream's staging, and the plan of its source."""
Groups: TypeAlias = dict[str, list[Member]]


class Fed(Protocol):
    """A job whose streams are fed: a running one, or one that is only checked."""

    plan: JobPlan
    streams: dict[str, StreamRuntime]
    problem: str


class Inputs:
    """The running sources, in `sources`, which stays the same object."""

    def __init__(
        self,
        event_loop: EventLoop,
        workers: Workers,
        publisher: EventPublisher,
        directory: Path = Path(),
        files: Path = Path(),
        shelved: Mapping[str, ShelvedJob] | None = None,
    ) -> None:
        """`directory` is the store's; relative paths of jobs start at `files`.  `shelved` has the
        jobs whose producers are to come back later."""
        self._shelved = {} if shelved is None else shelved
        self.sources: list[Source] = []
        self._event_loop, self._workers = event_loop, workers
        self._publisher, self._places = publisher, (directory, files)
        self._running: dict[str, tuple[list[Member], Source]] = {}
        self._stagings: dict[str, tuple[list[Staging], int]] = {}
        """By source, its stagings and the rows that they had received before it."""
        self._lasting: LastingCounts[str] = LastingCounts()
        self._store_full = False

    def start(self, jobs: Sequence[JobRuntime]) -> None:
        """Start the sources of the recovered jobs.

        If a source cannot be started, its jobs get a `problem` and take no part in beats.  Raises
        ConfigError or JobError where a job of a file needs that source.
        """
        for owners, problem in self._begin(jobs):
            if any(job.meta.from_file for job in owners):
                raise problem
            for job in owners:
                job.problem = str(problem)

    def restore(self, jobs: Sequence[JobRuntime]) -> list[JobRuntime]:
        """Run the sources of these jobs again after `fit` has failed.

        Returns the jobs whose source could not be started again, for example because its port was
        taken meanwhile.  They have a `problem` until they are resumed.
        """
        groups = _groups([job for job in jobs if not job.problem])
        for key in list(self._running):
            if key not in groups or not _same(groups[key], self._running[key][0]):
                self._remove(key)
        failed: list[JobRuntime] = []
        for owners, problem in self._begin([job for job in jobs if not job.problem]):
            failed += [job for job in owners if job not in failed]
            for job in owners:
                job.problem = str(problem)
        return failed

    def blocked_by_links(
        self, jobs: Sequence[JobRuntime], stalls: SourceStalls, now_us: int
    ) -> bool:
        """Whether a beat of these jobs could neither take rows, because links are full, nor stage
        any.  Sources are not read then: a beat that only stages rows costs as much as another, a
        tenth of the CPU time of three such hops in a row.  The record of a job with a log says that
        it is throttled before.
        """
        if not jobs or not all(j.full and (j.throttled or not j.plan.promises.logs) for j in jobs):
            return False
        for job in jobs:
            job.throttled = True
        for source in self.sources:
            stalls.note(source.name, True, now_us)
        return True

    def heed_store(self, full: bool, jobs: Sequence[JobRuntime], monotonic_us: int) -> None:
        """While the store is full, refuse the senders of jobs that want it (`when_full`)."""
        if not full and not self._store_full:
            return
        self._store_full = full
        names = {j.plan.name for j in jobs if full and j.plan.promises.when_full == REJECT}
        for members, source in self._running.values():
            streams = frozenset(name for job, name, _, _ in members if job in names)
            source.reject(streams, monotonic_us)

    def check(self, jobs: Sequence[Fed]) -> None:
        """Raise as `fit` would; nothing changes."""
        groups = _groups([job for job in jobs if not job.problem])
        stays = self._staying(groups)
        leaving = [source for key, (_, source) in self._running.items() if key not in stays]
        new: list[Source] = []
        try:
            for key, members in groups.items():
                if key not in stays:
                    new.append(_build(members, self._workers, *self._places))
            for source in new:
                source.check(leaving)
        except ConfigError as problem:
            raise _cannot_start(problem) from problem
        finally:
            for source in new:
                with suppress(Exception):  # some third party's may rely on a start before it
                    source.close()

    def fit(self, jobs: Sequence[Fed]) -> None:
        """Run the sources that these jobs need, and no others.

        Raises JobError where streams cannot share a source, CommandError where a source cannot be
        started.  The caller then calls `restore` with the unchanged jobs.
        """
        groups = _groups([job for job in jobs if not job.problem])
        stays = self._staying(groups)
        new = {
            key: _build(members, self._workers, *self._places)
            for key, members in groups.items()
            if key not in stays
        }
        for key in [key for key in self._running if key not in stays]:
            self._remove(key)
        for key, source in new.items():
            try:
                source.start()
            except ConfigError as problem:
                raise _cannot_start(problem) from problem
            self._add(key, groups[key], source)

    def counters(self, source: Source) -> dict[str, Any]:
        """The counters of a running source, `rows` included, with those of the earlier sources of
        its name."""
        counters = self._counters(source)
        return {**self._lasting.ahead(source.name), **self._lasting.shown(source.name, counters)}

    def close(self) -> None:
        """Close all sources."""
        for source in self.sources:
            source.close()

    def _staying(self, groups: Groups) -> set[str]:
        """The running sources that these groups can use as they are."""
        return {
            key
            for key, members in groups.items()
            if key in self._running and _same(members, self._running[key][0])
        }

    def _begin(
        self, jobs: Sequence[JobRuntime]
    ) -> Iterator[tuple[list[JobRuntime], ConfigError | JobError]]:
        """Start missing sources; yields the jobs of each source that cannot be started, and why."""
        for key, members in _groups(jobs).items():
            if key in self._running:
                continue
            try:
                source = _build(members, self._workers, *self._places)
                source.start()
            except (ConfigError, JobError) as problem:
                names = {job for job, *_ in members}
                yield [job for job in jobs if job.plan.name in names], problem
            else:
                self._add(key, members, source)

    def _add(self, key: str, members: list[Member], source: Source) -> None:
        self._running[key] = (members, source)
        source.on_refused = partial(self._on_refused, source)
        source.on_defect = partial(self._publisher.peer_defect, source.name)
        source.away = partial(self._away, key)
        stagings = [staging for _, _, staging, _ in members]
        self._stagings[source.name] = stagings, sum(s.received for s in stagings)
        self.sources.append(source)
        self._event_loop.add_source(source)

    def _on_refused(self, source: Source, reason: str, text: str) -> None:
        self._publisher.source_refused(source.name, reason, text)

    def _away(self, key: str, stream: str) -> str:
        """Why a stream of this listener is not read: its job is shelved.  Empty for others."""
        for job in list(self._shelved.values()):
            if job.reads(key, stream):
                return f"job {job.name}, which reads {stream}, is {SHELVED}: {job.reason}"
        return ""

    def _remove(self, key: str) -> None:
        _, source = self._running.pop(key)
        self.sources.remove(source)
        counted = growing(self._counters(source), source.gauges)
        self._lasting.move({source.name: counted}, {}, [s.name for s in self.sources])
        del self._stagings[source.name]
        self._event_loop.remove_source(source)
        source.close()

    def _counters(self, source: Source) -> dict[str, Any]:
        stagings, before = self._stagings[source.name]
        return {"rows": sum(s.received for s in stagings) - before, **source.counters()}


def _cannot_start(problem: ConfigError) -> CommandError:
    return CommandError("conflict", str(problem), where="streams")


def _groups(jobs: Sequence[Fed]) -> Groups:
    groups: Groups = {}
    for job in jobs:
        for name, s in job.streams.items():
            plan = s.plan.source
            key = plan.share_key() if plan.listens else f"{plan.share_key()} {job.plan.name}"
            groups.setdefault(key, []).append((job.plan.name, name, s.staging, plan))
    return groups


def _same(some: Sequence[Member], others: Sequence[Member]) -> bool:
    """Whether both can use the same source: the same stagings, with equal plans."""
    return len(some) == len(others) and all(
        a[2] is b[2] and (a[0], a[1], a[3]) == (b[0], b[1], b[3])
        for a, b in zip(some, others, strict=True)
    )


def _build(members: Sequence[Member], workers: Workers, directory: Path, files: Path) -> Source:
    """The source, not started.  Raises JobError where two streams have one name."""
    stagings: dict[str, Staging] = {}
    for job, name, staging, plan in members:
        if name in stagings:
            other = next(j for j, n, _, _ in members if n == name)
            raise JobError(
                f"streams.{name}.source",
                f"jobs {other} and {job} both have a stream {name} on {plan.share_key()}",
                "give one of them another name or another listener",
            )
        stagings[name] = staging
    first = members[0][3]
    source = first.build(stagings, {name: plan for _, name, _, plan in members}, workers)
    source.kind = first.kind
    source.address = first.share_key().removeprefix(f"{first.kind}:")
    if not first.listens:
        source.address = f"{members[0][0]}/{source.address}"
    source.feeds = tuple((job, name) for job, name, _, _ in members)
    source.place(directory, files)
    return source
