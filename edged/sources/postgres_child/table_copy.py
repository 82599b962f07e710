"""The first rows of a table: a copy of it as of the moment at which its slot begins.

The copy is a file of CSV, so that a copy that was cut off leaves no row behind, and one that is
whole is staged row by row, however often that is interrupted.

    NAME.making    the slot may be made, and the copy is not whole
    NAME.csv       the copy; of each column the server's text
    NAME.json      the copy is whole and durable: system identifier, and where changes begin
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.csv

from edged.sources._postgres_wire import Position
from edged.sources.postgres_child.pgoutput import ReplicationError

_BLOCK_BYTES, _BLOCK_GROWTH = 1 << 20, 8
"""Bytes that are read at once, and how much more where a row is longer."""


class TableCopy:
    """The files of one slot in `directory`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._making, self._csv, self._whole = (
            directory / f"{name}.{suffix}" for suffix in ("making", "csv", "json")
        )

    def begin(self) -> None:
        """Note, durably, that a slot of this name will be ours."""
        self._directory.mkdir(exist_ok=True)
        with self._making.open("wb") as file:
            os.fsync(file.fileno())
        self._sync()

    def begun(self) -> bool:
        """Whether a slot of this name is ours, from a copy that was cut off."""
        return self._making.exists()

    def create(self) -> IO[bytes]:
        """The file to write the copy to."""
        return self._csv.open("wb")

    def finish(self, position: Position) -> None:
        """Make the copy durable and whole; `position` is its beginning."""
        with self._csv.open("rb") as file:
            os.fsync(file.fileno())
        made = self._whole.with_suffix(".new")
        with made.open("w") as text:
            text.write(position.text())
            text.flush()
            os.fsync(text.fileno())
        made.rename(self._whole)
        self._sync()
        self._making.unlink(missing_ok=True)

    def whole(self) -> Position | None:
        """The beginning of a whole copy; None: there is none."""
        try:
            return Position.read(self._whole.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def discard(self) -> None:
        """Delete the copy: all of its rows are committed, or it is of no use."""
        for file in (self._whole, self._csv, self._making):
            with suppress(FileNotFoundError):
                file.unlink()

    def texts(self, names: Sequence[str], skip: int) -> Iterator[dict[str, pa.Array]]:
        """The texts of the rows after the first `skip`, in batches.  Raises ReplicationError.

        A row that is longer than a block ends the reader: it goes on behind the rows that came,
        with larger blocks.
        """
        block_bytes = _BLOCK_BYTES
        try:
            size = self._csv.stat().st_size
            while size:
                try:
                    for batch in self._batches(names, skip, block_bytes):
                        skip += batch.num_rows
                        yield {name: batch.column(i) for i, name in enumerate(names)}
                    return
                except pa.ArrowInvalid:
                    if block_bytes > size:
                        raise
                    block_bytes *= _BLOCK_GROWTH
        except (OSError, pa.ArrowException) as problem:
            raise ReplicationError(f"the copy cannot be read: {problem}") from None

    def _batches(
        self, names: Sequence[str], skip: int, block_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows after the first `skip`."""
        with pa.csv.open_csv(
            self._csv,
            pa.csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=names),
            # an empty line is a row whose one column is null
            pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        ) as opened:
            for batch in opened:
                drop = min(skip, batch.num_rows)
                skip -= drop
                if drop < batch.num_rows:
                    yield batch.slice(drop)

    def _sync(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
