"""The write-ahead log: numbered segment files of records, appended in order and retired as a whole.

A segment is `log/<number:016d>.log`: a block of 4096 bytes whose first 64 are its header, then
records (see edged/store/records.py) without gaps.  Header, little-endian: u32 magic 0x4C676445
("EdgL"), u16 version 1, u16 zero, u64 number, u64 random nonce, u64 device epoch, u64 beat of the
record before its first one, 20 zero bytes, u32 CRC-32 of the 60 bytes before.

Invariants:

1. A file gets a segment's name only after its header is durable; the name is durable before the
   first record is written.
2. A segment is preallocated, so an append needs no new space.  A record larger than a segment gets
   a segment of its own.
3. A number is never used twice with the same nonce.  A retired file is reused under a new name,
   number and nonce, and only after its old name is durably gone.
4. Records are written in order.  A record appended with `sync` is durable before the next one is
   written.  Each names its predecessor, the newest durable record, and the newest snapshot.
5. Behind a durable record that none follows in its segment is a mark (edged/store/tail_marks.py).
"""

from __future__ import annotations

import errno
from time import perf_counter_ns

from edged.errors import StoreCorrupt
from edged.platform.disk import DISK_FULL, Disk, File
from edged.store import identity
from edged.store.errors import no_room
from edged.store.patient_file import open_patiently
from edged.store.records import ALIGN, BeatRecord, Encoded, Lineage, RecordEntry, RecordReader
from edged.store.segments import (
    Scanned,
    Segment,
    find_lost_ends,
    pack_header,
    scan_segment,
    seed_of_nonce,
)
from edged.store.tail_marks import MARK_BYTES, pack_mark

_SPARES_MAX = 16
"""Retired files kept for reuse.  With 64 MiB each they hold the log of two intervals of snapshots.
Overwriting costs 0.13 CPU-s/GB and 9 ms per 16 MiB record; a fresh file costs 1.75 CPU-s/GB and
stalls of 100 ms (2-core VM, ext4 on virtio)."""


def _check_tail(found: list[Scanned]) -> None:
    """Raise OSError where the end of the log cannot be read: what is there may be durable, and
    nothing proves it."""
    for part in found[-1:]:
        for offset in part.unreadable:
            if offset >= part.segment.end:
                raise OSError(errno.EIO, f"the end of the log, offset {offset}", part.segment.path)


class SegmentLog:
    """The segments of a store.  Used by one thread at a time."""

    def __init__(self, disk: Disk, directory: str, epoch: int, segment_bytes: int) -> None:
        self._disk, self._directory, self._epoch = disk, directory, epoch
        self._segment_bytes = max(2 * ALIGN, segment_bytes // ALIGN * ALIGN)
        self._active: File | None = None
        self._spares: list[str] = []
        self._resting: list[str] = []
        """Retired files that a page reader may still have open."""
        self.syncs = 0
        """Number of syncs of records and of segment headers."""
        self._next_number = 1
        self.segments: list[Segment] = []
        self.last = 0
        """Newest beat in the log."""
        self.durable = 0
        """Newest beat known to be durable."""
        self.snapshots = 0
        """Beat of the newest snapshot plus 1, 0 without one; stored in each record."""

    @property
    def bytes(self) -> int:
        """Bytes of all segment files, spare ones included."""
        spares = len(self._spares) + len(self._resting)
        return sum(s.size for s in self.segments) + spares * self._segment_bytes

    def sealed(self) -> list[Segment]:
        """The closed segments, oldest first."""
        return self.segments[:-1] if self._active else list(self.segments)

    # -- start ---------------------------------------------------------------------------------

    def scan(self) -> list[Scanned]:
        """Read and check every segment.  Spare and incomplete files are deleted."""
        found = []
        for name in self._disk.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if name.endswith(".log") and name[:-4].isdigit():
                found.append(self._scan(path, int(name[:-4])))
            elif name.endswith((".tmp", ".spare")):
                self._disk.unlink(path)
        _check_tail(found)
        if found:
            self._next_number = found[-1].segment.number + 1
        find_lost_ends(found)
        return found

    def _scan(self, path: str, number: int) -> Scanned:
        file = open_patiently(self._disk, path)
        try:
            found = scan_segment(file, path, number, self._epoch)
            found.unreadable = file.unreadable
            return found
        finally:
            file.close()

    def adopt(self, segments: list[Segment], last: int, durable: int) -> None:
        """Continue after these segments; `last` is the newest beat in use.

        Each file is truncated to its valid end, which frees preallocated space.
        """
        self.segments, self.last, self.durable = segments, last, durable
        for segment in segments:
            if segment.size > segment.end:
                file = self._disk.open(segment.path)
                try:
                    file.truncate(segment.end)
                finally:
                    file.close()
                segment.size = segment.end

    def remove(self, segments: list[Segment]) -> None:
        """Delete segments, durably."""
        for segment in segments:
            self._disk.unlink(segment.path)
        if segments:
            self._disk.sync_directory(self._directory)

    def read(self, segment: Segment, entry: RecordEntry) -> BeatRecord:
        """The record of `entry`, in memory of its own."""
        file = open_patiently(self._disk, segment.path)
        try:
            record = RecordReader(file, segment.number, segment.seed, segment.size).record(entry)
        finally:
            file.close()
        if record is None:
            raise StoreCorrupt(
                f"{segment.path}: the record at offset {entry.offset} was valid at the scan and "
                "no longer is; check the medium (dmesg)"
            )
        return record

    # -- append --------------------------------------------------------------------------------

    def rolls(self, length: int) -> bool:
        """Whether a record of `length` begins a segment."""
        return not (self._active and self.segments[-1].end + length <= self.segments[-1].size)

    def growth(self, length: int) -> int:
        """Bytes of new disk space that appending a record of `length` needs."""
        if not self.rolls(length):
            return 0
        size = max(self._segment_bytes, ALIGN + length)
        return 0 if self._spares and size == self._segment_bytes else size

    def append(
        self, record: Encoded, sync: bool, copy: bool = False, small: bool = False
    ) -> tuple[Segment, RecordEntry]:
        """Write a record, with one fdatasync if `sync`.  Returns its location.

        `copy`: an older segment also holds the record, without proof that it is durable there.
        `small`: a new segment, if one is needed, gets room for this record only. Raises StoreFull
        if there is no room; nothing valid is written then.
        """
        segment = self.segments[-1] if self._active else None
        if segment is None or segment.end + record.length > segment.size:
            segment = self._roll(record.length, 0 if small else self._segment_bytes)
        assert self._active is not None
        lineage = Lineage(self.last, self.durable, self.snapshots, sync, copy)
        buffers = record.buffers(segment.number, segment.seed, lineage)
        # A copy-on-write file system allocates here, in spite of the preallocation.
        with no_room(f"{segment.path}: no room for beat {record.number}"):
            self._active.pwritev(buffers, segment.end)
        entry = record.entry(segment.end, lineage)
        segment.end += record.length
        segment.last = self.last = record.number
        if sync:
            since_ns = perf_counter_ns()
            self.sync()
            record.sync_us = (perf_counter_ns() - since_ns) // 1_000
        return segment, entry

    def sync(self) -> None:
        """Make records durable that were appended without sync."""
        if self._active and self.durable < self.last:
            self._active.sync()
            self.syncs += 1
            self.durable = self.last
            self._mark(self._active, self.segments[-1])

    def _mark(self, file: File, segment: Segment) -> None:
        """Write the mark behind the last record, where the segment has room for it."""
        if segment.end + MARK_BYTES > segment.size:
            return
        try:
            file.pwritev([pack_mark(segment.number, segment.seed, segment.last)], segment.end)
        except OSError as problem:  # a copy-on-write file system may be full
            if problem.errno not in DISK_FULL:
                raise

    def _roll(self, length: int, size: int) -> Segment:
        size = max(size, ALIGN + length)
        path = f"{self._directory}/{self._next_number:016d}.log"
        nonce = identity.random_u64()
        reuse = size == self._segment_bytes and bool(self._spares)
        made = self._spares[-1] if reuse else path + ".tmp"
        with no_room(f"{self._directory}: no room for a segment of {ALIGN + length} bytes"):
            file = self._disk.open(made, create=not reuse)
            try:
                if not reuse:
                    self._allocate(file, made, size, ALIGN + length)
                segment = Segment(
                    path, self._next_number, seed_of_nonce(nonce), self.last, file.size()
                )
                head = pack_header(self._next_number, nonce, self._epoch, self.last)
                file.pwritev([head + bytes(ALIGN - len(head))], 0)
                file.sync()
                self.syncs += 1
            finally:
                file.close()
            self._disk.rename(made, path)
        if reuse:
            self._spares.pop()
        self._disk.sync_directory(self._directory)
        self.sync()
        if self._active:
            self._active.close()
        self._active = self._disk.open(path)
        self._next_number += 1
        self.segments.append(segment)
        return segment

    def _allocate(self, file: File, path: str, size: int, size_min: int) -> None:
        """Reserve `size` bytes, or only `size_min` if the disk has no more."""
        try:
            file.allocate(size)
        except OSError as problem:
            if problem.errno not in DISK_FULL:
                raise
            file.truncate(0)
            try:
                file.allocate(size_min)
            except OSError:
                self._disk.unlink(path)
                raise

    # -- retire --------------------------------------------------------------------------------

    def retire(self, segments: list[Segment], reusable: list[Segment]) -> None:
        """Drop the oldest segments, which nothing needs any more, and keep some as spare files.

        A page reader may read a batch of pages at a stale location. A segment is therefore a spare
        at once if it is in `reusable`, and else after `reclaim`.
        """
        spares: list[str] = []
        resting: list[str] = []
        for segment in segments:
            kept = len(self._spares) + len(self._resting) + len(spares) + len(resting)
            if segment.size == self._segment_bytes and kept < _SPARES_MAX:
                spare = segment.path[: -len(".log")] + ".spare"
                self._disk.rename(segment.path, spare)
                (spares if segment in reusable else resting).append(spare)
            else:
                self._disk.unlink(segment.path)
        if segments:
            self._disk.sync_directory(self._directory)
        self._spares += spares
        self._resting += resting
        self.segments = self.segments[len(segments) :]

    def reclaim(self) -> None:
        """Allow the reuse of all segments retired before: no reader uses their locations."""
        self._spares += self._resting
        self._resting = []

    def drop_spares(self) -> None:
        """Delete the spare files to free their space."""
        for spares in (self._resting, self._spares):
            while spares:
                self._disk.unlink(spares[-1])
                spares.pop()

    def close(self) -> None:
        """Close the active segment."""
        if self._active:
            file, self._active = self._active, None
            file.close()
