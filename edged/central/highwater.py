"""High-water records: the highest landed page per device and partition.  They outlive the pages.

One file per device, `LANDING/devices/<device_hash as 16 hex digits>.record`, changed in place under
an exclusive flock of itself, so that several collectors can share a landing.

    record = head (64 bytes) | entry, entry, ...          little-endian, no padding

    head   0  4 bytes  magic "EDGH"
           4  4 u32    format = 1
           8  8 u64    generation: a new value before every change; a cached copy with an equal
                       generation is current
          16  4 u32    in doubt: 1 while rows are being committed that are not counted yet
          20  4 u32    entries: their number
          24 36        zero
          60  4 u32    crc         CRC-32 of the 60 bytes before; earlier versions: 0

    entry  two slots of 48 bytes; the valid one with the greater (seq, serial) counts
           0  8 u64  stream_hash  first 8 bytes, little-endian, of sha256(stream); 0 in a session
           8  8 u64  epoch
          16  8 u64  seq          kind 1: the highest landed; kind 2: the session's counter
          24  8 u64  value        kind 1: that page's checksum; kind 2: the session's nonce
          32  4 u32  partition    0 in a session
          36  4 u32  serial       of this entry's changes; slot = serial & 1
          40  4 u32  kind         1 high water, 2 session
          44  4 u32  crc          CRC-32 of the 44 bytes before

Invariants

 1. A high water is written only after the rows that it counts are durable in an idx.
 2. It is not synced page by page: a segment is *sealed* only when the records of all its devices
    are durable, and rows of unsealed segments are counted again at every start.
 3. A record is suspect if a slot is neither zero nor valid, if its head is invalid, or if its head
    is in doubt while its lock is free (the writer died).  A suspect record is merged (maximum) with
    the landing's rows and rewritten.
 4. The stream is named without its version: sequences continue when a schema's version changes.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from edged.central.segments import sync_directory
from edged.errors import LandingFormatUnknown

MAGIC = b"EDGH"
FORMAT = 1
HEAD_BYTES = 64
SLOT_BYTES = 48
HIGH, SESSION = 1, 2
ENTRIES_MAX = 1 << 16
CACHE_DEVICES = 1 << 14
"""Devices whose records are kept in memory."""
SYNC_THREADS = 16
"""Syncs of records at a time."""
_HEAD = struct.Struct("<4sIQII36x")
_SLOT = struct.Struct("<QQQQIII")
_CRC = struct.Struct("<I")
_ZERO = bytes(SLOT_BYTES)

Key = tuple[int, int, int, int]
"""(kind, epoch, stream_hash, partition)"""


@dataclass(frozen=True, slots=True)
class HighWater:
    """One high water: the greatest landed `seq` of (epoch, stream, partition), its checksum."""

    epoch: int
    stream: int
    partition: int
    seq: int
    crc: int


@dataclass(slots=True)
class _Entry:
    place: int
    serial: int
    seq: int
    value: int


@dataclass(slots=True)
class HighWaterTable:
    """A record's content in memory, with its unwritten changes."""

    generation: int = 0
    places: int = 0
    entries: dict[Key, _Entry] = field(default_factory=dict)
    dirty: set[Key] = field(default_factory=set)
    suspect: bool = False
    head: bytes = b""
    """The record's head as it was last written or read here."""
    inherited: bool = True
    """Whether the content was written by an earlier process.  If a sync of that process failed, the
    medium may lack it although the page cache has it, and a later sync does not write it."""

    def high(self, epoch: int, stream: int, partition: int) -> tuple[int, int]:
        """(seq, checksum) of the highest landed page; (0, 0) without one."""
        entry = self.entries.get((HIGH, epoch, stream, partition))
        return (entry.seq, entry.value) if entry else (0, 0)

    def raise_high(self, epoch: int, stream: int, partition: int, seq: int, crc: int) -> None:
        """Count `seq` as landed, unless a higher one is."""
        key = (HIGH, epoch, stream, partition)
        entry = self.entries.get(key)
        if entry is None or entry.seq < seq:
            self._set(key, seq, crc)

    def session(self, epoch: int) -> tuple[int, int]:
        """(counter, nonce) of the newest session of `epoch`; (0, 0) if none is known."""
        entry = self.entries.get((SESSION, epoch, 0, 0))
        return (entry.seq, entry.value) if entry else (0, 0)

    def set_session(self, epoch: int, counter: int, nonce: int) -> None:
        """Fence every session of `epoch` before this one."""
        self._set((SESSION, epoch, 0, 0), counter, nonce)

    def highs(self) -> list[HighWater]:
        """All high waters."""
        return [
            HighWater(epoch, stream, partition, e.seq, e.value)
            for (kind, epoch, stream, partition), e in self.entries.items()
            if kind == HIGH
        ]

    def _set(self, key: Key, seq: int, value: int) -> None:
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = _Entry(self.places, 0, 0, 0)
            self.places += 1
        if key not in self.dirty:
            entry.serial = (entry.serial + 1) & 0xFFFFFFFF
            self.dirty.add(key)
        entry.seq, entry.value = seq, value

    def has_room(self, epoch: int, stream: int, partition: int) -> bool:
        """Whether a further high water fits (a device's entries are bounded)."""
        return self._room((HIGH, epoch, stream, partition))

    def has_session_room(self, epoch: int) -> bool:
        """Whether a session of `epoch` fits."""
        return self._room((SESSION, epoch, 0, 0))

    def _room(self, key: Key) -> bool:
        return key in self.entries or len(self.entries) < ENTRIES_MAX


class DeviceRecord:
    """A device's record while its lock is held: change `table`, then `save`.

    When rows are committed for the changes, call `mark_in_doubt` before, and `save` or `discard`
    after.
    """

    def __init__(self, fd: int, table: HighWaterTable) -> None:
        self._fd = fd
        self.table = table
        self._marked = False
        """Whether the head says that the record is in doubt."""

    def _head(self, doubt: int) -> None:
        table = self.table
        table.generation = (table.generation + 1) & 0xFFFFFFFFFFFFFFFF
        table.head = _pack_head(table, doubt)
        os.pwrite(self._fd, table.head, 0)
        self._marked = doubt == 1

    def mark_in_doubt(self) -> None:
        """Mark the record as in doubt if `table` has changes."""
        if self.table.dirty:
            self._head(doubt=1)

    def discard(self) -> None:
        """Remove the mark and drop the changes: no row was committed."""
        if self.table.dirty:
            self._head(doubt=0)

    def save(self) -> None:
        """Write the changed entries; `sync` makes them durable."""
        table = self.table
        if table.dirty:
            if not self._marked:
                self._head(doubt=1)
            for key in table.dirty:
                entry = table.entries[key]
                at = HEAD_BYTES + 2 * SLOT_BYTES * entry.place + SLOT_BYTES * (entry.serial & 1)
                os.pwrite(self._fd, _pack(key, entry), at)
            self._head(doubt=0)
            table.dirty.clear()

    def sync(self) -> None:
        """Make what was saved durable."""
        if self.table.inherited:
            os.pwrite(self._fd, os.pread(self._fd, os.fstat(self._fd).st_size, 0), 0)
        os.fdatasync(self._fd)
        self.table.inherited = False

    def rewrite(self) -> None:
        """Write the whole record durably, entries packed from the first position on."""
        _rewrite(self._fd, self.table)


class DeviceRecords:
    """The records of a landing.  `rebuild(devices)` returns the high waters of devices (hashes) in
    the landing's rows, each with its device.

    Caches at most `remembered` devices' tables; not thread-safe.  Records of a group are rebuilt in
    one pass over the rows and synced beside each other, so that the file system's journal commits
    many at a time; a call returns when all are durable.
    """

    def __init__(
        self,
        directory: Path,
        rebuild: Callable[[Collection[int]], Iterable[tuple[int, HighWater]]],
        cache_size: int = CACHE_DEVICES,
    ) -> None:
        self._directory = directory
        self._rebuild = rebuild
        self._cache_size = cache_size
        self._tables: OrderedDict[int, HighWaterTable] = OrderedDict()
        self._threads = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="records")
        directory.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """End the threads that sync."""
        self._threads.shutdown()

    def path(self, device: int) -> Path:
        """The record's file."""
        return self._directory / f"{device:016x}.record"

    @contextmanager
    def locked(self, device: int) -> Iterator[DeviceRecord]:
        """Hold the record of `device` (a hash).  Unsaved changes are dropped on exit."""
        with self.locked_all([device]) as records:
            yield records[device]

    @contextmanager
    def locked_all(self, devices: Iterable[int]) -> Iterator[dict[int, DeviceRecord]]:
        """Hold the records of `devices`, taken in the order of their hashes."""
        with ExitStack() as files:
            records: dict[int, DeviceRecord] = {}
            for device in sorted(set(devices)):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                fd = os.open(f"{self._directory}/{device:016x}.record", flags, 0o644)
                files.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX)
                records[device] = DeviceRecord(fd, self._table(fd, device))
            self._mend(records)
            try:
                yield records
            finally:
                for device, record in records.items():
                    self._remember(device, record.table)

    def sync(self, records: Sequence[DeviceRecord]) -> None:
        """Make records that are held durable.  Raises OSError if one is not."""
        self._each(records, DeviceRecord.sync)

    def _mend(self, records: dict[int, DeviceRecord]) -> None:
        """Rebuild the suspect ones among `records`."""
        suspect = {d: record for d, record in records.items() if record.table.suspect}
        if not suspect:
            return
        for device, high in self._rebuild(suspect.keys()):
            suspect[device].table.raise_high(
                high.epoch, high.stream, high.partition, high.seq, high.crc
            )
        self._each(list(suspect.values()), DeviceRecord.rewrite)
        sync_directory(self._directory)

    def _each(self, records: Sequence[DeviceRecord], work: Callable[[DeviceRecord], None]) -> None:
        """Do the work of each record, beside each other; all has ended on return."""
        if len(records) < 2:
            for record in records:
                work(record)
            return
        futures = [self._threads.submit(work, record) for record in records]
        wait(futures)
        for future in futures:
            future.result()

    def _remember(self, device: int, table: HighWaterTable) -> None:
        if table.dirty:
            self._tables.pop(device, None)
            return
        self._tables[device] = table
        self._tables.move_to_end(device)
        while len(self._tables) > self._cache_size:
            self._tables.popitem(last=False)

    def _table(self, fd: int, device: int) -> HighWaterTable:
        head = os.pread(fd, HEAD_BYTES, 0)
        known = self._tables.get(device)
        if known is not None and head == known.head:
            return known
        return _load(fd, head, self.path(device))


def _pack_head(table: HighWaterTable, doubt: int = 0) -> bytes:
    head = _HEAD.pack(MAGIC, FORMAT, table.generation, doubt, table.places)
    return head + _CRC.pack(zlib.crc32(head))


def _pack(key: Key, entry: _Entry) -> bytes:
    kind, epoch, stream, partition = key
    body = _SLOT.pack(stream, epoch, entry.seq, entry.value, partition, entry.serial, kind)
    return body + _CRC.pack(zlib.crc32(body))


def _load(fd: int, head: bytes, place: Path) -> HighWaterTable:
    """The table in the file; `suspect` if the file is new or damaged.  Raises LandingFormatUnknown
    for a record of a later version."""
    table = HighWaterTable(suspect=True, head=head)
    if len(head) < HEAD_BYTES:
        return table
    magic, version, table.generation, doubt, places = _HEAD.unpack_from(head)
    (crc,) = _CRC.unpack_from(head, _HEAD.size)
    intact = crc == zlib.crc32(head[: _HEAD.size])
    if magic == MAGIC and version > FORMAT and intact:
        raise LandingFormatUnknown(
            f"{place}: a high-water record has format {version}, this collector knows {FORMAT}: "
            "run a collector at least as new as the one that wrote it"
        )
    body = os.pread(fd, os.fstat(fd).st_size - HEAD_BYTES, HEAD_BYTES)
    table.suspect = magic != MAGIC or version != FORMAT or doubt != 0 or not (intact or crc == 0)
    table.places = -(-len(body) // (2 * SLOT_BYTES))
    for at in range(0, len(body), SLOT_BYTES):
        _load_slot(table, at, body[at : at + SLOT_BYTES])
    if len(body) != 2 * SLOT_BYTES * places or len(table.entries) != places:
        table.suspect = True
    return table


def is_damaged(path: Path) -> bool:
    """Whether bytes of a record are damaged; nothing is changed, and no lock is taken."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(fd, HEAD_BYTES, 0)
        doubt = bool(len(head) == HEAD_BYTES and _HEAD.unpack_from(head)[3] == 1)
        return _load(fd, head, path).suspect and not doubt
    finally:
        os.close(fd)


def _load_slot(table: HighWaterTable, at: int, slot: bytes) -> None:
    if slot == _ZERO[: len(slot)]:
        return
    if len(slot) < SLOT_BYTES or zlib.crc32(slot[:-4]) != _CRC.unpack_from(slot, 44)[0]:
        table.suspect = True
        return
    stream, epoch, seq, value, partition, serial, kind = _SLOT.unpack_from(slot)
    key = (kind, epoch, stream, partition)
    place = at // (2 * SLOT_BYTES)
    other = table.entries.get(key)
    if other is not None and other.place != place:
        table.suspect = True
    newer = other is None or (seq, serial) > (other.seq, other.serial)
    if newer:
        table.entries[key] = _Entry(place, serial, seq, value)


def _rewrite(fd: int, table: HighWaterTable) -> None:
    """Write the whole record, entries packed from the first position on, durably."""
    table.generation = (table.generation + 1) & 0xFFFFFFFFFFFFFFFF
    table.places = len(table.entries)
    table.head = _pack_head(table)
    data = bytearray(table.head)
    for place, (key, entry) in enumerate(table.entries.items()):
        entry.place, entry.serial = place, 0
        data += _pack(key, entry) + _ZERO
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))
    os.fsync(fd)
    table.dirty.clear()
    table.suspect = table.inherited = False
