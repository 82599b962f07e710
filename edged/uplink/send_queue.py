"""The queue of unacknowledged pages, by location: 28 bytes a page plus each file name once.

Invariants: within a partition, seqs rise and all are above the acknowledged one; a partition is in
at most one batch at a time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

_COMPACT = 1024


@dataclass(frozen=True, slots=True)
class PageLocation:
    """Location of a page: `length` bytes at `offset` of `file`."""

    stream: str
    partition: int
    seq: int
    file: str
    offset: int
    length: int


class _Files:
    """Interns file names as numbers; a name lives as long as a page refers to it."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._uses: dict[int, int] = {}
        self._next = 0

    def take(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._next
            self._names[number] = name
            self._uses[number] = 0
            self._next += 1
        self._uses[number] += 1
        return number

    def give(self, number: int) -> None:
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._numbers[self._names.pop(number)], self._uses[number]

    def name(self, number: int) -> str:
        return self._names[number]

    def __len__(self) -> int:
        return len(self._names)


@dataclass(slots=True)
class Partition:
    """One (stream, partition); its pages from index `head` on are unacknowledged."""

    stream: str
    partition: int
    acked: int = 0
    head: int = 0
    seqs: array[int] = field(default_factory=lambda: array("Q"))
    files: array[int] = field(default_factory=lambda: array("L"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("L"))
    in_flight: bool = False
    hold_until_s: float = 0.0

    def __len__(self) -> int:
        return len(self.seqs) - self.head


class SendQueue:
    """All unacknowledged pages, by partition, in the order in which the partitions appeared."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.pages = 0
        self.bytes = 0
        self._files = _Files()

    def offer(self, place: PageLocation) -> bool:
        """Add a page, or update the location of a known one; False if already acknowledged."""
        key = (place.stream, place.partition)
        part = self.partitions.get(key)
        if part is None:
            part = self.partitions[key] = Partition(*key)
        if place.seq <= part.acked:
            return False
        i = len(part.seqs)
        if len(part) and part.seqs[-1] >= place.seq:
            i = bisect_left(part.seqs, place.seq, part.head)
        known = i < len(part.seqs) and part.seqs[i] == place.seq
        number = self._files.take(place.file)
        if known:
            self._files.give(part.files[i])
            self.bytes += place.length - part.lengths[i]
            part.files[i], part.offsets[i], part.lengths[i] = number, place.offset, place.length
            return True
        part.seqs.insert(i, place.seq)
        part.files.insert(i, number)
        part.offsets.insert(i, place.offset)
        part.lengths.insert(i, place.length)
        self.pages += 1
        self.bytes += place.length
        return True

    def acked(self, stream: str, partition: int, seq: int) -> int:
        """Drop the pages up to `seq`; returns their number."""
        part = self.partitions.get((stream, partition))
        if part is None or seq <= part.acked:
            return 0
        part.acked = seq
        before = part.head
        while part.head < len(part.seqs) and part.seqs[part.head] <= seq:
            self._files.give(part.files[part.head])
            self.bytes -= part.lengths[part.head]
            part.head += 1
        self.pages -= part.head - before
        count = part.head - before
        if part.head > _COMPACT and 2 * part.head > len(part.seqs):
            for column in (part.seqs, part.files, part.offsets, part.lengths):
                del column[: part.head]
            part.head = 0
        return count

    def remove(self, stream: str, partition: int, first: int, last: int) -> None:
        """Drop pages that are lost, `first` to `last`."""
        part = self.partitions.get((stream, partition))
        if part is None:
            return
        start = bisect_left(part.seqs, first, part.head)
        stop = bisect_left(part.seqs, last + 1, part.head)
        for i in range(start, stop):
            self._files.give(part.files[i])
            self.bytes -= part.lengths[i]
        self.pages -= stop - start
        for column in (part.seqs, part.files, part.offsets, part.lengths):
            del column[start:stop]

    def first(self, part: Partition, bytes_max: int) -> Iterator[PageLocation]:
        """The first pages of `part` within `bytes_max`, at least one if there is one."""
        size = 0
        for i in range(part.head, len(part.seqs)):
            size += part.lengths[i]
            if size > bytes_max and i > part.head:
                return
            yield PageLocation(
                part.stream,
                part.partition,
                part.seqs[i],
                self._files.name(part.files[i]),
                part.offsets[i],
                part.lengths[i],
            )
