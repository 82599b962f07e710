"""Writes one compacted Parquet file: row groups of bounded size, statistics, page index, checksums.

The file appears under its name when it is complete and synced; the directory is the caller's to
sync.
"""

from __future__ import annotations

import io
import os
import zlib
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from edged.central.compacted import CompactedFile
from edged.central.read_request import Request

ROWS_MAX = 1 << 20
"""Rows of a row group."""
_GROUP_BYTES = 64 << 20
"""Bytes of a row group's rows in memory, about; 1 << 20 rows of 64 bytes."""


class CompactedWriter:
    """A file that is being written: `write` batches, then `finish`.  Leaving the context without
    `finish` deletes it."""

    def __init__(self, path: Path, request: Request) -> None:
        self._path, self._fresh = path, path.with_name(f".{path.name}.new")
        self._stream, self._schema = request.name, request.arrow_schema()
        self._file = _CountedFile(self._fresh)
        self._writer = pq.ParquetWriter(
            self._file, self._schema, write_page_index=True, write_page_checksum=True
        )
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._all_rows = self._row_groups = 0

    def __enter__(self) -> CompactedWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._writer.is_open = False  # else its destructor writes a footer
        self._file.close()
        self._fresh.unlink(missing_ok=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        while batch.num_rows:
            part = batch.slice(0, ROWS_MAX - self._rows)
            batch = batch.slice(part.num_rows)
            self._batches.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes
            if self._rows >= ROWS_MAX or self._bytes >= _GROUP_BYTES:
                self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        table = pa.Table.from_batches(self._batches, self._schema)
        self._writer.write_table(table, row_group_size=self._rows)
        self._all_rows += self._rows
        self._row_groups += 1
        self._batches, self._rows, self._bytes = [], 0, 0

    def finish(self) -> CompactedFile:
        """Complete the file under its name, durably, and describe it."""
        self._flush()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size, crc = self._file.tell(), self._file.crc
        os.fchmod(self._file.fileno(), 0o644)  # whatever the umask: Spark is another user
        self._file.close()
        self._fresh.replace(self._path)
        return CompactedFile(self._stream, self._all_rows, self._row_groups, size, crc)


class _CountedFile(io.FileIO):
    """A file with the CRC-32 of what was written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self.crc = 0

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        """Write all of `data`."""
        left = memoryview(data).cast("B")
        self.crc = zlib.crc32(left, self.crc)
        size = len(left)
        while left:
            left = left[super().write(left) :]
        return size
