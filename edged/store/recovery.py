"""Recovery: the pure rules that decide which scanned records are valid after a crash or damage.

Records form a chain: each names the beat of the record before it (`previous`) and the newest beat
that was durable when it was written (`durable`).  `base` is the beat of the snapshot in use.

1. A record whose `previous` is the newest record of the chain extends it.
2. A record whose `previous` is older replaces everything after that: a restart had given up that
   tail.  A copy made by a restart replaces only the record that it copies, because the restart may
   have died before it copied the next one.
3. A record whose `previous` is newer reveals a hole.  A hole that ends at or below `base` is left
   by retired segments.  If `durable` reaches into the hole, durable beats are lost: the record is
   behind a hole (`Linked.after`).  Otherwise the beats were never durable (commits without
   fdatasync, lost in a power cut), and the records after them are dropped.
4. A record after the first invalid one of its segment, or the mark at the segment's end, may prove
   that one durable (`durable` reaches it): it is damaged.  Without such proof the invalid record is
   the torn tail.
5. A record written on top of a snapshot needs that snapshot or a newer one, unless the records lead
   to it from an older one.  Otherwise it is behind a hole: the state before it is lost.
6. Durable beats behind the chain's end, known from a damaged snapshot or a `durable`, are a hole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edged.store.records import RecordEntry
from edged.store.segments import Scanned, Segment


@dataclass(frozen=True)
class Linked:
    """A record of the chain and its segment."""

    segment: Segment
    entry: RecordEntry
    after: int | None = None
    """Where durable beats before it are lost: the newest beat before those."""

    @property
    def number(self) -> int:
        """The record's beat."""
        return self.entry.header.number


def link(scanned: Sequence[Scanned], base: int, based: bool) -> list[Linked]:
    """The chain of records, oldest first.

    `based`: there is a snapshot at `base`; without one `base` is 0.
    """
    chain: list[Linked] = []
    broken: int | None = None
    for part in scanned:
        proof = part.proof if part.regions else 0
        for entry in part.entries:
            _extend(chain, Linked(part.segment, entry), proof, base, based, broken)
            broken = None
        broken = part.broken
    return chain


def _newest(chain: Sequence[Linked]) -> int:
    return chain[-1].number if chain else 0


def _extend(
    chain: list[Linked], found: Linked, proof: int, base: int, based: bool, broken: int | None
) -> None:
    """Add a record; `proof` is the largest `durable` that its segment proves, `broken` the newest
    beat before the damaged end of the segment before it."""
    header, lineage = found.entry.header, found.entry.header.lineage
    if lineage.copy:
        for i in range(len(chain) - 1, -1, -1):
            if chain[i].number == header.number:
                chain[i] = replace(found, after=chain[i].after)
                return
    while chain and chain[-1].number > lineage.previous:
        chain.pop()
    newest, after = _newest(chain), None
    if lineage.previous != newest:
        retired = not chain or found.segment.number > chain[-1].segment.number + 1
        below = lineage.previous <= base
        known = newest if below else max(newest, base)
        if not (below and retired) and max(lineage.durable, proof) > known:
            after = known
        elif not below:
            return
        elif broken is not None and broken < lineage.previous:
            after = max(newest, broken)
    led = based or any(x.after is not None for x in chain)
    reached = max(base, lineage.previous) + 1 if led else 0
    if after is None and header.number > base and lineage.snapshots > reached:
        after = max(newest, base)
    chain.append(replace(found, after=after))


def unproven(chain: Sequence[Linked], known: int) -> list[Linked]:
    """The end of the chain without proof of durability; it has to be written again.  `known` is the
    newest beat that a snapshot or a mark proves durable.

    After a failed fdatasync the kernel may return a record that the medium does not have; and a
    later, durable commit must not depend on one without fdatasync.
    """
    proven = max([known, *(x.entry.header.lineage.durable for x in chain)])
    return [x for x in chain if x.number > proven]


def lost_end(
    scanned: Sequence[Scanned], chain: Sequence[Linked], base: int, snapshots: Sequence[int]
) -> tuple[int, int] | None:
    """The hole behind the chain, as `after` and `before`; None without one.

    `snapshots` are the beats of damaged snapshots.
    """
    reached = max(base, _newest(chain))
    known = max([0, *snapshots, *(part.proof for part in scanned if part.regions)])
    return (reached, known + 1) if known > reached else None
