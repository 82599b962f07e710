"""What a recovery lost, as gaps in the store, and the parts of a damaged snapshot that are whole.

A snapshot's arrays belong to streams, operators and sinks of jobs.  A part with a damaged array
starts empty, except for what is whole and stands alone: a stream's producers, and a sink's page
numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from edged.beat.holes import batch_gaps
from edged.beat.jobs import JobRegistry, Retired
from edged.beat.replay import AwaitRoom
from edged.beat.runtime import JobRuntime
from edged.data.flow import State
from edged.pages.sealed import PageKey, SealedPage
from edged.store import Snapshot, Store, StoreFull
from edged.store.gaps import DAMAGED, Gap

Numbers = Mapping[str, Sequence[int]]
"""The last page of each partition, by stream."""


class Losses:
    """The losses of one recovery."""

    def __init__(
        self,
        store: Store,
        registry: JobRegistry,
        await_room: AwaitRoom | None,
    ) -> None:
        self._store, self._registry, self._await_room = store, registry, await_room
        self._numbers = store.page_numbers()
        self._gaps: list[Gap] = []

    def last_page(self, stream: str, partition: int) -> int:
        """The highest page number of a partition that the store knows of."""
        return self._numbers.get((stream, partition), 0)

    def missing_parts(self, snapshot: Snapshot, job: str) -> set[str]:
        """The parts of a job with a damaged array: `streams/<id>`, `operators/<id>`, …"""
        names = (name.removeprefix(f"{job}/") for name in snapshot.missing)
        mine = (name for name, whole in zip(names, snapshot.missing, strict=True) if name != whole)
        return {"/".join(name.split("/")[:2]) for name in mine}

    def restore(self, job: JobRuntime, arrays: State, missing: set[str], last: Numbers) -> None:
        """Restore what is whole of damaged parts, and record the rest as lost."""
        if not missing:
            return
        for part in missing:
            kind, name = part.split("/")
            producers = arrays.get(f"{part}/staging/producers")
            fed = kind in ("streams", "tables")
            if fed and producers is not None:
                job.streams[name].staging.producers.restore(json.loads(producers.tobytes()))
            elif fed:
                job.streams[name].staging.producers.lose_positions()
        number_behind(job, last)
        detail = f"the snapshot's state of {', '.join(sorted(missing))} of job {job.plan.name}"
        self._gaps += batch_gaps(job, {}, f"rows among these were only in {detail}")

    def settle(self, gaps: Iterable[Gap], beat: int, wall_us: int) -> None:
        """Record all gaps durably, and number pages behind all that were used."""
        self._gaps += gaps
        jobs: list[tuple[str, Numbers]] = []
        for job in self._registry.list:
            number_behind(job, self._known(job.last_pages()), beat)
            jobs.append((job.plan.name, job.last_pages()))
        for name, shelved in self._registry.shelved.items():
            shelved.last = {s: list(n) for s, n in self._known(shelved.last).items()}
            jobs.append((name, shelved.last))
        self._retire({stream for _, last in jobs for stream in last})
        jobs += [("", {stream: retired.last}) for stream, retired in self._registry.retired.items()]
        for name, last in jobs:
            self._gaps += self._page_gaps(name, last)
        found = [replace(gap, found_us=wall_us) for gap in self._gaps]
        self._in_room(lambda: self._store.record_gaps(found))

    def _known(self, last: Numbers) -> Numbers:
        return {
            stream: [max(n, self.last_page(stream, p)) for p, n in enumerate(numbers)]
            for stream, numbers in last.items()
        }

    def _retire(self, shipped: set[str]) -> None:
        """Keep the numbers of streams whose jobs are lost."""
        for (stream, partition), seq in self._numbers.items():
            if stream not in shipped:
                last = self._registry.retired.setdefault(stream, Retired()).last
                last += [0] * (partition + 1 - len(last))
                last[partition] = max(last[partition], seq)

    def _page_gaps(self, job: str, last: Numbers) -> list[Gap]:
        return [
            Gap(DAMAGED, stream, first, until, p, job, detail="neither stored nor acknowledged")
            for stream, numbers in last.items()
            for p, number in enumerate(numbers)
            for first, until in self._store.missing_pages(stream, p, number)
        ]

    def regain(self, pages: Sequence[SealedPage]) -> None:
        """Keep pages that the replay has made again and the log has lost."""
        self._in_room(lambda: self._store.regain(pages))

    def _in_room(self, task: Callable[[], None]) -> None:
        """Do `task` once the disk has room for it."""
        while True:
            try:
                return task()
            except StoreFull as problem:
                if self._await_room is None:
                    raise
                self._await_room(OSError(28, str(problem)))


def whole_parts(arrays: State, missing: set[str]) -> State:
    """The arrays of the parts that are not `missing`."""
    return {k: v for k, v in arrays.items() if "/".join(k.split("/")[:2]) not in missing}


def number_behind(job: JobRuntime, last: Numbers, beat: int = 0) -> None:
    """Let page numbers go on behind `last` where they would repeat it; open pages of such a sink
    are dropped."""
    for sink in job.sinks.values():
        keys = [
            PageKey(stream, p, last[stream][p])
            for stream, numbers in sink.numbers().items()
            for p, number in enumerate(numbers)
            if p < len(last.get(stream, ())) and last[stream][p] > number
        ]
        if keys:
            sink.skip(beat, keys)
