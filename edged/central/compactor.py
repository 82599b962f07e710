"""The compactor: rewrites sealed segments of a landing as Parquet (`edged/central/compacted.py`).

Segments are taken oldest first, in groups of about `group_bytes` of pages.  A group is compacted in
these steps:

 1. its pages are read, verified as Spark verifies them, and written to one Parquet file for each
    stream, in row groups, with page index and checksums;
 2. the files are synced and get their names, the directories are synced;
 3. under the lock that retention holds, the manifest with the group replaces the one before.

The third step is the commit: before it the rows are read from pages, after it from Parquet.  A
process that dies earlier leaves files that count for nothing; the next run deletes them.  Nothing
of a segment is deleted here: `edged/central/expire.py` does that, later.

A segment with a page that cannot be read stays as it is, with all of its pages, and is named in the
manifest.  Memory is bounded by a row group, disk space is checked before a group is written.  One
compactor at a time works on a landing; collectors, readers and retention may run meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edged.central import compacted, consumers, landing_format, schema_files, seals, segments
from edged.central._source_read import decode
from edged.central.compacted import Compacted, CompactedFile, CompactedGroup
from edged.central.compacted_writer import CompactedWriter
from edged.central.landing import FREE_BYTES_MIN
from edged.central.read_request import METADATA, Request, resolve
from edged.central.segments import Rows
from edged.errors import CentralError, PageError
from edged.pages.format import parse_header
from edged.pages.header import HEADER_BYTES
from edged.platform.clock import Clock, SystemClock

GROUP_BYTES = 512 << 20
"""Page bytes of a group, about."""
_PAGE_METADATA_BYTES = 400
"""Bytes that the origin of a page's rows takes in Parquet, at most."""
_FILE_BYTES = 1 << 20
"""Bytes of a file's footer and indexes, about."""


@dataclass
class Compaction:
    """What a run did."""

    groups: int = 0
    segments: int = 0
    rows: int = 0
    page_bytes: int = 0
    parquet_bytes: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    """Segments that stay because of damage, and their problems."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Segments that stay for another reason."""
    no_room: str = ""
    """Why the run ended early; empty if it did not."""


class _SegmentFault(Exception):
    """A segment that is left out of its group."""

    def __init__(self, segment: str, problem: str, damage: bool = True) -> None:
        self.segment, self.problem, self.damage = segment, problem, damage
        super().__init__(f"{segment}: {problem}")


class _NoRoom(Exception):
    """The disk has no room for a group."""


class _Gone(Exception):
    """Retention has deleted a segment of the group."""


def compact(
    landing: str | Path, group_bytes: int = GROUP_BYTES, clock: Clock | None = None
) -> Compaction:
    """Compact every sealed segment that is not compacted yet.

    Raises CentralError if another compactor runs, the manifest is damaged, or the landing has an
    unknown format.
    """
    landing_format.require(landing)
    with _alone(landing):
        return _CompactorRun(Path(landing), group_bytes, clock or SystemClock()).run()


@contextmanager
def _alone(landing: str | Path) -> Iterator[None]:
    """Hold the lock of compactors."""
    place = compacted.directory(landing)
    if not place.exists():
        place.mkdir(exist_ok=True)
        segments.sync_directory(place.parent)
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as problem:
        raise CentralError(f"{place}: another compactor runs") from problem
    finally:
        os.close(fd)


class _CompactorRun:
    """One run over what is sealed."""

    def __init__(self, landing: Path, group_bytes: int, clock: Clock) -> None:
        self._landing, self._group_bytes, self._clock = landing, group_bytes, clock
        self._result = Compaction()

    def run(self) -> Compaction:
        with consumers.locked(self._landing):  # files of a manifest in progress stay
            content = compacted.read(self._landing)
            for file in compacted.unnamed_files(self._landing, content):
                file.unlink()
            there = set(segments.list_segments(self._landing))
            left = {name: why for name, why in content.left.items() if name in there}
            if left != content.left:  # retention has deleted them
                content = replace(content, left=left)
                compacted.write(self._landing, content)
        self._result.damaged.update(content.left)
        names = self._candidates(content)
        try:
            while names:
                names = self._next_group(names)
        except _NoRoom as problem:
            self._result.no_room = str(problem)
        return self._result

    def _candidates(self, content: Compacted) -> list[str]:
        """Sealed segments to compact, in the order in which they began to land."""
        done = content.segments() | set(content.left)
        found = []
        for name in segments.list_segments(self._landing):
            if name not in done and seals.read(self._landing, name) is not None:
                try:
                    first = segments.read_rows(self._landing, name, 0, 1)
                except FileNotFoundError:  # deleted meanwhile
                    continue
                found.append((int(first["landed_at_us"][0]) if len(first) else 0, name))
        return [name for _, name in sorted(found)]

    def _next_group(self, names: list[str]) -> list[str]:
        """Compact the next group; returns what is left to do."""
        taken: dict[str, Rows] = {}
        size = 0
        while names and (not taken or size < self._group_bytes):
            name, names = names[0], names[1:]
            try:
                taken[name] = self._index(name)
                size += int(taken[name]["length"].sum())
            except _SegmentFault as fault:
                self._leave(fault)
        while taken:
            try:
                self._compact(taken)
                break
            except _SegmentFault as fault:
                self._leave(fault)
                del taken[fault.segment]
            except _Gone:
                there = set(segments.list_segments(self._landing))
                taken = {name: rows for name, rows in taken.items() if name in there}
        return names

    def _leave(self, fault: _SegmentFault) -> None:
        """Leave a segment as it is, for good if it is damaged."""
        if not fault.damage:
            if fault.problem:
                self._result.waiting[fault.segment] = fault.problem
            return
        self._result.damaged[fault.segment] = fault.problem
        with consumers.locked(self._landing):
            content = compacted.read(self._landing)
            left = {**content.left, fault.segment: fault.problem}
            compacted.write(self._landing, replace(content, left=left))

    def _index(self, name: str) -> Rows:
        """The rows of a segment.  Raises _SegmentFault."""
        try:
            rows, faults = segments.checked_rows(self._landing, name)
        except FileNotFoundError:
            raise _SegmentFault(name, "", damage=False) from None
        except OSError as problem:
            raise _SegmentFault(name, str(problem), damage=False) from problem
        if faults.lost:
            raise _SegmentFault(name, f"row {faults.lost[0]} is damaged, and so is its page")
        return rows

    # -- one group

    def _compact(self, taken: Mapping[str, Rows]) -> None:
        content = compacted.read(self._landing)
        requests = self._requests(taken)
        self._require_room(taken, len(requests))
        group = CompactedGroup(
            content.next, 0, _newest(taken), {n: len(rows) for n, rows in taken.items()}, ()
        )
        try:
            files = tuple(self._write(request, taken, group) for request in requests)
            group = replace(group, files=files, committed_us=self._clock.wall_us())
            with consumers.locked(self._landing):
                self._commit(group)
        except (_SegmentFault, _Gone):  # not committed
            self._delete_uncommitted(requests, group)
            raise
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._delete_uncommitted(requests, group)
            raise _NoRoom(f"a group of {len(taken)} segments: {problem}") from problem
        self._result.groups += 1
        self._result.segments += len(taken)
        self._result.rows += sum(file.rows for file in files)
        self._result.page_bytes += sum(int(rows["length"].sum()) for rows in taken.values())
        self._result.parquet_bytes += sum(file.bytes for file in files)

    def _commit(self, group: CompactedGroup) -> None:
        if not set(segments.list_segments(self._landing)).issuperset(group.segments):
            raise _Gone
        content = compacted.read(self._landing)
        compacted.write(self._landing, content.with_group(group))

    def _delete_uncommitted(self, requests: Sequence[Request], group: CompactedGroup) -> None:
        """Delete a group's files, unless its manifest is in place already."""
        with consumers.locked(self._landing):
            if group.number in {g.number for g in compacted.read(self._landing).groups}:
                return
            for request in requests:
                group.path(self._landing, _file(request)).unlink(missing_ok=True)

    def _requests(self, taken: Mapping[str, Rows]) -> list[Request]:
        """A request of all columns for each stream.  Raises _SegmentFault for a stream that cannot
        be written."""
        names = {segments.digest64(n): n for n in schema_files.names(self._landing / "schemas")}
        found: dict[int, Request] = {}
        for segment, rows in taken.items():
            for number in sorted(set(rows["stream_hash"].tolist()) - found.keys()):
                if number not in names:
                    problem = "the schema of a stream in it is missing"
                    raise _SegmentFault(segment, problem, damage=False)
                try:
                    request = resolve(self._landing, names[number], metadata=True)
                except CentralError as problem:
                    raise _SegmentFault(segment, str(problem), damage=False) from problem
                columns = [name.lower() for name in request.schema.names]
                if len({*columns, *METADATA}) < len(columns) + len(METADATA):
                    text = f"{names[number]} has columns that Spark does not tell apart"
                    raise _SegmentFault(segment, text, damage=False)
                found[number] = replace(request, spark_types=False, fail_on_corrupt=True)
        return [found[number] for number in sorted(found)]

    def _require_room(self, taken: Mapping[str, Rows], files: int) -> None:
        need = files * _FILE_BYTES + 2 * FREE_BYTES_MIN
        for name, rows in taken.items():
            need += len(rows) * _PAGE_METADATA_BYTES + self._raw_bytes(name, rows) * 6 // 5
        disk = os.statvfs(self._landing)
        free = disk.f_bavail * disk.f_frsize
        if free < need:
            raise _NoRoom(f"a group of {len(taken)} segments needs {need} bytes, {free} are free")

    def _raw_bytes(self, name: str, rows: Rows) -> int:
        """Bytes of the pages without compression, from their headers."""
        total = 0
        try:
            with segments.pages_path(self._landing, name).open("rb", buffering=0) as file:
                for row in rows[["offset", "length"]].tolist():
                    head = os.pread(file.fileno(), 4, row[0] + 16)
                    raw = int.from_bytes(head, "little")
                    total += raw if raw <= 16 << 20 else row[1]
        except FileNotFoundError:
            raise _SegmentFault(name, "", damage=False) from None
        except OSError as problem:
            raise _SegmentFault(name, str(problem), damage=False) from problem
        return total

    def _write(
        self, request: Request, taken: Mapping[str, Rows], group: CompactedGroup
    ) -> CompactedFile:
        """Write the file of one stream durably."""
        path = group.path(self._landing, _file(request))
        path.parent.mkdir(exist_ok=True)
        pages = _Pages(self._landing, request, taken)
        expected = sum(int(rows["tuples"].sum()) for _, rows in pages.order)
        with CompactedWriter(path, request) as writer:
            try:
                for batch in decode(request, iter(pages)):
                    writer.write(batch)
            except PageError as problem:
                raise _SegmentFault(pages.segment, str(problem)) from problem
            except CentralError as problem:  # rows that the data source does not read either
                raise _SegmentFault(pages.segment, str(problem), damage=False) from problem
            file = writer.finish()
        if file.rows != expected:
            raise CentralError(f"{path}: {file.rows} rows written, {expected} are landed")
        segments.sync_directory(path.parent)
        segments.sync_directory(path.parent.parent)
        return file


class _Pages:
    """The pages of one stream in a group, by device, then in the order in which they landed."""

    def __init__(self, landing: Path, request: Request, taken: Mapping[str, Rows]) -> None:
        self._landing = landing
        parts = []
        for turn, (name, rows) in enumerate(taken.items()):
            mine = request.wanted(rows)
            mine = mine[np.argsort(mine["device_hash"], kind="stable")]
            devices, starts = np.unique(mine["device_hash"], return_index=True)
            for device, of_device in zip(
                devices.tolist(), np.split(mine, starts[1:]), strict=False
            ):
                parts.append((device, turn, name, of_device))
        names = {device: self._device(segment, rows) for device, _, segment, rows in parts}
        parts.sort(key=lambda part: (names[part[0]], part[0], part[1]))
        self.order = [(name, rows) for _, _, name, rows in parts]
        self.segment = ""
        """The segment of the page that was given last."""

    def _device(self, segment: str, rows: Rows) -> str:
        """The device's name, for the order only: the page is verified later."""
        try:
            with segments.pages_path(self._landing, segment).open("rb", buffering=0) as file:
                head = os.pread(file.fileno(), HEADER_BYTES, int(rows["offset"][0]))
            return parse_header(head).device
        except (OSError, PageError):
            return ""

    def __iter__(self) -> Iterator[tuple[str, Any, memoryview]]:
        for name, rows in self.order:
            self.segment = name
            try:
                for row, page in zip(
                    rows, segments.read_pages(self._landing, name, rows), strict=True
                ):
                    yield name, row, page
            except FileNotFoundError:
                raise _Gone from None
            except OSError as problem:
                raise _SegmentFault(name, str(problem), damage=False) from problem


def _file(request: Request) -> CompactedFile:
    """A stream's file before it is written."""
    return CompactedFile(request.name, 0, 0, 0, 0)


def _newest(taken: Mapping[str, Rows]) -> int:
    """When the newest page landed."""
    return max((int(rows["landed_at_us"].max()) for rows in taken.values() if len(rows)), default=0)
