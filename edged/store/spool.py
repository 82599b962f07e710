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
from collections.abc import Container, Sequence

from edged.errors import StoreCorrupt
from edged.platform.disk import Buffer, Disk, File
from edged.store.errors import StoreFull, no_room
from edged.store.page_index import Holder, PendingPage
from edged.store.records import PAGE_ENTRY_BYTES, PageEntry, pack_page, padding, unpack_pages

_MAGIC = 0x50676445
_VERSION = 1
_HEADER = struct.Struct("<IHHQQQ28xI")


class SpoolFile(Holder):
    """One spool file."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__(path)
        self.size = size


class Spool:
    """The spool's directory."""

    def __init__(self, disk: Disk, directory: str, epoch: int, file_bytes: int) -> None:
        self._disk, self._directory, self._epoch = disk, directory, epoch
        self._file_bytes = file_bytes
        self._next = 1
        self._files: dict[str, SpoolFile] = {}

    @property
    def bytes(self) -> int:
        """Bytes of all spool files."""
        return sum(f.size for f in list(self._files.values()))

    def scan(self) -> list[tuple[SpoolFile, tuple[PageEntry, ...]]]:
        """The content of the files, oldest first.  Incomplete files are deleted."""
        found = []
        for name in self._disk.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if name.endswith(".tmp"):
                self._disk.unlink(path)
            elif name.endswith(".pages") and name[:-6].isdigit():
                self._next = int(name[:-6]) + 1
                found.append(self._scan(path, int(name[:-6])))
        return found

    def _scan(self, path: str, number: int) -> tuple[SpoolFile, tuple[PageEntry, ...]]:
        file = self._disk.open(path)
        try:
            size = file.size()
            head = file.pread(_HEADER.size, 0)
            if len(head) == _HEADER.size:
                magic, version, _, own, epoch, count, crc = _HEADER.unpack(head)
                start = _HEADER.size + count * PAGE_ENTRY_BYTES
                fields = (magic, version, own, epoch)
                if fields == (_MAGIC, _VERSION, number, self._epoch) and start <= size:
                    table = file.pread(count * PAGE_ENTRY_BYTES, _HEADER.size)
                    if crc == zlib.crc32(table, zlib.crc32(head[:-4])):
                        pages = unpack_pages(memoryview(table), 0, count, start)
                        if not pages or pages[-1].offset + pages[-1].length <= size:
                            self._files[path] = spool = SpoolFile(path, size)
                            return spool, pages
        finally:
            file.close()
        raise StoreCorrupt(
            f"{path}: the table of a spool file (offset 0) is damaged or belongs to another store; "
            "see docs/store.md, 'When the store is damaged'"
        )

    def files(self) -> list[SpoolFile]:
        """All files, oldest first."""
        return list(self._files.values())

    def write(
        self, places: Sequence[PendingPage], apart: Container[str] = ()
    ) -> list[tuple[SpoolFile, list[PageEntry]]]:
        """Copy pages out of the log, durably, verifying each.  Returns their new locations.

        The pages of the streams `apart` are in files of their own, so that giving them up frees
        space.
        Raises StoreFull, leaving nothing behind, and StoreCorrupt for a damaged page.
        """
        written = []
        some = [place for place in places if place.key.stream in apart]
        others = [place for place in places if place.key.stream not in apart]
        for group in _groups(others, self._file_bytes) + _groups(some, self._file_bytes):
            try:
                with no_room(f"{self._directory}: no room for pages that leave the log"):
                    written.append(self._write(group))
            except StoreFull:
                for spool, _ in written:
                    self.delete(spool)
                raise
        if written:
            self._disk.sync_directory(self._directory)
        return written

    def _write(self, places: Sequence[PendingPage]) -> tuple[SpoolFile, list[PageEntry]]:
        number, path = self._next, f"{self._directory}/{self._next:016d}.pages"
        table = b"".join(pack_page(p.key, p.length, p.crc) for p in places)
        head = _HEADER.pack(_MAGIC, _VERSION, 0, number, self._epoch, len(places), 0)[:-4]
        crc = zlib.crc32(table, zlib.crc32(head))
        start = _HEADER.size + len(table)
        entries = list(unpack_pages(memoryview(table), 0, len(places), start))
        size = entries[-1].offset + entries[-1].length
        file = self._disk.open(path + ".tmp", create=True)
        try:
            file.allocate(size)
            file.pwritev([head + struct.pack("<I", crc) + table], 0)
            self._copy(file, places, entries)
            file.sync()
        except OSError:
            self._disk.unlink(path + ".tmp")
            raise
        finally:
            file.close()
        self._disk.rename(path + ".tmp", path)
        self._next += 1
        self._files[path] = spool = SpoolFile(path, size)
        return spool, entries

    def _copy(
        self, file: File, places: Sequence[PendingPage], entries: Sequence[PageEntry]
    ) -> None:
        opened: dict[str, File] = {}
        try:
            for place, entry in zip(places, entries, strict=True):
                source = place.holder.path
                if source not in opened:
                    opened[source] = self._disk.open(source)
                data = opened[source].pread(place.length, place.offset)
                if zlib.crc32(data) != place.crc:
                    raise StoreCorrupt(
                        f"{source}: page {place.key} at offset {place.offset} is damaged; "
                        "see docs/store.md, 'When the store is damaged'"
                    )
                buffers: list[Buffer] = [data, bytes(padding(len(data)))]
                file.pwritev(buffers if entry is not entries[-1] else buffers[:1], entry.offset)
        finally:
            for source_file in opened.values():
                source_file.close()

    def delete(self, spool: SpoolFile) -> None:
        """Delete a file whose pages are all acked."""
        if self._files.pop(spool.path, None) is not None:
            self._disk.unlink(spool.path)


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
