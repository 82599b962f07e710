"""Decoding by pyarrow, batch by batch, for what the kernels do not decode.

These are bodies compressed by ZSTD, dictionaries, structs, lists, other string layouts and other
integer widths.
One pyarrow stream reader lives as long as the connection and keeps dictionaries and their deltas;
it is given whole messages and asked for a batch only when one is there.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.columns import Batch
from edged.data.nested import flattened
from edged.data.schema import Schema
from edged.errors import ProtocolError, SchemaMismatch
from kernels.cpu import ipc
from kernels.cpu.ipc_frame import FRAME, frame, inflated


class _Feed:
    """A file that holds the bytes given to it."""

    closed = False

    def __init__(self) -> None:
        self._parts = bytearray()

    def feed(self, data: bytes) -> None:
        self._parts += data

    def read(self, size: int = -1) -> bytes:
        size = len(self._parts) if size < 0 else size
        data = bytes(self._parts[:size])
        del self._parts[:size]
        return data

    def readable(self) -> bool:
        return True


class SlowReader:
    """Decodes one connection's messages; `schema_message` is the first of them."""

    def __init__(self, schema_message: bytes, schema: Schema, bytes_max: int) -> None:
        self._feed = _Feed()
        self._feed.feed(schema_message)
        self._reader = pa.ipc.open_stream(pa.PythonFile(self._feed, mode="r"))
        self._schema, self._bytes_max = schema, bytes_max
        self._out = np.zeros(len(FRAME), np.int64)
        self._dictionary_bytes = 0

    def take(self, message: npt.NDArray[np.int64]) -> Batch | None:
        """The batch in a row of the message table; None for a dictionary.

        Raises ProtocolError for unreadable bytes, SchemaMismatch for values that do not fit.
        """
        address = int(message[ipc.MESSAGE.meta])
        meta = int(message[ipc.MESSAGE.body]) - address - 8
        body = int(message[ipc.MESSAGE.body_length])
        claim = inflated(address + 8, meta, body)
        frame(address, 8 + meta + body, self._out)
        kind = int(self._out[FRAME.header])
        if claim < 0:
            raise ProtocolError("a batch's metadata is damaged")
        if kind == ipc.DICTIONARY:
            self._dictionary_bytes = claim + (
                self._dictionary_bytes if self._out[FRAME.flag] else 0
            )
        if max(claim, self._dictionary_bytes) > self._bytes_max:
            raise ProtocolError(
                f"a batch or dictionary unpacks to {claim} bytes, more than this stream may hold"
                " at once; send smaller ones"
            )
        self._feed.feed(ctypes.string_at(address, 8 + meta + body))
        if kind != ipc.RECORD_BATCH:
            return None
        return self._decode()

    def _decode(self) -> Batch:
        try:
            batch: Any = self._reader.read_next_batch()
            batch.validate(full=True)
            staged = Batch.from_arrow(flattened(batch), self._schema)
        except ValueError as problem:
            raise SchemaMismatch(f"a batch does not fit the stream: {problem}") from None
        except (pa.ArrowException, OSError, KeyError, StopIteration) as problem:
            raise ProtocolError(f"a batch cannot be read: {problem}") from None
        if staged.nbytes() > self._bytes_max:
            raise ProtocolError(
                f"a batch takes {staged.nbytes()} bytes of memory, more than this stream may hold"
                " at once; send smaller batches"
            )
        return staged
