"""The starting point of a recovery: snapshot and chain of records, also past damage.

Which snapshot is the base, in this order:

1. the newest whole one from which the log leads on without a hole;
2. the newest one whose facts are whole: arrays that are damaged are left out (`Snapshot.missing`);
3. the newest whole one, with a hole behind it; without any, the empty state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edged.pages.header import HEADER_BYTES
from edged.platform.disk import Disk
from edged.store import recovery
from edged.store.page_index import Route
from edged.store.patient_file import open_patiently
from edged.store.records import PAGE_ENTRY_BYTES, BeatRecord, Hole, PageEntry
from edged.store.recovery import Linked
from edged.store.salvage import Salvage, carve
from edged.store.segments import Region, Scanned, Segment
from edged.store.snapshot_files import SnapshotFiles
from edged.store.snapshots import Snapshot

_PAGE_BYTES_MIN = PAGE_ENTRY_BYTES + HEADER_BYTES


@dataclass
class Recovery:
    """The starting point of a recovery: the newest valid snapshot, and the records after it, oldest
    first.

    The records are read one by one as the iterator advances, and must be consumed before the next
    `snapshot`.
    """

    snapshot: Snapshot | None
    records: Iterator[BeatRecord]
    end: Hole | None = None
    """Durable beats behind the last record that are lost."""


@dataclass(frozen=True)
class LogHole:
    """A hole in the chain, with the places of the whole pages in it."""

    hole: Hole
    pages: list[tuple[Segment, list[PageEntry]]]


@dataclass
class StartingPoint:
    """What a start goes on from."""

    snapshot: Snapshot | None
    scanned: list[Scanned]
    chain: list[Linked]
    damaged: dict[int, str]
    """Damaged snapshots and their problems."""
    holes: dict[int, LogHole] = field(default_factory=dict)
    """By the beat behind each."""

    @property
    def base(self) -> int:
        """The snapshot's beat; 0 without one."""
        return self.snapshot.beat if self.snapshot else 0

    @property
    def end(self) -> Hole | None:
        """The hole behind the chain."""
        newest = max([self.base, *(x.number for x in self.chain)])
        return next((h.hole for beat, h in self.holes.items() if beat > newest), None)

    def holes_above(self) -> dict[int, Hole]:
        """The holes that a replay has to pass, by the beat behind each."""
        return {beat: found.hole for beat, found in self.holes.items()
                if not found.hole.is_below(self.base)}  # fmt: skip

    def ranges(self) -> list[tuple[int, int]]:
        """`after` and `before` of each hole."""
        found = [(x.after, x.number) for x in self.chain if x.after is not None]
        end = recovery.lost_end(self.scanned, self.chain, self.base, list(self.damaged))
        return found + ([end] if end else [])


def find_start(
    scanned: list[Scanned],
    snapshots: SnapshotFiles,
    disk: Disk,
    epoch: int,
    segment_bytes: int,
    salvage: Salvage,
) -> StartingPoint:
    """The starting point of scanned segments and snapshots; `salvage` gets what is damaged."""
    snapshot, damaged = snapshots.scan()
    start = StartingPoint(snapshot, scanned, [], damaged)
    _link(start)
    if damaged and any(before > start.base for _, before in start.ranges()):
        partly = snapshots.newest_partly(damaged)
        if partly is not None:
            start.snapshot = partly
            _link(start)
    finder = _HoleFinder(start, disk, epoch, segment_bytes)
    for after, before in start.ranges():
        start.holes[before] = finder.hole(after, before)
    _report_log(start, salvage)
    _report_snapshots(start, snapshots, salvage)
    return start


def check_numbers(
    start: StartingPoint,
    hint: Mapping[Route, int],
    newest: Mapping[Route, int],
    salvage: Salvage,
) -> None:
    """Add a hole at the end where pages existed (`hint`) that are beyond all that were found: the
    end of the log is gone, with nothing in it that could prove so."""
    gone = sorted(route for route, seq in hint.items() if seq > newest.get(route, 0))
    if gone and not start.holes:
        reached = max([start.base, *(x.number for x in start.chain)])
        text = "the last pages are gone, with the end of the log or a file of the spool"
        start.holes[reached + 1] = LogHole(Hole(reached, reached + 1, text=text), [])
        lost = "; ".join(f"{s}/{p}: pages up to {hint[s, p]}" for s, p in gone)
        salvage.note("log", 0, 0, "log", text, lost, "")


def _link(start: StartingPoint) -> None:
    start.chain = recovery.link(start.scanned, start.base, start.snapshot is not None)


class _HoleFinder:
    """Finds what is known of the beats and pages in the holes of one log."""

    def __init__(self, start: StartingPoint, disk: Disk, epoch: int, segment_bytes: int) -> None:
        self._start, self._disk, self._epoch = start, disk, epoch
        self._segment_bytes = segment_bytes

    def hole(self, after: int, before: int) -> LogHole:
        """The hole between two beats."""
        regions = list(self._regions(after, before))
        pages: list[tuple[Segment, list[PageEntry]]] = []
        for segment, region in regions:
            file = open_patiently(self._disk, segment.path)
            try:
                of = range(after + 1, before).__contains__
                found = carve(file, region.start, region.end, self._epoch, of)
            finally:
                file.close()
            if found:
                pages.append((segment, found))
        whole = tuple(page.key for _, found in pages for page in found)
        text = "; ".join(f"{segment.path}, bytes {r.start} to {r.end}" for segment, r in regions)
        unknown = self._unknown(regions, pages, after, before)
        return LogHole(Hole(after, before, whole, self._next_pages(before), unknown, text), pages)

    def _regions(self, after: int, before: int) -> Iterable[tuple[Segment, Region]]:
        """The damaged bytes that held these beats; without any known, the ends of the segments."""
        parts = self._start.scanned
        inner = [
            (part.segment, r)
            for part in parts
            for r in part.regions
            if r.after < before and after < r.before
        ]
        if inner or before - after < 2:
            return inner
        return [
            (s, Region(0 if part.foreign else s.end, s.size, after, before, ()))
            for part in parts
            for s in [part.segment]
            if (part.foreign or after <= (s.last or s.follows) < before) and s.end < s.size
        ]

    def _next_pages(self, before: int) -> dict[Route, int]:
        """The first page of each partition in the records behind a hole."""
        first: dict[Route, int] = {}
        for x in self._start.chain:
            if x.number >= before:
                for page in (*x.entry.pages, *x.entry.lost):
                    first.setdefault((page.key.stream, page.key.partition), page.key.seq)
        return first

    def _unknown(
        self,
        regions: Sequence[tuple[Segment, Region]],
        pages: Sequence[tuple[Segment, list[PageEntry]]],
        after: int,
        before: int,
    ) -> int:
        """Upper bound of the pages in a hole that were not found."""
        if before - after < 2:
            return 0
        if not regions:
            start = self._start
            retired = any(after <= beat for beat in start.damaged)  # behind a snapshot of then
            gone = before > start.base and not retired
            return self._segment_bytes // _PAGE_BYTES_MIN if gone else 0
        known = rest = 0
        for _, region in regions:
            rest += region.end - region.start
            for header in region.headers:
                known += header.pages
                rest -= header.length
        found = [page for _, group in pages for page in group]
        if not any(region.headers for _, region in regions):
            rest -= sum(page.length + PAGE_ENTRY_BYTES for page in found)
            return max(0, rest // _PAGE_BYTES_MIN)
        return max(0, known - len(found)) + max(0, rest // _PAGE_BYTES_MIN)


def _report_log(start: StartingPoint, salvage: Salvage) -> None:
    for part in start.scanned:
        path = part.segment.path
        if part.problem:
            lost = "its beats" if part.foreign else ""
            salvage.add(path, 0, 4096, "log segment", part.problem, lost)
        for r in part.regions:
            whose = "pages of " if r.before <= start.base + 1 else ""
            lost = f"{whose}beats after {r.after} and before {r.before}"
            problem = "damaged though it was durable"
            salvage.add(path, r.start, r.end - r.start, "log record", problem, lost)
        for entry in part.entries:
            for page in entry.lost:
                problem = f"the bytes of page {page.key.seq} of {page.key.stream} are damaged"
                lost = "the page, unless the replay makes it again"
                salvage.add(path, page.offset, page.length, "page", problem, lost)
    covered = {(r.after, r.before) for part in start.scanned for r in part.regions}
    for found in start.holes.values():
        hole = found.hole
        if hole.before - hole.after > 1 and (hole.after, hole.before) not in covered:
            lost = f"beats {hole.after + 1} to {hole.before - 1}"
            problem = f"durable records are gone{hole.text and ': '}{hole.text}"
            salvage.note("log", 0, 0, "log", problem, lost, "")


def _report_snapshots(start: StartingPoint, snapshots: SnapshotFiles, salvage: Salvage) -> None:
    for beat, problem in start.damaged.items():
        if start.snapshot is not None and beat == start.base:
            missing = ", ".join(sorted(start.snapshot.missing))
            snapshots.report(beat, problem, f"the state in {missing}", salvage)
        elif start.holes or start.base in start.damaged:
            lost = "the state that the log does not lead to" if start.holes else ""
            snapshots.report(beat, problem, lost, salvage)
        else:
            snapshots.set_aside(beat, problem, salvage)
