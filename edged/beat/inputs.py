"""The sources of all jobs together: which streams share one, and how they follow the jobs.

Streams of any jobs that name one listener share it.  Where the jobs change, the sources concerned
are closed and built anew between two beats, with no commit under way: all that they staged is
durable then, so that their producers, who connect again, are told the right numbers.  All others
go on untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from edged.beat.runtime import JobRuntime
from edged.data.staging import Staging
from edged.data.workers import Workers
from edged.errors import CommandError, ConfigError, JobError
from edged.platform.event_loop import Waiter
from edged.sources.base import Source, SourcePlan

Member: TypeAlias = tuple[str, str, Staging, SourcePlan]
"""Job, stream, and what the source needs of it."""
Refused: TypeAlias = Callable[[Source, str, str], None]
"""The source, a word for the reason, and what the sender was told."""
Groups: TypeAlias = dict[str, list[Member]]


class Inputs:
    """The running sources, in `sources`, which stays the same object."""

    def __init__(self, waiter: Waiter, workers: Workers, directory: Path = Path()) -> None:
        self.sources: list[Source] = []
        self.refused: Refused = lambda *_: None
        """Told of senders that a source refuses."""
        self._waiter, self._workers, self._directory = waiter, workers, directory
        self._running: dict[str, tuple[list[Member], Source]] = {}

    def start(self, jobs: Sequence[JobRuntime]) -> None:
        """Start what the recovered jobs need.

        Where a source cannot be started, jobs that came through the door have a `problem` and take
        no part; raises ConfigError where a job of a file needs it.
        """
        for owners, problem in self._begin(jobs):
            if any(job.about.from_file for job in owners):
                raise problem
            for job in owners:
                job.problem = str(problem)

    def restore(self, jobs: Sequence[JobRuntime]) -> list[JobRuntime]:
        """After `fit` could not: run what these jobs needed before.  Where somebody has taken a
        port meanwhile, its jobs have a `problem` until they are resumed; returns those."""
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

    def fit(self, jobs: Sequence[JobRuntime]) -> None:
        """Run what these jobs need, and nothing else.

        Raises JobError where streams do not go together, CommandError where a source cannot be
        started; `restore` then has the sources of before run again.
        """
        groups = _groups([job for job in jobs if not job.problem])
        stays = {
            key
            for key, members in groups.items()
            if key in self._running and _same(members, self._running[key][0])
        }
        new = {
            key: _build(members, self._workers, self._directory)
            for key, members in groups.items()
            if key not in stays
        }
        for key in [key for key in self._running if key not in stays]:
            self._remove(key)
        for key, source in new.items():
            try:
                source.start()
            except ConfigError as problem:
                raise CommandError("conflict", str(problem), where="streams") from problem
            self._add(key, groups[key], source)

    def close(self) -> None:
        """Close them all."""
        for source in self.sources:
            source.close()

    def _begin(
        self, jobs: Sequence[JobRuntime]
    ) -> Iterator[tuple[list[JobRuntime], ConfigError | JobError]]:
        """Start what these jobs need and does not run; those whose source cannot be started."""
        for key, members in _groups(jobs).items():
            if key in self._running:
                continue
            try:
                source = _build(members, self._workers, self._directory)
                source.start()
            except (ConfigError, JobError) as problem:
                names = {job for job, *_ in members}
                yield [job for job in jobs if job.plan.name in names], problem
            else:
                self._add(key, members, source)

    def _add(self, key: str, members: list[Member], source: Source) -> None:
        self._running[key] = (members, source)
        source.refused = lambda reason, text: self.refused(source, reason, text)
        self.sources.append(source)
        self._waiter.add_source(source)

    def _remove(self, key: str) -> None:
        _, source = self._running.pop(key)
        self.sources.remove(source)
        self._waiter.remove_source(source)
        source.close()


def _groups(jobs: Sequence[JobRuntime]) -> Groups:
    groups: Groups = {}
    for job in jobs:
        for name, s in job.streams.items():
            plan = s.plan.source
            key = plan.share_key() if plan.listens else f"{plan.share_key()} {job.plan.name}"
            groups.setdefault(key, []).append((job.plan.name, name, s.staging, plan))
    return groups


def _same(some: Sequence[Member], others: Sequence[Member]) -> bool:
    """Whether a source for the one does for the other: the same stagings, with equal plans."""
    return len(some) == len(others) and all(
        a[2] is b[2] and (a[0], a[1], a[3]) == (b[0], b[1], b[3])
        for a, b in zip(some, others, strict=True)
    )


def _build(members: Sequence[Member], workers: Workers, directory: Path) -> Source:
    """The source, not started yet.  Raises JobError where its streams do not go together."""
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
    source.place(directory)
    return source
