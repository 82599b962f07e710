"""The adoption of what a start has found: spool and log become the store's, their pages pending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edged.pages.header import HEADER_BYTES, SEALED_AT_OFFSET
from edged.platform.disk import Disk
from edged.store import recovery
from edged.store.log import SegmentLog
from edged.store.page_index import Holder, PageIndex
from edged.store.patient_file import open_patiently
from edged.store.records import Encoded, PageEntry, RecordEntry
from edged.store.recovery import Linked
from edged.store.salvage import Salvage
from edged.store.segments import Segment
from edged.store.spool import Spool
from edged.store.starting_point import LogHole, StartingPoint


@dataclass
class Adoption:
    """Takes over the files of one store."""

    disk: Disk
    log: SegmentLog
    spool: Spool
    index: PageIndex
    salvage: Salvage

    def take_spool(self) -> None:
        """Add the pages of the spool, which are older than those of the log."""
        for holder, pages in self.spool.scan(self.salvage):
            self._date(holder, pages)
            self.index.add(holder, pages)
            if not holder.places:
                self.spool.delete(holder)

    def take_log(self, start: StartingPoint) -> list[Linked]:
        """Go on after the chain: write its unproven end again, delete what nothing needs.  Returns
        the records after the snapshot."""
        chain, base = start.chain, start.base
        marked = max([0, *(part.proof for part in start.scanned)])
        tail = recovery.unproven(chain, max(base, marked))
        certain = chain[: len(chain) - len(tail)]
        kept: dict[int, Segment] = {}
        for x in certain:
            if x.after is not None:
                self._add_carved(start.holes[x.number], kept)
            kept[x.segment.number] = x.segment
            x.segment.last = x.number
            self._add(x.segment, x.entry)
        if start.end is not None:
            self._add_carved(start.holes[start.end.before], kept)
        for part in start.scanned:
            if part.broken is not None:  # it stays until a snapshot, so that the loss stays known
                segment, region = part.segment, part.regions[-1]
                kept[segment.number] = segment
                segment.end = max(segment.end, region.end)
                segment.last = max(segment.last, region.before - 1)
        proven = max([marked, *(x.entry.header.lineage.durable for x in chain)])
        last = tail[0].entry.header.lineage.previous if tail else 0
        if certain and not (tail and tail[0].after is not None):
            last = certain[-1].number  # else the copy goes on naming what is lost before it
        self.log.adopt([kept[n] for n in sorted(kept)], last, min(last, proven))
        for i, x in enumerate(tail):
            again = Encoded(self.log.read(x.segment, x.entry))
            segment, entry = self.log.append(again, sync=i == len(tail) - 1, copy=True)
            self._add(segment, entry)
            certain.append(Linked(segment, entry, x.after))
        gone = [part for part in start.scanned if part.segment.number not in kept]
        for part in [part for part in gone if part.foreign]:
            self.salvage.set_aside(part.segment.path)
        self.log.remove([part.segment for part in gone if not part.foreign])
        return [x for x in certain if x.number > base]

    def _add(self, segment: Segment, entry: RecordEntry) -> None:
        self._date(segment, entry.pages)
        self.index.add(segment, entry.pages)
        self.index.seen(page.key for page in entry.lost)

    def _add_carved(self, found: LogHole, kept: dict[int, Segment]) -> None:
        """Add the whole pages of a hole."""
        for segment, pages in found.pages:
            kept[segment.number] = segment
            segment.last = max(segment.last, found.hole.before - 1)
            segment.end = max(segment.end, *(page.offset + page.length for page in pages))
            self._date(segment, pages)
            self.index.add(segment, pages)

    def _date(self, holder: Holder, pages: Sequence[PageEntry]) -> None:
        """Date the pages of a file found at start: they wait since its first page was sealed."""
        if holder.since_us or not pages or pages[0].length < HEADER_BYTES:
            return
        file = open_patiently(self.disk, holder.path)
        try:
            field = file.pread(8, pages[0].offset + SEALED_AT_OFFSET)
        finally:
            file.close()
        holder.since_us = int.from_bytes(field, "little", signed=True)
