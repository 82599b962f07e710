"""Record batches as Arrow IPC messages; the sequence number is filled in when they are sent.

The number has 18 decimal digits in the message's metadata.  A message that is serialised once can
be sent under several numbers; only its metadata is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from edged.client.frames import (
    CONTENT_KEY,
    END_OF_STREAM,
    LAST_KEY,
    LOSSES_KEY,
    PRODUCER_KEY,
    SEQ_KEY,
    SETTLE_KEY,
    STREAM_KEY,
    TOKEN_KEY,
)

DIGITS = 18
_BLANK = b"0" * DIGITS
JOIN_BYTES_MAX = 64 << 10
"""Bodies up to this size are sent in one piece with their metadata."""
ROWS_MAX = 1 << 16
"""Rows of the messages that a table is split into."""


@dataclass(frozen=True)
class Prepared:
    """A serialised record batch: metadata with a blank number, and body."""

    head: bytes
    body: memoryview
    at: int
    rows: int

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return len(self.head) + len(self.body)

    def numbered(self, seq: int) -> list[bytes | memoryview]:
        """The message's parts under the number `seq`."""
        text = b"%0*d" % (DIGITS, seq)
        head = self.head[: self.at] + text + self.head[self.at + DIGITS :]
        if len(self.body) <= JOIN_BYTES_MAX:
            return [head + self.body]
        return [head, self.body]


class Serializer:
    """Makes messages of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = pa.schema([_plain(f) for f in schema])
        self._skip = len(self._stream(None))

    def greeting(
        self,
        stream: str,
        producer: str | None,
        token: str | None,
        settle: bool = False,
        *,
        content: str = "",
        losses: bool = False,
        last: int = 0,
    ) -> bytes:
        """The schema message that opens a connection; with `settle` HELLO waits until it is final.
        A table's first rows end with batch `last`; 0: that is not known."""
        metadata = {STREAM_KEY: stream.encode()}
        if producer:
            metadata[PRODUCER_KEY] = producer.encode()
        if token:
            metadata[TOKEN_KEY] = token.encode()
        if settle:
            metadata[SETTLE_KEY] = b"1"
        if content:
            metadata[CONTENT_KEY] = content.encode()
        if losses:
            metadata[LOSSES_KEY] = b"1"
        if last:
            metadata[LAST_KEY] = b"%d" % last
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema.with_metadata(metadata)):
            pass
        data: bytes = sink.getvalue().to_pybytes()
        return data[: -len(END_OF_STREAM)]

    def prepare(self, batch: pa.RecordBatch) -> Prepared:
        """Serialise a batch of exactly this schema."""
        data = self._stream(batch)
        size = struct.unpack_from("<i", data, self._skip + 4)[0] + 8
        head = bytes(data[self._skip : self._skip + size])
        return Prepared(head, data[self._skip + size :], head.index(_BLANK), batch.num_rows)

    def batches(self, data: Any) -> Iterator[pa.RecordBatch]:
        """A RecordBatch, a Table or a mapping of arrays as batches of this schema.

        Columns are matched by name and cast if that loses nothing.  Raises KeyError for a missing
        column and pa.ArrowInvalid for a value that does not fit.
        """
        if isinstance(data, Mapping):
            data = pa.table(dict(data))
        if isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
        arrays = [data.column(f.name).cast(f.type) for f in self.schema]
        table = pa.Table.from_arrays(arrays, schema=self.schema).combine_chunks()
        yield from table.to_batches(max_chunksize=ROWS_MAX)

    def _stream(self, batch: pa.RecordBatch | None) -> memoryview:
        """The schema message, and the batch's message if there is a batch."""
        sink = pa.BufferOutputStream()
        writer = pa.ipc.new_stream(sink, self.schema)
        if batch is None:
            writer.close()
            return memoryview(sink.getvalue())[: -len(END_OF_STREAM)]
        writer.write_batch(batch, custom_metadata={SEQ_KEY: _BLANK})
        return memoryview(sink.getvalue())


def _plain(field: pa.Field) -> pa.Field:
    """The field without a dictionary: dictionaries belong to a connection, batches do not."""
    if pa.types.is_dictionary(field.type):
        return field.with_type(field.type.value_type)
    return field
