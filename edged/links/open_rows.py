"""The rows of one instance of a link that are in no message yet, and its sequence of messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.columns import Batch, empty_batch
from edged.data.concatenate import concatenate
from edged.data.flow import WATERMARK_MIN_US, State
from edged.data.gather import take
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.links.messages import MessageWriter, Train
from edged.pages.sealed import PageKey, SealedPage

OPEN_ROWS = ("open", "numbers", "marks")
"""The arrays of a saved state."""
UNKNOWN_US = WATERMARK_MIN_US + 1
"""What a message says where no time is known: a sign and digits that every reader takes."""
PAGE_BYTES = 4 << 20
"""About the largest page: that many bytes of messages."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrainPage:
    """A page, and what is in it; the bytes of `train` are gone."""

    page: SealedPage
    train: Train


@dataclass(slots=True)
class _Mark:
    """Up to `rows` of the open rows are of beats that end with this watermark."""

    rows: int
    watermark_us: int


class OpenRows:
    """Collects rows until a message is full or due.

    A message says the watermark of the newest beat whose rows are all in it or before it.
    """

    def __init__(
        self, link: str, instance: int, schema: Schema, writer: MessageWriter, buffer: int
    ) -> None:
        self._link, self._instance = link, instance
        self._schema, self._writer, self._buffer = schema, writer, buffer
        self._batch = self._empty = empty_batch(schema)
        self._marks: list[_Mark] = []
        self._memory = (Scratch(), Scratch())
        self._taken = Scratch()
        self.opened_us = 0
        """Wall clock of the beat of the first open row."""
        self.seq = 0
        """Number of the last message."""
        self.watermark_us = self._said_us = WATERMARK_MIN_US

    @property
    def rows(self) -> int:
        """Rows in no message yet."""
        return self._batch.rows

    def nbytes(self) -> int:
        """Their bytes."""
        return self._batch.nbytes() if self._batch.rows else 0

    def add(
        self, batch: Batch, rows: Int64s | None, watermark_us: int, wall_us: int, close: bool
    ) -> list[TrainPage]:
        """Take the rows of a beat, `rows` of `batch` or all; returns pages of full messages.

        With `close` no row stays open, and the watermark is said even where there is no row.
        """
        count = batch.rows if rows is None else rows.size
        if not self._batch.rows:
            self.opened_us = wall_us
        elif count:
            new = batch if rows is None else take(batch, rows, self._taken, "new")
            batch, rows = concatenate(self._schema, (self._batch, new), self._memory[0]), None
        else:
            batch, rows = self._batch, None
        count += self._batch.rows
        self._marks.append(_Mark(count, watermark_us))
        return self._write(batch, rows, count, close, wall_us)

    def _write(
        self, batch: Batch, rows: Int64s | None, count: int, close: bool, wall_us: int
    ) -> list[TrainPage]:
        table = self._writer.table(batch, rows)
        ends = self._writer.ends(table, count, self._buffer)
        done = int(ends[-1]) if ends.size else 0
        if close and (done < count or (not count and self._news())):
            ends, done = np.append(ends, count), count
        watermarks = self._watermarks(ends)
        step = max(1, PAGE_BYTES // (self._buffer + self._writer.head_bytes))
        sealed = []
        for at in range(0, ends.size, step):
            start, part = int(ends[at - 1]) if at else 0, ends[at : at + step]
            sealed.append(self._page(table, start, part, watermarks[at : at + step]))
        self._keep(batch, rows, done, count, wall_us)
        return sealed

    def _page(self, table: Int64s, start: int, ends: Int64s, watermarks: Int64s) -> TrainPage:
        first = self.seq + 1
        train = self._writer.write(table, start, ends, watermarks, first)
        self.seq += train.messages
        data = train.page(self._link, self._writer.version, self._instance, first)
        return TrainPage(SealedPage(PageKey(self._link, self._instance, self.seq), data), train)

    def _news(self) -> bool:
        """Whether the watermark has moved since it was last said."""
        return self._marks[-1].watermark_us > self._said_us

    def _watermarks(self, ends: Int64s) -> Int64s:
        """What each message says: the watermark of the last beat that ends with it or before."""
        edges = [mark.rows for mark in self._marks]
        known = np.array([self.watermark_us, *(mark.watermark_us for mark in self._marks)])
        found: Int64s = known[np.searchsorted(edges, ends, "right")]
        np.maximum(found, UNKNOWN_US, out=found)
        if ends.size:
            done = int(np.searchsorted(edges, ends[-1], "right"))
            self.watermark_us = self._said_us = int(known[done])
            del self._marks[:done]
        return found

    def _keep(self, batch: Batch, rows: Int64s | None, done: int, count: int, wall_us: int) -> None:
        """Keep a copy of the rows from `done` on."""
        for mark in self._marks:
            mark.rows -= done
        if done:
            self.opened_us = wall_us
        if done == count:
            self._batch = self._empty
            if self._marks:
                self.watermark_us = self._marks[-1].watermark_us
                self._marks.clear()
            return
        if batch is self._batch and not done:
            return
        left = np.arange(done, count) if rows is None else rows[done:count]
        self._batch = take(batch, left, self._memory[1], "open")
        self._memory = (self._memory[1], self._memory[0])

    def close(self, wall_us: int) -> list[TrainPage]:
        """A page of all open rows."""
        if not self._batch.rows:
            return []
        return self._write(self._batch, None, self._batch.rows, True, wall_us)

    def save(self) -> State:
        """The open rows as an Arrow IPC stream, and the numbers."""
        out = pa.BufferOutputStream()
        if self._batch.rows:
            with pa.ipc.new_stream(out, self._schema.to_arrow()) as writer:
                writer.write_batch(self._batch.to_arrow())
        numbers = [self.seq, self.opened_us, self.watermark_us, self._said_us]
        marks = [n for mark in self._marks for n in (mark.rows, mark.watermark_us)]
        return {
            "open": np.frombuffer(out.getvalue(), np.uint8).copy(),
            "numbers": np.array(numbers, np.int64),
            "marks": np.array(marks, np.int64),
        }

    def load(self, state: State) -> None:
        """Restore a saved state."""
        self._batch = empty_batch(self._schema)
        if state["open"].size:
            with pa.ipc.open_stream(pa.py_buffer(state["open"].tobytes())) as reader:
                self._batch = Batch.from_arrow(reader.read_next_batch(), self._schema)
        self.seq, self.opened_us, self.watermark_us, self._said_us = (
            int(n) for n in state["numbers"]
        )
        pairs = state["marks"].reshape(-1, 2).tolist()
        self._marks = [_Mark(rows, watermark_us) for rows, watermark_us in pairs]

    def skip(self, seq: int) -> None:
        """Drop the open rows; messages up to `seq` exist."""
        self._batch, self._marks = empty_batch(self._schema), []
        self.seq = max(self.seq, seq)
