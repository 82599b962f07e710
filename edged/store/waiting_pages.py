"""The pages that wait for an ack: their moves from retired segments to the spool, and the ways in
which they are lost.

A page is given up because the store is full, or set aside because its bytes are damaged.  Its gap
is durable before the page leaves the index.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from edged.pages.sealed import PageKey, SealedPage
from edged.platform.disk import Disk
from edged.store.dropped_pages import gaps_of
from edged.store.errors import StoreFull, no_room
from edged.store.gaps import DAMAGED, Gap, GapLog
from edged.store.log import SegmentLog
from edged.store.page_index import Holder, PageIndex, PageRef, PendingPage
from edged.store.patient_file import open_patiently
from edged.store.records import PageEntry
from edged.store.salvage import Salvage
from edged.store.segments import Segment
from edged.store.snapshot_files import SnapshotFiles
from edged.store.spool import DamagedPage, Spool, SpoolFile


@dataclass
class WaitingPages:
    """The waiting pages of one store; the thread of its commits only."""

    disk: Disk
    log: SegmentLog
    spool: Spool
    index: PageIndex
    snapshots: SnapshotFiles
    gaps: GapLog
    salvage: Salvage
    apart: Set[str] = frozenset()
    """Streams whose pages a full store gives up: the spool keeps them in files of their own."""
    untold: list[Gap] = field(default_factory=list)
    """Gaps of pages that the uplink has not been told of."""
    lost: dict[PageKey, PageEntry] = field(default_factory=dict)
    """Pages of records that a replay repeats whose bytes in the log are damaged."""

    def retire(self, move: bool) -> list[PageRef]:
        """Retire the oldest segments that the snapshot covers.  With `move` their unacked pages go
        to the spool first; without it the first segment with unacked pages ends the list."""
        old: list[Segment] = []
        for segment in self.log.sealed():
            if segment.last > self.snapshots.beat or (segment.places and not move):
                break
            old.append(segment)
        refs: list[PageRef] = []
        try:
            while True:
                places = self.index.places(old)
                reusable = [s for s in old if not s.places]
                try:
                    written = self.spool.write(places, self.apart)
                    break
                except DamagedPage as damage:
                    self.set_aside(damage.place)
        except StoreFull:
            return self.retire(move=False)
        for spool, entries in written:
            self.index.move(spool, entries, old)
            refs += [PageRef(e.key, spool.path, e.offset, e.length) for e in entries]
            if not spool.places:
                self.spool.delete(spool)
        self.log.retire(old, reusable)
        return refs

    def droppable(self) -> list[Holder]:
        """The files whose pages may be given up, oldest first: those that no replay needs."""
        retired = [s for s in self.log.sealed() if s.last <= self.snapshots.beat]
        return [*self.spool.files(), *retired]

    def give_up(self, holder: Holder, jobs: Mapping[str, str], at_us: int) -> list[Gap] | None:
        """Record as lost the pages of the streams in `jobs` (stream: job) of a file, and those
        before them, because the store is full; None: there are none.

        The caller then counts them as acked.  Raises StoreFull where there is no room for that.
        """
        pages = self.index.before([p for p in holder.places.values() if p.key.stream in jobs])
        if not pages:
            return None
        gaps = gaps_of(self.disk, pages, jobs, at_us)
        self.record(gaps)
        return gaps

    def check(self, stream: str, partition: int) -> None:
        """Set the first page of a partition aside if its bytes are damaged."""
        place = self.index.first(stream, partition)
        if place is not None and not self._is_whole(place):
            self.set_aside(place)

    def check_all(self) -> None:
        """Set every page aside whose bytes are damaged."""
        for holder in (*self.spool.files(), *self.log.segments):
            for place in self.index.places([holder]):
                if not self._is_whole(place):
                    self.set_aside(place)

    def lose_missing(self, stream: str, partition: int, expected: int) -> None:
        """Record as lost what the centre asks for and no file has: the numbers from `expected` to
        the first pending page that are neither acked nor pending."""
        first = self.index.first(stream, partition)
        if first is None:
            return
        for start, last in self.index.missing(stream, partition, first.key.seq - 1):
            if last < expected:
                continue
            start = max(start, expected)
            detail = "the centre asks for them, and no file has them"
            self.record([Gap(DAMAGED, stream, start, last, partition, detail=detail)])
            lost = f"pages {start} to {last} of {stream}, partition {partition}"
            self.salvage.note(self.spool.directory, 0, 0, "spool file", detail, lost, "")

    def renew_gaps(self, path: str) -> None:
        """Write the file of gaps again if it is damaged."""
        if self.gaps.damaged:
            self.salvage.add(path, 0, -1, "gaps", "damaged", "the record of earlier gaps")
            self.gaps.write()

    def drop_known(self) -> None:
        """Drop the pages that were set aside before: a gap has them, and their bytes are damaged.
        The table of their file still names them."""
        gaps = [gap for gap in self.gaps.newest if gap.reason == DAMAGED]
        for holder in self.spool.files() if gaps else ():
            for place in self.index.places([holder]):
                key = place.key
                known = any(gap.has(key.stream, key.partition, key.seq) for gap in gaps)
                if known and not self._is_whole(place):
                    self._drop(place)

    def regain(self, pages: Iterable[SealedPage]) -> None:
        """Keep those of `pages` that the log has lost and no gap has, byte for byte, in the spool.
        They are durable on return.  Raises StoreFull."""
        known = [gap for gap in self.gaps.newest if gap.partition is not None]
        again = []
        for page in pages:
            key, place = page.key, self.lost.get(page.key)
            told = any(gap.has(key.stream, key.partition, key.seq) for gap in known)
            if place is None or told or self.index.has(key):
                continue
            if (len(page.data), zlib.crc32(page.data)) == (place.length, place.crc):
                again.append(page)
        if again:
            holder, entries = self.spool.write_new(again)
            self.index.add(holder, entries)
            if not holder.places:
                self.spool.delete(holder)

    def _is_whole(self, place: PendingPage) -> bool:
        file = open_patiently(self.disk, place.holder.path)
        try:
            return zlib.crc32(file.pread(place.length, place.offset)) == place.crc
        finally:
            file.close()

    def set_aside(self, place: PendingPage) -> None:
        """Set a page aside whose bytes are damaged."""
        key, path = place.key, place.holder.path
        text = f"page {key.seq} of {key.stream}, partition {key.partition}"
        gap = Gap(
            DAMAGED, key.stream, key.seq, key.seq, key.partition,
            detail=f"its bytes in {path} at offset {place.offset} are damaged",
        )  # fmt: skip
        self.record([gap])
        problem = "its bytes do not match their checksum"
        self.salvage.add(path, place.offset, place.length, "page", problem, text)
        self._drop(place)

    def _drop(self, place: PendingPage) -> None:
        holder = place.holder
        if self.index.drop(place) and not holder.places and isinstance(holder, SpoolFile):
            self.spool.delete(holder)

    def record(self, gaps: Iterable[Gap]) -> None:
        """Record gaps durably.  Raises StoreFull."""
        found = list(gaps)
        with no_room("no room for the record of lost pages"):
            self.gaps.add(found)
        self.untold += [gap for gap in found if gap.partition is not None]
