"""Rows to the messages of a page, by kernels (`kernels.cpu.link_messages`)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, address, column_table
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.links.compression import NEVER, MessageCompressor
from edged.links.page import LINK_HEADER_BYTES, LinkPage
from edged.links.page_memory import PageMemory
from edged.links.segments import PageSegments
from edged.links.template import template_of
from kernels.cpu import link_messages as kernels
from kernels.cpu.columns import COLUMN
from kernels.cpu.link_messages import SPOTS, SUM_CHARACTERS

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True)
class Train:
    """Messages one behind the other, behind room for a page's header."""

    data: Bytes
    messages: int
    rows: int
    digest: int
    """Of the last message."""
    raw_bytes: int
    """Of all messages, none compressed."""
    compressed: int
    """Messages that are."""

    def page(self, link: str, version: int, instance: int, first: int) -> memoryview:
        """The page, its messages numbered from `first` on; as long valid as the train."""
        size, last = self.data.size, first + self.messages - 1
        head = LinkPage(version, first, last, self.digest, instance, self.rows, size)
        self.data[:LINK_HEADER_BYTES] = np.frombuffer(head.pack(link), np.uint8)
        return self.data.data


class MessageWriter:
    """Writes the messages of one schema."""

    def __init__(
        self,
        schema: Schema,
        compress: str,
        entropy_bits_max: float,
        segments: PageSegments | None = None,
    ) -> None:
        """`segments` hold the pages of a job without a log; compressed ones are copied there."""
        self._plain = template_of(schema)
        self._compressor: MessageCompressor | None = None
        if compress != NEVER:
            self._compressor = MessageCompressor(schema, self._plain, compress, entropy_bits_max)
        self._scratch = Scratch()
        self.memory = PageMemory(segments if self._compressor is None else None)
        self.version = zlib.crc32(schema.to_json().encode())
        """Of the schema."""
        self.head_bytes = int(self._plain.spots[SPOTS.head])
        """Bytes of a message beside its body."""

    def save(self) -> Int64s:
        """What the compression of later messages depends on."""
        state = () if self._compressor is None else self._compressor.state
        return np.array(state, np.int64)

    def load(self, state: Int64s) -> None:
        """Restore a saved state; one of another setting is no loss."""
        if self._compressor is not None and state.size:
            left, pause = state.tolist()
            self._compressor.state = left, pause

    def table(self, batch: Batch, rows: Int64s | None) -> Int64s:
        """The table of columns that `ends` and `write` take; `rows`: numbers of the rows that are
        written, None: all.  Keep batch and numbers while it is used."""
        table = column_table(batch.schema, batch.columns)
        if rows is not None:
            table[:, COLUMN.rows] = address(rows)
        return table

    def ends(self, table: Int64s, rows: int, buffer: int) -> Int64s:
        """Where messages end that have reached `buffer` bytes."""
        ends: Int64s = self._scratch.get("ends", rows + 1, np.int64)
        return ends[: kernels.cut(table, self._plain.layout, 0, rows, buffer, ends)]

    def write(self, table: Int64s, start: int, ends: Int64s, watermarks: Int64s, seq: int) -> Train:
        """The messages of the rows from `start` on that end at `ends`, numbered from `seq` on;
        valid until the second turn of `memory` from now."""
        plain, stop = self._plain, int(ends[-1])
        room = kernels.room(table, plain.layout, self.head_bytes, start, stop, ends.size)
        memory = self.memory.room(LINK_HEADER_BYTES + room)
        sizes: Int64s = self._scratch.get("sizes", ends.size, np.int64)
        size = kernels.encode(
            table, plain.layout, plain.head, plain.spots, start, ends, watermarks, seq,
            address(memory) + LINK_HEADER_BYTES, sizes,
        )  # fmt: skip
        train = memory[: LINK_HEADER_BYTES + size]
        self.memory.take(train.size)
        done = last_done = 0
        if self._compressor is not None:
            train, done, last_done = self._compressed(self._compressor, train, sizes, seq)
        at = int(plain.spots[SPOTS.digest])
        begin = LINK_HEADER_BYTES + size - int(sizes[-1])
        if last_done and self._compressor is not None:
            at, begin = self._compressor.digest_at(), train.size - last_done
        elif done:
            begin = train.size - int(sizes[-1])
        digest = int(bytes(train[begin + at : begin + at + SUM_CHARACTERS]), 16)
        return Train(train, ends.size, stop - start, digest, size, done)

    def _compressed(
        self, compressor: MessageCompressor, train: Bytes, sizes: Int64s, seq: int
    ) -> tuple[Bytes, int, int]:
        """The train with those messages compressed that gain from it, how many do, and the size of
        the last one if it does."""
        parts, at, done, small = [train[:LINK_HEADER_BYTES]], LINK_HEADER_BYTES, 0, None
        for number, size in enumerate(sizes.tolist(), seq):
            small = compressor.compress(train[at : at + size], number)
            parts.append(train[at : at + size] if small is None else small)
            done += small is not None
            at += size
        if not done:
            return train, 0, 0
        return np.concatenate(parts), done, 0 if small is None else small.size
