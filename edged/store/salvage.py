"""Salvage: how a start gets past damage, and the record of what it found.

Damaged bytes are never used and never deleted unseen: a copy of them goes to `STORE/quarantine`,
under a name made from file and offset, so that a repeated start writes it once.  Of one place at
most KEPT_BYTES are copied, and nothing more once the copies take QUARANTINE_BYTES.  A copy for
which the disk has no room is left out.

Until everything behind it is durable elsewhere, a damaged file stays as it is.  A start that is
interrupted therefore finds the same damage again.

Pages carry their own name and checksum (`edged.pages.format`).  They are carved out of damaged
bytes: a page that is whole is delivered, whatever happened to the record or table around it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edged.pages.header import HEADER, HEADER_BYTES, MAGIC, checksum
from edged.pages.sealed import PageKey
from edged.platform.disk import DISK_FULL, Disk, File, replace_file
from edged.store.patient_file import open_patiently
from edged.store.records import PageEntry

KEPT_BYTES, QUARANTINE_BYTES = 1 << 20, 64 << 20
_SUFFIX = ".damaged"
_PAGE_BYTES_MAX = 17 << 20
_CHUNK = 1 << 20
_WORD = int.from_bytes(MAGIC, "little")


@dataclass(frozen=True, slots=True)
class Salvaged:
    """One damaged place that was passed."""

    file: str
    """Path below the store."""
    offset: int
    length: int
    kind: str
    """`log record`, `log segment`, `page`, `snapshot`, `spool file`, `shelf file`, `identity`,
    `session`, `acks`, `gaps`."""
    problem: str
    lost: str = ""
    """What is lost, in words; empty: nothing."""
    kept: str = ""
    """The copy of the bytes, below the store; empty: none."""

    def text(self) -> str:
        """The finding in one line."""
        kept = f"; its bytes are in {self.kept}" if self.kept else ""
        lost = self.lost or "nothing is lost"
        return f"{self.file}, offset {self.offset}: {self.kind}: {self.problem}; {lost}{kept}"

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


OnSalvaged = Callable[[Salvaged], None]


class Salvage:
    """The findings of one store since it was opened, and the copies that it keeps."""

    def __init__(self, disk: Disk, store: str) -> None:
        self._disk, self._store = disk, store
        self._directory = f"{store}/quarantine"
        self.found: list[Salvaged] = []
        self._on_found: OnSalvaged | None = None

    def listen(self, on_found: OnSalvaged) -> None:
        """Call `on_found` for every finding so far, and for later ones on the thread of the
        store."""
        self._on_found = on_found
        for finding in self.found:
            on_found(finding)

    def add(
        self, path: str, offset: int, length: int, kind: str, problem: str, lost: str = ""
    ) -> None:
        """Record a finding and keep a copy of its bytes.  A negative `length` takes them all, if
        the file is there."""
        kept = ""
        if length >= 0 or self._disk.exists(path):
            length = length if length >= 0 else self._size(path)
            kept = self._keep(path, offset, length)
        self.note(path, offset, max(0, length), kind, problem, lost, kept)

    def note(
        self, path: str, offset: int, length: int, kind: str, problem: str, lost: str, kept: str
    ) -> None:
        """Record a finding whose bytes are kept as `kept`, an absolute path, or not at all."""
        kept = kept.removeprefix(f"{self._store}/")
        file = path.removeprefix(f"{self._store}/")
        finding = Salvaged(file, offset, length, kind, problem, lost, kept)
        self.found.append(finding)
        if self._on_found is not None:
            self._on_found(finding)

    def move(self, path: str, kind: str, problem: str, lost: str = "") -> None:
        """Set a whole file aside."""
        self.note(path, 0, self._size(path), kind, problem, lost, self.set_aside(path))

    def set_aside(self, path: str) -> str:
        """Move a file into quarantine; returns its place there."""
        kept = f"{self._directory}/{path.rpartition('/')[2]}"
        self._disk.rename(path, kept)
        return kept

    def _keep(self, path: str, offset: int, length: int) -> str:
        directory, _, name = path.removeprefix(f"{self._store}/").rpartition("/")
        kept = f"{self._directory}/{directory and directory + '-'}{name}-{offset}{_SUFFIX}"
        if self._disk.exists(kept):
            return kept
        if self._kept_bytes() >= QUARANTINE_BYTES:
            return ""
        file = open_patiently(self._disk, path)
        try:
            data = file.pread(min(length, KEPT_BYTES), offset)
            replace_file(self._disk, kept, [data])
        except OSError as problem:
            if problem.errno not in DISK_FULL:
                raise
            return ""
        finally:
            file.close()
        return kept

    def _kept_bytes(self) -> int:
        names = [n for n in self._disk.listdir(self._directory) if n.endswith(_SUFFIX)]
        return sum(self._size(f"{self._directory}/{name}") for name in names)

    def _size(self, path: str) -> int:
        file = self._disk.open(path)
        try:
            return file.size()
        finally:
            file.close()


def carve(
    file: File, start: int, end: int, epoch: int, of: Callable[[int], bool] = lambda beat: True
) -> list[PageEntry]:
    """The whole pages of the store `epoch` that begin in `start` to `end`, in order; those of beats
    for which `of` is False are left out."""
    found, behind = list[PageEntry](), start
    for at in _magics(file, start, end):
        if at < behind:
            continue
        page = _page(file, at, epoch, of)
        if page is not None:
            found.append(page)
            behind = at + page.length
    return found


def _magics(file: File, start: int, end: int) -> Iterator[int]:
    """Where a page's magic is at a multiple of 8."""
    start += -start % 8
    for base in range(start, end, _CHUNK):
        data = file.pread(min(_CHUNK, end - base), base)
        words = np.frombuffer(data, "<u4", len(data) // 4)[::2]
        for i in np.flatnonzero(words == _WORD):
            yield base + 8 * int(i)


def _page(file: File, at: int, epoch: int, of: Callable[[int], bool]) -> PageEntry | None:
    head = file.pread(HEADER_BYTES, at)
    if len(head) < HEADER_BYTES:
        return None
    fields = HEADER.unpack(head)
    length, crc, owner, seq, beat, partition, stream = (
        fields[6], fields[10], fields[11], fields[12], fields[13], fields[14], fields[22],
    )  # fmt: skip
    if owner != epoch or not HEADER_BYTES <= length <= _PAGE_BYTES_MAX or not of(beat):
        return None
    data = file.pread(length, at)
    if len(data) < length or checksum(data) != crc:
        return None
    key = PageKey(stream.rstrip(b"\0").decode(), partition, seq)
    return PageEntry(key, at, length, zlib.crc32(data))
