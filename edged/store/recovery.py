"""From what lies on the disk after a crash to what is true: pure rules over scanned segments.

Records form a chain: each names the beat of the record before it (`previous`) and the newest beat
that was durable when it was written (`durable`).  `base` is the beat of the snapshot in use.

1. A record whose `previous` is the newest one of the chain extends it.
2. One whose `previous` is older replaces what came after that: a tail that a restart gave up.  A
   copy that a restart made of a record in the chain stands in for that one alone, because the
   restart may have died before it copied the next.
3. One whose `previous` is newer reveals a hole.  A hole that ends at or below `base` is what
   retired segments leave.  Where `durable` reaches into the hole, something that was durable is
   gone: StoreCorrupt.  Otherwise the hole was never durable (commits without fdatasync, lost in a
   power cut), and what follows it is given up.
4. A record that stands behind the first invalid one of its segment and vouches for that one
   (`durable` reaches it) means the same: StoreCorrupt.  An invalid record that nobody vouches for
   is the torn tail.
5. The chain must reach the beat of every newer snapshot that turned out damaged; and a record that
   was written on top of a snapshot needs that one or a newer one, unless the records lead up to
   it from an older snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edged.errors import StoreCorrupt
from edged.store.log import Scanned, Segment
from edged.store.records import Entry

_ADVICE = "nothing was changed; see docs/store.md, 'When the store is damaged'"


@dataclass(frozen=True)
class Linked:
    """A record of the chain and the segment that it stands in."""

    segment: Segment
    entry: Entry

    @property
    def number(self) -> int:
        """The record's beat."""
        return self.entry.header.number


def link(scanned: Sequence[Scanned], base: int, based: bool) -> list[Linked]:
    """The chain of records, oldest first.  Raises StoreCorrupt, naming file and offset.

    `based` says whether there is a snapshot at `base`; without one `base` is 0.
    """
    chain: list[Linked] = []
    for part in scanned:
        for entry in part.entries:
            _extend(chain, part.segment, entry, base, based)
        newest = part.entries[-1].header.number if part.entries else part.segment.follows
        if part.proof > newest:
            raise StoreCorrupt(
                f"{part.segment.path}: the record at offset {part.segment.end} (the one after beat "
                f"{newest}) is damaged though it was durable; {_ADVICE}"
            )
    return chain


def _newest(chain: Sequence[Linked]) -> int:
    return chain[-1].number if chain else 0


def _extend(chain: list[Linked], segment: Segment, entry: Entry, base: int, based: bool) -> None:
    header, lineage = entry.header, entry.header.lineage
    if lineage.copy:
        for i in range(len(chain) - 1, -1, -1):
            if chain[i].number == header.number:
                chain[i] = Linked(segment, entry)
                return
    while chain and chain[-1].number > lineage.previous:
        chain.pop()
    newest = _newest(chain)
    if lineage.previous != newest:
        retired = not chain or segment.number > chain[-1].segment.number + 1
        below = lineage.previous <= base
        if not (below and retired) and lineage.durable > (newest if below else max(newest, base)):
            raise StoreCorrupt(
                f"{segment.path}: the record of beat {header.number} at offset {entry.offset} "
                f"follows beat {lineage.previous}, but the log before it ends at beat {newest} and "
                f"the snapshot at {base}: beats that were durable are gone; {_ADVICE}"
            )
        if not below:
            return
    reached = max(base, lineage.previous) + 1 if based else 0
    if header.number > base and lineage.snapshots > reached:
        raise StoreCorrupt(
            f"{segment.path}: the record of beat {header.number} at offset {entry.offset} builds "
            f"on the snapshot of beat {lineage.snapshots - 1}, which is missing or damaged; "
            f"{_ADVICE}"
        )
    chain.append(Linked(segment, entry))


def doubtful(chain: Sequence[Linked], base: int) -> list[Linked]:
    """The end of the chain that nothing proves to be durable; it has to be written once more.

    After a failed fdatasync the kernel may show a record though the medium does not have it; and
    a commit without fdatasync may be what a later, durable one will stand on.
    """
    proven = max([base, *(x.entry.header.lineage.durable for x in chain)])
    return [x for x in chain if x.number > proven]


def check_reach(chain: Sequence[Linked], base: int, damaged: dict[int, str]) -> None:
    """Rule 5.  `damaged` maps the beats of damaged snapshots to what is wrong with them."""
    reached = max(base, _newest(chain))
    for beat, problem in damaged.items():
        if beat > reached:
            raise StoreCorrupt(
                f"{problem}; the log and older snapshots reach only beat {reached}; {_ADVICE}"
            )
