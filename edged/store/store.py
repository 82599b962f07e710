"""The store: makes beats durable and keeps their sealed pages until they are acked.

    STORE/lock          flock held while the store is open; holds the pid, for diagnosis
    STORE/identity      format version and device epoch (edged/store/identity.py)
    STORE/session       number of openings
    STORE/migration/    the work of an upgrade (edged/store/migration.py)
    STORE/log/          the write-ahead log (edged/store/log.py, records.py)
    STORE/snapshots/    operator state after a beat (edged/store/snapshots.py)
    STORE/spool/        unacked pages of retired segments (edged/store/spool.py)
    STORE/shelf/        jobs that cannot be loaded (edged/store/shelf_files.py)
    STORE/acks          acked sequence numbers: JSON, a hint that may be stale or missing
    STORE/gaps          what was lost for good (edged/store/gaps.py)
    STORE/quarantine/   damaged bytes, kept for inspection (edged/store/salvage.py)

Invariants, besides those of the parts:

1. When `commit` returns, the record survives kill and power cut (with `sync=False`: kill only).
   It costs one write and one fdatasync, and two more syncs where a segment begins.
2. A file is unlinked only after everything in it that is still needed is durable elsewhere.
3. After the first failed write or sync every call raises StoreFailed permanently, because later
   answers of the kernel about the same bytes are unreliable.  The process has to end; the next
   `open` rewrites the unproven tail.
4. StoreFull is raised before anything valid is written, and the store stays usable.  A full disk is
   not a failed one; only a sync that reports it falls under point 3, because the written data is
   unproven then.
5. `open` succeeds past damage (edged/store/salvage.py).  What damage takes is in `salvaged`, and
   once `recover` and the caller's replay are through, in `gaps`.  A damaged file is not removed
   before everything behind it is durable elsewhere.

`commit`, `snapshot` and its parts belong to one thread, except `SnapshotTask.write`, which may run
beside commits.  `acked`, `pending` and the figures are safe on other threads at the same time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from edged.errors import StoreCorrupt, StoreError, StoreFailed
from edged.pages.sealed import SealedPage
from edged.platform.disk import Disk, File, SystemDisk
from edged.store import identity, migration
from edged.store.acks import read_acks, write_acks
from edged.store.adoption import Adoption
from edged.store.errors import StoreFull, no_room
from edged.store.gaps import Gap, GapLog, OnGap
from edged.store.lock import take_lock
from edged.store.log import SegmentLog
from edged.store.lost_identity import read_or_restore_identity, restore_session
from edged.store.page_index import PageIndex, PageRef
from edged.store.records import ALIGN, BeatRecord, Encoded, Hole, RecordEntry
from edged.store.recovery import Linked
from edged.store.salvage import OnSalvaged, Salvage, Salvaged
from edged.store.segments import Segment
from edged.store.shelf_files import ShelfFiles, ShelfKey
from edged.store.snapshot_files import SnapshotFiles, SnapshotTask
from edged.store.snapshots import Array, Snapshot
from edged.store.spool import Spool, SpoolFile
from edged.store.starting_point import Recovery, StartingPoint, check_numbers, find_start
from edged.store.waiting_pages import WaitingPages

SEGMENT_BYTES = 64 << 20
_DIRECTORIES = ("log", "snapshots", "spool", "shelf", "quarantine")


class Store:
    """An open store; create one with `Store.open`."""

    device_epoch: int
    session: tuple[int, int]
    gaps: GapLog
    migrated: tuple[int, int] | None
    """The format that was found and the present one, where this opening migrated the store."""

    def __init__(self, path: str, disk: Disk, segment_bytes: int, bytes_max: int | None) -> None:
        self._path, self._disk, self.bytes_max = path, disk, bytes_max
        self._segment_bytes = segment_bytes
        self._lock: File | None = None
        self._failed, self.tables_bytes = "", 0  # the bytes of the tables' files, by the heart
        self._start_at: StartingPoint | None = None
        self._replay: list[Linked] = []
        self._salvage = Salvage(disk, path)
        self._acks_lock = threading.Lock()
        self.log_bytes_since_snapshot = 0
        """Bytes of the log's records that a restart would replay."""

    # -- start and end -------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        disk: Disk | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        bytes_max: int | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> Store:
        """Open the store in directory `path`, or create one there.  One of an earlier format is
        migrated (`edged.store.migration`), and `tell` hears each step.

        Raises StoreBusy if it is in use, StoreCorrupt if its identity is damaged, StoreError for
        an unknown format, StoreFailed if the disk fails, StoreFull if there is no room for a new
        store or for a copy of the log's end.  After StoreFull the call may be repeated later;
        nothing is lost.
        """
        where = os.path.abspath(os.fspath(path))  # noqa: PTH100 - links must stay as they are
        store = cls(where, disk or SystemDisk(), segment_bytes, bytes_max)
        try:
            with store._latching("opening the store"), no_room(f"{where}: no room to open it"):
                store._start(tell)
        except BaseException:
            store._release()
            raise
        return store

    def close(self) -> None:
        """Close and release the lock.  Omitting it loses nothing."""
        if self._lock is None:
            return
        try:
            if not self._failed:
                with self._latching("closing the store"):
                    self._log.sync()
                    self._write_acks()
        finally:
            self._release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _release(self) -> None:
        if hasattr(self, "_log"):
            self._log.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _start(self, tell: Callable[[str], None]) -> None:
        disk, known = self._disk, f"{self._path}/identity"
        if disk.exists(known):
            with suppress(StoreCorrupt):  # it may follow from other files
                identity.read_identity(disk, known)
        disk.mkdir(self._path)
        self._lock = take_lock(disk, self._path)
        for name in _DIRECTORIES:
            disk.mkdir(f"{self._path}/{name}")
        epoch = read_or_restore_identity(disk, self._path, self._salvage)
        self.device_epoch = self._create(known) if epoch is None else epoch
        self.migrated = migration.migrate(disk, self._path, self.device_epoch, tell)
        restore_session(disk, self._path, self.device_epoch, self._salvage)
        self.session = identity.next_session(disk, f"{self._path}/session", self.device_epoch)
        disk.sync_directory(self._path)
        self._log = SegmentLog(disk, f"{self._path}/log", self.device_epoch, self._segment_bytes)
        spool = Spool(disk, f"{self._path}/spool", self.device_epoch, self._segment_bytes)
        acked, self._hint = read_acks(disk, f"{self._path}/acks", self.device_epoch)
        self._index = PageIndex(acked)
        self.gaps = GapLog(disk, f"{self._path}/gaps", self.device_epoch)
        self._snapshots = SnapshotFiles(disk, f"{self._path}/snapshots", self.device_epoch)
        self._shelf = ShelfFiles(disk, f"{self._path}/shelf", self.device_epoch)
        self._waiting = WaitingPages(
            disk, self._log, spool, self._index, self._snapshots, self.gaps, self._salvage
        )
        self._spool = spool
        self._waiting.renew_gaps(f"{self._path}/gaps")
        self._recover()

    def _create(self, known: str) -> int:
        for name in _DIRECTORIES:
            path = f"{self._path}/{name}"
            if self._disk.exists(path) and self._disk.listdir(path):
                raise StoreCorrupt(
                    f"{known}: missing, but {path} holds data; bring it back, or see docs/store.md"
                )
        epoch = identity.create_identity(self._disk, known)
        self._disk.sync_directory(str(Path(self._path).parent))
        return epoch

    def _recover(self) -> None:
        epoch, salvage, size = self.device_epoch, self._salvage, self._segment_bytes
        start = find_start(self._log.scan(), self._snapshots, self._disk, epoch, size, salvage)
        adoption = Adoption(self._disk, self._log, self._spool, self._index, salvage)
        adoption.take_spool()
        self._shelf.scan()
        self._log.snapshots = start.base + 1 if start.snapshot else 0
        self._replay = adoption.take_log(start)
        self._waiting.lost = {page.key: page for x in self._replay for page in x.entry.lost}
        self.log_bytes_since_snapshot = sum(x.entry.header.length for x in self._replay)
        check_numbers(start, self._hint, self._index.newest(), salvage)
        self._start_at = start
        self._waiting.drop_known()

    def recover(self) -> Recovery:
        """The starting point.  Call it once, before the first commit.

        Holes below the snapshot cost pages only.  Where it has others, the caller records in `gaps`
        what they took, and takes a snapshot with `barrier` of a beat behind them before it commits.
        """
        start, self._start_at = self._start_at, None
        assert start is not None
        replay, self._replay = self._replay, []
        return Recovery(start.snapshot, self._read_back(replay, start.holes_above()), start.end)

    def _read_back(self, replay: list[Linked], holes: Mapping[int, Hole]) -> Iterator[BeatRecord]:
        for x in replay:
            with self._latching(f"reading beat {x.number}"):
                record = self._log.read(x.segment, x.entry)
            record.hole = holes.get(x.number)
            yield record

    @property
    def salvaged(self) -> list[Salvaged]:
        """The damage that was found and passed since the store was opened."""
        return self._salvage.found

    def listen(self, on_salvaged: OnSalvaged, on_gap: OnGap) -> None:
        """Call these for all findings and gaps since the start, and for later ones on the thread of
        the commits."""
        self._salvage.listen(on_salvaged)
        self.gaps.listen(on_gap)

    def page_numbers(self) -> dict[tuple[str, int], int]:
        """The highest page number of each (stream, partition) that the store knows of, whatever
        became of the page."""
        found = self._index.newest()
        return {
            route: max(found.get(route, 0), self._hint.get(route, 0))
            for route in found.keys() | self._hint.keys()
        }

    def regain(self, pages: Iterable[SealedPage]) -> None:
        """Keep those of a replay's pages that its record has lost; they wait as if it had not.
        Raises StoreFull."""
        with self._latching("keeping pages of the replay"):
            self._waiting.regain(pages)

    def missing_pages(self, stream: str, partition: int, last: int) -> list[tuple[int, int]]:
        """The ranges of page numbers up to `last` that are neither acked nor pending."""
        return self._index.missing(stream, partition, last)

    def record_gaps(self, gaps: Iterable[Gap]) -> None:
        """Record losses durably.  Raises StoreFull."""
        with self._latching("recording gaps"):
            self._waiting.record(gaps)

    # -- beats ---------------------------------------------------------------------------------

    def commit(
        self, record: BeatRecord | Encoded, sync: bool = True, at_us: int = 0
    ) -> list[PageRef]:
        """Append a beat, durable on return if `sync`.  Returns the locations of its pages.

        `at_us` is the wall clock from which the pages wait, for `oldest_page_us` and `acked`.  A
        caller that may have to repeat the call encodes the record once. Raises StoreFull, with
        nothing written, if there is no room: take a snapshot, wait for acks, try again.  Raises
        StoreFailed if the disk fails: the process has to end.
        """
        with self._latching(f"committing beat {record.number}"):
            newest = max(self._log.last, self._snapshots.beat)
            if record.number <= newest:
                raise StoreError(f"beat {record.number} cannot be committed after beat {newest}")
            encoded = record if isinstance(record, Encoded) else Encoded(record)
            try:
                segment, entry = self._append(encoded, sync)
            except StoreFull:
                self._waiting.retire(move=False)
                self._log.drop_spares()
                self._snapshots.make_room()
                segment, entry = self._append(encoded, sync)
        self.log_bytes_since_snapshot += encoded.length
        return self._index.add(segment, entry.pages, at_us)

    def _append(self, record: Encoded, sync: bool) -> tuple[Segment, RecordEntry]:
        """Append a record.  If the log has to grow, room for a snapshot must remain; on the disk
        also room for the copy of the log's end that a restart may make.  Raises StoreFull."""
        growth, snapshot = self._log.growth(record.length), self._snapshots.next_bytes
        if not self._log.rolls(record.length):
            return self._log.append(record, sync)
        if self.bytes_max is not None and self.bytes_used + growth + snapshot > self.bytes_max:
            raise StoreFull(
                f"{self._path}: {self.bytes_used} bytes in use, {growth} more for the log and "
                f"{snapshot} for the next snapshot would exceed the limit of {self.bytes_max}; "
                "take a snapshot, wait until pages are acked, or raise the limit"
            )
        free, least = self._disk.free(self._path), ALIGN + record.length
        if growth and least + max(least, snapshot) > free:
            raise StoreFull(
                f"{self._path}: {free} bytes are free on its disk, {least} more for the log and "
                f"{max(least, snapshot)} to spare are needed; free some, or wait for acks"
            )
        small = growth > 0 and growth + max(growth, snapshot) > free
        return self._log.append(record, sync, small=small)

    def snapshot(
        self, beat: int, facts: bytes, arrays: Mapping[str, Array], *, barrier: bool = False
    ) -> list[PageRef]:
        """Make the state after `beat` durable and retire the log segments that it replaces.

        Returns the new locations of unacked pages that moved to the spool.  Raises StoreFull if
        there is no room; the previous snapshot and the log are unchanged then.  With `barrier` no
        replay may ever start before this beat (the job was replaced): older snapshots are deleted.
        """
        task = self.begin_snapshot(beat)
        task.write(facts, arrays)
        return self.end_snapshot(task, barrier=barrier)

    def begin_snapshot(self, beat: int) -> SnapshotTask:
        """Begin a snapshot of the state after `beat`, the last one committed.

        `SnapshotTask.write` may then run on another thread beside commits; `end_snapshot` must
        follow before the next snapshot begins.
        """
        with self._latching(f"beginning the snapshot of beat {beat}"):
            if beat < self._snapshots.beat:
                raise StoreError(f"a snapshot of beat {beat} cannot follow {self._snapshots.beat}")
            self._log.sync()
        return self._snapshots.begin(beat, self.log_bytes_since_snapshot)

    def end_snapshot(self, task: SnapshotTask, *, barrier: bool = False) -> list[PageRef]:
        """Take over a written snapshot; see `snapshot`."""
        with self._latching(f"writing the snapshot of beat {task.beat}"):
            if task.problem is not None:
                with no_room(f"{task.path}: no room for a snapshot"):
                    raise task.problem
            self._snapshots.finish(task)
            self._log.snapshots = task.beat + 1
            self.log_bytes_since_snapshot -= task.log_bytes
            self._write_acks()
            self._log.reclaim()
            moved = self._waiting.retire(move=True)
            first = self._log.segments[0].follows if self._log.segments else self._log.last
            self._snapshots.forget(first, barrier)
        return moved

    def drop_oldest(
        self, jobs: Mapping[str, str], at_us: int = 0
    ) -> tuple[list[Gap], list[PageRef]]:
        """Give up the oldest waiting pages of the streams in `jobs` (stream: job), those of one
        file; `at_us` is the wall clock.

        Returns the gaps that this leaves, which are durable before the pages are gone, and the new
        locations of other pages that moved.  No gaps: there is nothing to give up, or the disk has
        no room for the record of it.
        """
        for holder in self._waiting.droppable():
            with self._latching(f"dropping pages of {holder.path}"):
                try:
                    gaps = self._waiting.give_up(holder, jobs, at_us)
                except StoreFull:
                    return [], []
            if gaps is None:
                continue
            for gap in gaps:
                self.acked(gap.stream, gap.partition or 0, gap.last)
            with self._latching(f"retiring {holder.path}"):
                return gaps, self._waiting.retire(move=True)
        return [], []

    # -- shelved jobs --------------------------------------------------------------------------

    def shelve(self, key: ShelfKey, facts: bytes, arrays: Mapping[str, Array]) -> None:
        """Write a shelf file durably.  Raises StoreFull if the disk has no room for it."""
        with self._latching(f"shelving job {key[0]}"), no_room(f"{self._path}: no room to shelve"):
            self._shelf.write(key, facts, arrays)

    def shelved(self, key: ShelfKey) -> Snapshot:
        """The contents of a shelf file.  Raises StoreCorrupt where it is missing or damaged."""
        with self._latching(f"reading the shelf of job {key[0]}"):
            try:
                return self._shelf.read(key)
            except StoreCorrupt as damage:
                lost = f"the state of job {key[0]}"
                self._salvage.add(self._shelf.path(key), 0, -1, "shelf file", str(damage), lost)
                raise

    def keep_shelved(self, keys: Set[ShelfKey]) -> None:
        """Delete all shelf files but these, which the newest snapshot names.  That snapshot must
        have been taken with `barrier`, so that no recovery needs the others."""
        with self._latching("deleting shelf files"):
            self._shelf.keep(keys)

    # -- pages ---------------------------------------------------------------------------------

    def acked(self, stream: str, partition: int, seq: int) -> list[int]:
        """Record that the centre has everything of (stream, partition) up to `seq`; cumulative.

        Returns for each page covered the wall clock (µs) since which it had been durable.
        """
        holders, since = self._index.ack(stream, partition, seq)
        for holder in holders:
            if isinstance(holder, SpoolFile):
                with self._latching(f"deleting {holder.path}"):
                    self._spool.delete(holder)
                    self._write_acks()
        return since

    def check_page(self, stream: str, partition: int) -> None:
        """Set the first page of a partition aside, as lost, if its bytes are damaged."""
        with suppress(StoreFull), self._latching(f"reading a page of {stream}"):
            self._waiting.check(stream, partition)  # where it is full, the next call finds it again

    def lose_missing(self, stream: str, partition: int, expected: int) -> None:
        """Record as lost the pages from `expected` on that the centre asks for and no file has."""
        with suppress(StoreFull), self._latching(f"recording lost pages of {stream}"):
            self._waiting.lose_missing(stream, partition, expected)

    def check_pages(self) -> None:
        """Read all unacked pages, and set the damaged ones aside as lost.  Raises StoreFull."""
        with self._latching("reading the unacked pages"):
            self._waiting.check_all()

    def take_lost(self) -> list[Gap]:
        """The lost pages that the uplink has to be told of, since the last call."""
        lost, self._waiting.untold = self._waiting.untold, []
        return lost

    @property
    def apart(self) -> Set[str]:
        """Streams whose pages a full store gives up: the spool keeps them in files of their own."""
        return self._waiting.apart

    @apart.setter
    def apart(self, streams: Set[str]) -> None:
        """Set them."""
        self._waiting.apart = streams

    def pending(self) -> list[PageRef]:
        """All unacked pages in (stream, partition, seq) order."""
        return self._index.pending()

    def pending_of(self, streams: Iterable[str]) -> int:
        """Number of unacked pages of these streams."""
        return self._index.pending_of(streams)

    @property
    def oldest_page_us(self) -> int | None:
        """Wall clock (µs) since which the oldest unacked page waits; None without one."""
        return self._index.oldest_us()

    @property
    def syncs(self) -> int:
        """Number of syncs of the log since the start."""
        return self._log.syncs

    @property
    def capacity(self) -> int:
        """Bytes the store can hold now: its own plus those free on the disk, within `bytes_max`."""
        held = self.bytes_used + self._disk.free(self._path)
        return held if self.bytes_max is None else min(held, self.bytes_max)

    def is_crowded(self, size: int, capacity: int) -> bool:
        """Whether the second of two records of this size and a snapshot may exceed `capacity`."""
        more = 2 * max(self._segment_bytes, 2 * ALIGN + size) + self._snapshots.next_bytes
        return self.bytes_used + more > capacity

    @property
    def log_segments(self) -> int:
        """Segments of the log."""
        return len(self._log.segments)

    @property
    def backlog_bytes(self) -> int:
        """Bytes of unacked pages."""
        return self._index.bytes

    @property
    def backlog_pages(self) -> int:
        """Number of unacked pages."""
        return self._index.pages

    @property
    def bytes_used(self) -> int:
        """Bytes on disk: log with preallocated space, spool, snapshots, shelf and tables."""
        parts = (self._log, self._spool, self._snapshots, self._shelf)
        return sum(part.bytes for part in parts) + self.tables_bytes

    def _write_acks(self) -> None:
        with self._acks_lock:
            acked, newest = self._index.high_water(), self._index.newest()
            epoch, session = self.device_epoch, self.session[0]
            write_acks(self._disk, f"{self._path}/acks", epoch, session, acked, newest)

    @contextmanager
    def _latching(self, doing: str) -> Iterator[None]:
        if self._failed:
            raise StoreFailed(self._failed)
        try:
            yield
        except OSError as problem:
            self._failed = (
                f"{self._path}: {doing} failed: {problem}; the process has to end and start again; "
                "check the medium (dmesg) if it fails again"
            )
            raise StoreFailed(self._failed) from problem
