"""Recovery: the pure rules that decide which scanned records are valid after a crash.

Records form a chain: each names the beat of the record before it (`previous`) and the newest beat
that was durable when it was written (`durable`).  `base` is the beat of the snapshot in use.

1. A record whose `previous` is the newest record of the chain extends it.
2. A record whose `previous` is older replaces everything after that: a restart had given up that
   tail.  A copy made by a restart replaces only the record that it copies, because the restart may
   have died before it copied the next one.
3. A record whose `previous` is newer reveals a hole.  A hole that ends at or below `base` is left
   by retired segments.  If `durable` reaches into the hole, durable beats are lost: StoreCorrupt.
   Otherwise the hole was never durable (commits without fdatasync, lost in a power cut), and the
   records after it are dropped.
4. A record after the first invalid one of its segment may prove that one durable (`durable` reaches
   it): StoreCorrupt.  Without such proof the invalid record is the torn tail.
5. The chain must reach the beat of every newer, damaged snapshot.  A record written on top of a
   snapshot needs that snapshot or a newer one, unless the records lead to it from an older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edged.errors import StoreCorrupt
from edged.store.log import Scanned, Segment
from edged.store.records import RecordEntry

_ADVICE = "nothing was changed; see docs/store.md, 'When the store is damaged'"


@dataclass(frozen=True)
class Linked:
    """A record of the chain and its segment."""

    segment: Segment
    entry: RecordEntry

    @property
    def number(self) -> int:
        """The record's beat."""
        return self.entry.header.number


def link(scanned: Sequence[Scanned], base: int, based: bool) -> list[Linked]:
    """The chain of records, oldest first.  Raises StoreCorrupt, naming file and offset.

    `based`: there is a snapshot at `base`; without one `base` is 0.
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


def _extend(
    chain: list[Linked], segment: Segment, entry: RecordEntry, base: int, based: bool
) -> None:
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


def unproven(chain: Sequence[Linked], base: int) -> list[Linked]:
    """The end of the chain without proof of durability; it has to be written again.

    After a failed fdatasync the kernel may return a record that the medium does not have; and a
    later, durable commit must not depend on one without fdatasync.
    """
    proven = max([base, *(x.entry.header.lineage.durable for x in chain)])
    return [x for x in chain if x.number > proven]


def check_reach(chain: Sequence[Linked], base: int, damaged: dict[int, str]) -> None:
    """Check rule 5.  `damaged` maps the beats of damaged snapshots to their problems."""
    reached = max(base, _newest(chain))
    for beat, problem in damaged.items():
        if beat > reached:
            raise StoreCorrupt(
                f"{problem}; the log and older snapshots reach only beat {reached}; {_ADVICE}"
            )
