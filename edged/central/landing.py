"""The landing: the centre's store of pages.  One interface, one implementation.

    LANDING/format                               the landing's format            (landing_format.py)
    LANDING/schemas/<stream>@<version>.json      registered schemas              (schemas.py)
    LANDING/segments/seg-*.pages, seg-*.idx      pages and committed rows        (segments.py)
    LANDING/segments/seg-*.crc                   checksums of the rows           (row_checks.py)
    LANDING/segments/seg-*.sum                   a sealed segment's high waters  (seals.py)
    LANDING/devices/<hash>.record                high waters and sessions        (highwater.py)
    LANDING/desired/<device>.json                desired states, written by others
    LANDING/consumers/<name>.json                readers and their positions     (consumers.py)
    LANDING/compacted/                           sealed segments as Parquet      (compacted.py)
    LANDING/shares                               bytes of each device's pages    (landing_quota.py)
    LANDING/instances/<instance>.lock            flocked by the owner of its segments

A group of deliveries is committed under the locks of its devices (taken in the order of their
hashes): decide (`admit`); mark the records as in doubt; append; fdatasync of the pages; rows;
fdatasync of the rows; high waters, which removes the mark.  A process that finds the mark (its
writer died) reads the truth from the rows.  The second fdatasync makes the rows, not the high
waters, authoritative: a high water never counts a page that a power cut could lose.

A segment that has reached its size is sealed: the records of its devices are made durable,
SEAL_DEVICES at a time between two commits, then its `seg-*.sum` is written.  An acknowledgement
does not wait for a seal, and needs none: until the summary is written the segment counts as
unsealed, and after a death at any step the next start counts its rows and seals it.  At start

 1. the rows of every unsealed segment, of all collectors, are counted in the records;
 2. valid pages after the last row of the own segments that follow on their device's high water
    (durable, but not yet visible when the process ended) get their rows; the rest was never
    acknowledged and is cut off.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edged.central import consumers, landing_format, seals, segments
from edged.central.admission import (
    FULL,
    QUOTA,
    Delivery,
    DeliveryOutcome,
    PageProblem,
    admit,
    follows,
)
from edged.central.desired import DesiredStates
from edged.central.highwater import DeviceRecord, DeviceRecords, HighWater
from edged.central.landing_quota import LandingQuota
from edged.central.schemas import SchemaRegistry
from edged.central.segments import ROW, Rows, SegmentWriter
from edged.errors import CentralError, PageError
from edged.pages.format import Header, parse_header, verify
from edged.platform.clock import Clock, SystemClock

_LOG = logging.getLogger(__name__)
FREE_BYTES_MIN = 64 << 20
"""Reserved for rows, records and summaries, and for the start after a crash."""
_FULL = "the landing's disk is full"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_INSTANCES_MAX = 1024
_CRCS_REMEMBERED = 1 << 16
SEAL_DEVICES = 32
"""Records made durable in one step of a seal; a segment of fewer devices is sealed at once."""


class Registrations(Protocol):
    """What a collector knows beside pages; safe on any thread."""

    def register(self, stream: str, version: int, text: str) -> None:
        """Register a schema durably; raises SchemaMismatch if another one is registered."""

    def schema(self, stream: str, version: int) -> str | None:
        """The registered schema's JSON text."""

    def desired(self, device: str, known: int = 0) -> Any:
        """The desired state of `device`: a JSON value, None without one.

        If it has `version` and `document`, the document is left out for a version that is `known`
        or older.
        """

    def largest_share(self) -> float:
        """The largest share of its quota that a device uses; safe on any thread."""


class Landing(Registrations, Protocol):
    """The interface of a page store, as a collector uses it."""

    def commit(self, deliveries: Sequence[Delivery]) -> list[DeliveryOutcome]:
        """Land what is admitted, durably and visibly; one outcome per delivery.

        After an exception nothing may be acknowledged and the process must end.
        """

    def work_off(self) -> bool:
        """Do a short step of work that no acknowledgement waits for; whether there is more.

        After an exception as after one of `commit`.
        """

    def close(self) -> None:
        """Release the landing."""


class DirectoryLanding:
    """A landing in a directory, which several collectors may share.

    `on_sync` is called with the seconds that a sync of pages took.  Only `schema`, `register`,
    `desired` and `largest_share` are safe on other threads.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        segment_bytes: int = segments.SEGMENT_BYTES,
        device_share: float = 1.0,
        clock: Clock | None = None,
        on_sync: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.path = Path(path)
        self._on_sync = on_sync
        self._clock = clock or SystemClock()
        self._segment_bytes = segment_bytes
        landing_format.create(self.path, fresh=not segments.segments_dir(self.path).is_dir())
        segments.segments_dir(self.path).mkdir(parents=True, exist_ok=True)
        consumers.make(self.path)
        self._schemas = SchemaRegistry(self.path)
        self._records = DeviceRecords(self.path / "devices", self._highs_of)
        self._crcs: OrderedDict[tuple[str, int, str, int, int], int] = OrderedDict()
        self._desired = DesiredStates(self.path / "desired")
        self.instance, self._claim = _claim_instance(self.path)
        self._was_full = False
        self._number = 0
        self._writer: SegmentWriter | None = None
        self._seals: deque[Iterator[bool]] = deque()
        """Seals that are under way, oldest first; each yields while steps are left."""
        self._recover()
        self.quota = LandingQuota(self.path, device_share)

    # -- the Landing interface

    def register(self, stream: str, version: int, text: str) -> None:
        """See `Landing`."""
        self._schemas.register(stream, version, text)

    def schema(self, stream: str, version: int) -> str | None:
        """See `Landing`."""
        return self._schemas.get(stream, version)

    def desired(self, device: str, known: int = 0) -> Any:
        """See `Landing`."""
        return self._desired.of(device, known)

    def commit(self, deliveries: Sequence[Delivery]) -> list[DeliveryOutcome]:
        """See `Landing`."""
        if self._disk_is_full(deliveries):
            return [DeliveryOutcome(problem=PageProblem(FULL, _FULL)) for _ in deliveries]
        hashes = [segments.device_hash(d.device) for d in deliveries]
        with self._records.locked_all(hashes) as records:
            outcomes, sizes = self._decide(deliveries, hashes, records)
            landed = [page for o in outcomes for page in o.landed]
            for record in records.values():
                record.mark_in_doubt()
            if landed and not self._land(landed):
                for record in records.values():
                    record.discard()
                return [DeliveryOutcome(problem=PageProblem(FULL, _FULL)) for _ in deliveries]
            fenced = {h for o, h in zip(outcomes, hashes, strict=True) if o.new_session}
            for record in records.values():
                record.save()
            self._records.sync([records[device] for device in sorted(fenced)])
        for header, _ in landed:
            self._remember_crc(header)
        self.quota.add(sizes)
        if self._writer is not None and self._writer.size >= self._segment_bytes:
            self._roll()
        return outcomes

    def work_off(self) -> bool:
        """See `Landing`: a step of the oldest seal."""
        if self._seals and not next(self._seals[0], False):
            self._seals.popleft()
        return bool(self._seals)

    def largest_share(self) -> float:
        """See `Landing`."""
        return self.quota.largest()

    def close(self) -> None:
        """Close the files and release the instance's name.  Everything is already durable; a seal
        that is under way is left to the next start."""
        self._records.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.quota.close()
        os.close(self._claim)

    # -- landing pages

    def _decide(
        self,
        deliveries: Sequence[Delivery],
        hashes: Sequence[int],
        records: Mapping[int, DeviceRecord],
    ) -> tuple[list[DeliveryOutcome], Counter[int]]:
        """What becomes of each delivery, and the bytes that land of each device."""
        outcomes, sizes = [], Counter[int]()
        for delivery, device in zip(deliveries, hashes, strict=True):
            outcome = self._quota_problem(delivery, device, sizes[device])
            if outcome is None:
                table = records[device].table
                outcome = admit(delivery, table, self._schemas.registered, self._known_crc)
                sizes[device] += sum([len(page) for _, page in outcome.landed])
            outcomes.append(outcome)
        return outcomes, sizes

    def _quota_problem(
        self, delivery: Delivery, device: int, landing: int
    ) -> DeliveryOutcome | None:
        """The answer to a device beyond its quota, of which `landing` bytes are about to land; None
        if it is within."""
        size = sum([len(page) for _, page in delivery.pages])
        if not size or not self.quota.would_exceed(device, landing + size):
            return None
        most = self.quota.bytes_max
        return DeliveryOutcome(
            problem=PageProblem(
                QUOTA,
                f"device {delivery.device} has {self.quota.held(device)} bytes of pages in the "
                f"landing, which gives one device {most} at most: its pages wait until some are "
                "deleted (edged central expire), or --device-share is raised",
            )
        )

    def _disk_is_full(self, deliveries: Sequence[Delivery]) -> bool:
        """Whether the deliveries would leave less than FREE_BYTES_MIN.  Checked before anything is
        written, so that the rows, records and summaries of a started commit never find the disk
        full."""
        size = sum([len(page) for d in deliveries for _, page in d.pages])
        disk = os.statvfs(self.path)
        full = size > 0 and disk.f_bavail * disk.f_frsize < size + FREE_BYTES_MIN
        if full and not self._was_full:
            _LOG.error("the landing's disk is full: less than %d bytes are left", FREE_BYTES_MIN)
        self._was_full = full
        return full

    def _land(self, landed: Sequence[tuple[Header, memoryview]]) -> bool:
        """Make the pages durable and visible; False (and nothing done) if the disk is full."""
        writer = self._writer or self._open()
        start = writer.size
        try:
            writer.append([page for _, page in landed])
            started_us = self._clock.monotonic_us()
            writer.sync()
            self._on_sync((self._clock.monotonic_us() - started_us) / 1e6)
        except OSError as problem:
            if problem.errno not in _NO_SPACE:
                raise
            _LOG.error("the landing's disk is full: %s", problem)
            writer.cut(start)
            return False
        writer.commit(_rows([h for h, _ in landed], start, self._clock.wall_us()))
        return True

    def _open(self) -> SegmentWriter:
        self._number += 1
        name = segments.segment_name(self.instance, self._number)
        self._writer = SegmentWriter(self.path, name)
        return self._writer

    def _roll(self) -> None:
        assert self._writer is not None
        name = self._writer.name
        self._writer.close()
        self._writer = None
        self._seals.append(self._seal(name))
        if len(self._seals) == 1:
            self.work_off()

    def _known_crc(self, header: Header) -> int | None:
        return self._crcs.get(_name(header))

    def _remember_crc(self, header: Header) -> None:
        self._crcs[_name(header)] = header.checksum
        if len(self._crcs) > _CRCS_REMEMBERED:
            self._crcs.popitem(last=False)

    # -- sealing

    def _seal(self, name: str) -> Iterator[bool]:
        """Seal a segment, step by step."""
        rows = seals.greatest(_known(segments.renew_rows(self.path, name)))
        devices = sorted(set(rows["device_hash"].tolist()))
        for at in range(0, len(devices), SEAL_DEVICES):
            with self._records.locked_all(devices[at : at + SEAL_DEVICES]) as records:
                self._records.sync(list(records.values()))
            if at + SEAL_DEVICES < len(devices):
                yield True
        seals.write(self.path, name, rows)

    # -- starting

    def _recover(self) -> None:
        listed = segments.list_segments(self.path)
        unsealed = [name for name in listed if seals.read(self.path, name) is None]
        for name in unsealed:
            self._count(_known(segments.renew_rows(self.path, name)))
        own = [name for name in unsealed if segments.parse_name(name)[0] == self.instance]
        for name in own:
            self._recover_tail(name)
        numbers = [
            number
            for instance, number in map(segments.parse_name, seals.all_names(self.path))
            if instance == self.instance
        ]
        self._number = max(numbers, default=0)
        for name in own:
            if segments.parse_name(name)[1] != self._number:
                self._seals.append(self._seal(name))
        last = segments.segment_name(self.instance, self._number)
        if last in own:
            self._writer = SegmentWriter(self.path, last)
            if self._writer.size >= self._segment_bytes:
                self._roll()
        for _ in range(len(self._seals)):
            self.work_off()

    def _highs(self, rows: Rows) -> list[tuple[int, HighWater]]:
        """(device hash, high water) of the greatest rows among `rows`."""
        streams = self._schemas.streams_by_hash()
        found = []
        for row in seals.greatest(rows):
            stream = streams.get(int(row["stream_hash"]))
            if stream is None:
                _LOG.error(
                    "the schema file of a landed page is missing; its sequence is not counted"
                )
                continue
            found.append(
                (
                    int(row["device_hash"]),
                    HighWater(
                        int(row["epoch"]),
                        stream,
                        int(row["partition"]),
                        int(row["seq"]),
                        int(row["crc"]),
                    ),
                )
            )
        return found

    def _count(self, rows: Rows) -> None:
        """Raise the records to the high waters of `rows`."""
        highs: dict[int, list[HighWater]] = {}
        for device, high in self._highs(rows):
            highs.setdefault(device, []).append(high)
        for device in sorted(highs):
            with self._records.locked(device) as record:
                for h in highs[device]:
                    record.table.raise_high(h.epoch, h.stream, h.partition, h.seq, h.crc)
                record.save()

    def _highs_of(self, devices: Collection[int]) -> Iterable[tuple[int, HighWater]]:
        """The high waters of devices in all rows and summaries, to rebuild lost records."""
        wanted = np.array(sorted(devices), np.uint64)
        for name in sorted(seals.all_names(self.path)):
            rows = seals.read(self.path, name)
            if rows is None:
                try:
                    rows = _known(segments.renew_rows(self.path, name))
                except FileNotFoundError:  # folded into a later summary, which follows in this loop
                    continue
            mine = rows[np.isin(rows["device_hash"], wanted)]
            if len(mine):
                yield from self._highs(mine)

    def _recover_tail(self, name: str) -> None:
        writer = SegmentWriter(self.path, name)
        pages = _valid_pages(writer.renew_tail(), writer.tail)
        kept = 0
        for offset, header in pages:
            stream = segments.digest64(header.stream)
            with self._records.locked(segments.device_hash(header.device)) as record:
                high, _ = record.table.high(header.epoch, stream, header.partition)
                if not follows(header, high):
                    continue
                writer.commit(_rows([header], offset, self._clock.wall_us()))
                record.table.raise_high(
                    header.epoch, stream, header.partition, header.seq, header.checksum
                )
                record.save()
                kept += 1
        if writer.size > writer.tail:
            _LOG.warning(
                "%s: %d bytes that were never visible are cut", name, writer.size - writer.tail
            )
            writer.cut(writer.tail)
        if kept:
            _LOG.warning("%s: %d durable pages were made visible", name, kept)
        writer.close()


def _known(rows: Rows) -> Rows:
    """The rows without those that are damaged together with their pages."""
    known: Rows = rows[rows["length"] > 0]
    return known


def _claim_instance(landing: Path) -> tuple[str, int]:
    """The first instance name that no running collector holds, and its lock."""
    directory = landing / "instances"
    directory.mkdir(parents=True, exist_ok=True)
    for i in range(_INSTANCES_MAX):
        fd = os.open(directory / f"c{i}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return f"c{i}", fd
        except BlockingIOError:
            os.close(fd)
    raise CentralError(f"{_INSTANCES_MAX} collectors run on {landing} already")


def _name(header: Header) -> tuple[str, int, str, int, int]:
    return header.device, header.epoch, header.stream, header.partition, header.seq


def _rows(headers: Sequence[Header], start: int, landed_at_us: int) -> Rows:
    """Rows of pages that lie end to end from `start` on."""
    data = bytearray()
    for h in headers:
        data += segments.pack_row(
            start, h.stored_bytes, h.checksum, h.tuples, h.partition, h.seq, h.epoch, landed_at_us,
            segments.stream_hash(h.stream, h.version), segments.device_hash(h.device),
        )  # fmt: skip
        start += h.stored_bytes
    rows: Rows = np.frombuffer(data, ROW)
    return rows


def _valid_pages(data: bytes, start: int) -> list[tuple[int, Header]]:
    """The valid pages at the beginning of `data`, with their offsets counted from `start`."""
    found, at, view = [], 0, memoryview(data)
    while at < len(data):
        try:
            header = verify(view[at : at + parse_header(view, at).stored_bytes])
        except PageError:
            break
        found.append((start + at, header))
        at += header.stored_bytes
    return found
