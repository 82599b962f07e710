"""The spool: unacked pages that outlived their log segment.

A file `spool/<number:016d>.pages` is written once, made durable under a temporary name, renamed,
and deleted when all of its pages are acked.  Little-endian: u32 magic 0x50676445 ("EdgP"), u16
version 1, u16 zero, u64 number, u64 device epoch, u64 count of pages, 28 zero bytes, u32 CRC-32 of
the 60 bytes before and of the table; the table of page entries (edged/store/records.py); then the
pages, each padded with zeros to a multiple of 8.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Container, Sequence
from functools import partial

from edged.pages.sealed import SealedPage
from edged.platform.disk import Buffer, Disk, File
from edged.store.errors import StoreFull, no_room
from edged.store.page_index import Holder, PendingPage
from edged.store.patient_file import open_patiently
from edged.store.records import PAGE_ENTRY_BYTES, PageEntry, pack_page, padding, unpack_pages
from edged.store.salvage import Salvage, carve

_MAGIC = 0x50676445
_VERSION = 1
_HEADER = struct.Struct("<IHHQQQ28xI")


class SpoolFile(Holder):
    """One spool file."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path)
        self.size = size


class DamagedPage(Exception):
    """A page's bytes are not those that were written."""

    def __init__(self, place: PendingPage) -> None:
        super().__init__(f"{place.holder.path}: page {place.key} at offset {place.offset}")
        self.place = place


class Spool:
    """The spool's directory."""

    def __init__(self, disk: Disk, directory: str, epoch: int, file_bytes: int) -> None:
        self._disk, self.directory, self._epoch = disk, directory, epoch
        self._file_bytes = file_bytes
        self._next = 1
        self._files: dict[str, SpoolFile] = {}

    @property
    def bytes(self) -> int:
        """Bytes of all spool files."""
        return sum(f.size for f in list(self._files.values()))

    def scan(self, salvage: Salvage) -> list[tuple[SpoolFile, tuple[PageEntry, ...]]]:
        """The content of the files, oldest first.  Incomplete files are deleted.  One whose table
        is damaged is written again with the pages that are whole."""
        found = []
        for name in self._disk.listdir(self.directory):
            path = f"{self.directory}/{name}"
            if name.endswith(".tmp"):
                self._disk.unlink(path)
            elif name.endswith(".pages") and name[:-6].isdigit():
                self._next = int(name[:-6]) + 1
                pages = self._read(path)
                if pages is None:
                    pages = self._write_again(path, salvage)
                if pages is not None:
                    found.append((self._files[path], pages))
        return found

    def _read(self, path: str) -> tuple[PageEntry, ...] | None:
        """The table of a file; None where it is damaged."""
        number = _number(path)
        file = open_patiently(self._disk, path)
        try:
            size = file.size()
            head = file.pread(_HEADER.size, 0)
            if len(head) < _HEADER.size:
                return None
            magic, version, _, own, epoch, count, crc = _HEADER.unpack(head)
            start = _HEADER.size + count * PAGE_ENTRY_BYTES
            if (magic, version, own, epoch) != (_MAGIC, _VERSION, number, self._epoch):
                return None
            if start > size:
                return None
            table = file.pread(count * PAGE_ENTRY_BYTES, _HEADER.size)
            if crc != zlib.crc32(table, zlib.crc32(head[:-4])):
                return None
            pages = unpack_pages(memoryview(table), 0, count, start)
            if pages and pages[-1].offset + pages[-1].length > size:
                return None
            self._files[path] = SpoolFile(path, size)
            return pages
        finally:
            file.close()

    def _write_again(self, path: str, salvage: Salvage) -> tuple[PageEntry, ...] | None:
        """Replace a file by one with the whole pages that are in it; None: there are none."""
        file = open_patiently(self._disk, path)
        try:
            size = file.size()
            found = carve(file, 0, size, self._epoch)
        finally:
            file.close()
        found = list({page.key: page for page in found}.values())
        problem, kind = "damaged, cut off, or of another store", "spool file"
        if not found:
            salvage.move(path, kind, problem, "its pages")
            return None
        salvage.add(path, 0, found[0].offset, kind, problem, "pages that are not whole in it")
        holder = Holder(path)
        places = [PendingPage(p.key, holder, p.offset, p.length, p.crc, 0) for p in found]
        self._write(places, _number(path), partial(self._copy, places))
        return self._read(path)

    def files(self) -> list[SpoolFile]:
        """All files, oldest first."""
        return list(self._files.values())

    def write(
        self, places: Sequence[PendingPage], apart: Container[str] = ()
    ) -> list[tuple[SpoolFile, list[PageEntry]]]:
        """Copy pages out of the log, durably, verifying each.  Returns their new locations.

        The pages of the streams `apart` are in files of their own, so that giving them up frees
        space.
        Raises StoreFull, leaving nothing behind, and DamagedPage.
        """
        written = []
        some = [place for place in places if place.key.stream in apart]
        others = [place for place in places if place.key.stream not in apart]
        for group in _groups(others, self._file_bytes) + _groups(some, self._file_bytes):
            try:
                with no_room(f"{self.directory}: no room for pages that leave the log"):
                    copy = partial(self._copy, group)
                    written.append(self._write(group, self._next, copy))
            except (StoreFull, DamagedPage):
                for spool, _ in written:
                    self.delete(spool)
                raise
        if written:
            self._disk.sync_directory(self.directory)
        return written

    def write_new(self, pages: Sequence[SealedPage]) -> tuple[SpoolFile, list[PageEntry]]:
        """Write pages that no file has, durably.  Raises StoreFull, leaving nothing behind."""
        entries = [PageEntry(p.key, 0, len(p.data), zlib.crc32(p.data)) for p in pages]

        def fill(file: File, places: Sequence[PageEntry]) -> None:
            for page, place in zip(pages, places, strict=True):
                file.pwritev([page.data], place.offset)

        with no_room(f"{self.directory}: no room for pages that a replay has made again"):
            written = self._write(entries, self._next, fill)
        self._disk.sync_directory(self.directory)
        return written

    def _write(
        self,
        pages: Sequence[PendingPage | PageEntry],
        number: int,
        fill: Callable[[File, Sequence[PageEntry]], None],
    ) -> tuple[SpoolFile, list[PageEntry]]:
        """Write a file of `pages`, whose bytes `fill` writes at their new places."""
        path = f"{self.directory}/{number:016d}.pages"
        table = b"".join(pack_page(p.key, p.length, p.crc) for p in pages)
        head = _HEADER.pack(_MAGIC, _VERSION, 0, number, self._epoch, len(pages), 0)[:-4]
        crc = zlib.crc32(table, zlib.crc32(head))
        start = _HEADER.size + len(table)
        entries = list(unpack_pages(memoryview(table), 0, len(pages), start))
        size = entries[-1].offset + entries[-1].length
        file = self._disk.open(path + ".tmp", create=True)
        try:
            file.allocate(size)
            file.pwritev([head + struct.pack("<I", crc) + table], 0)
            fill(file, entries)
            file.sync()
        except (OSError, DamagedPage):
            self._disk.unlink(path + ".tmp")
            raise
        finally:
            file.close()
        self._disk.rename(path + ".tmp", path)
        self._next = max(self._next, number + 1)
        self._files[path] = spool = SpoolFile(path, size)
        return spool, entries

    def _copy(
        self, places: Sequence[PendingPage], file: File, entries: Sequence[PageEntry]
    ) -> None:
        opened: dict[str, File] = {}
        try:
            for place, entry in zip(places, entries, strict=True):
                source = place.holder.path
                if source not in opened:
                    opened[source] = open_patiently(self._disk, source)
                data = opened[source].pread(place.length, place.offset)
                if zlib.crc32(data) != place.crc:
                    raise DamagedPage(place)
                buffers: list[Buffer] = [data, bytes(padding(len(data)))]
                file.pwritev(buffers if entry is not entries[-1] else buffers[:1], entry.offset)
        finally:
            for source_file in opened.values():
                source_file.close()

    def delete(self, spool: SpoolFile) -> None:
        """Delete a file whose pages are all acked."""
        if self._files.pop(spool.path, None) is not None:
            self._disk.unlink(spool.path)


def epoch_of_spool_file(file: File) -> int | None:
    """The epoch in a spool file's header; None where that or the table is damaged."""
    head = file.pread(_HEADER.size, 0)
    if len(head) < _HEADER.size:
        return None
    *_, epoch, count, crc = _HEADER.unpack(head)
    table = file.pread(min(count * PAGE_ENTRY_BYTES, file.size()), _HEADER.size)
    return int(epoch) if crc == zlib.crc32(table, zlib.crc32(head[:-4])) else None


def _number(path: str) -> int:
    return int(path.rpartition("/")[2][: -len(".pages")])


def _groups(places: Sequence[PendingPage], bytes_max: int) -> list[list[PendingPage]]:
    groups: list[list[PendingPage]] = []
    filled = bytes_max
    for place in places:
        if filled + place.length > bytes_max:
            groups.append([])
            filled = 0
        groups[-1].append(place)
        filled += place.length
    return groups
