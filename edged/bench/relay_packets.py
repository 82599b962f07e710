"""Packets of the relay benchmarks: rows of typed fields, of a given size on the wire.

The first 50 bytes are number, time, sender, two states, two flags and four measured values.  A
longer packet has a `payload` of bytes besides, whose offset counts as 4 of them.
"""

from __future__ import annotations

import struct
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.client.messages import DIGITS
from kernels.cpu.mem import copy_bytes

BASE_BYTES = 50
OFFSET_BYTES = 4
"""Of a payload's place."""
PAYLOAD_BYTES_MIN = BASE_BYTES + OFFSET_BYTES + 1
STREAM = "r"
_SEQ_MARK, _TIME_MARK, _SENDER_MARK = 0x1A2B3C4D5E6F7081, 0x0A0B0C0D0E0F1011, 0x1B2C3D4E
_TYPES = {
    "seq": "int64", "ts": "timestamp", "sender": "int32", "state": "int16", "unit": "int16",
    "flags": "uint8", "quality": "uint8", "power": "float64", "speed": "float64",
    "pitch": "float32", "yaw": "float32",
}  # fmt: skip


def columns(packet_bytes: int) -> dict[str, str]:
    """The columns of a stream of such packets, as a job document has them."""
    return {**_TYPES, **({"payload": "binary"} if packet_bytes > BASE_BYTES else {})}


def arrow_schema(packet_bytes: int) -> pa.Schema:
    """The same for Arrow."""
    kinds = {"timestamp": pa.timestamp("us", tz="UTC"), "float64": pa.float64(),
             "float32": pa.float32()}  # fmt: skip
    fields = [
        pa.field(name, kinds.get(kind) or getattr(pa, kind)(), nullable=False)
        for name, kind in _TYPES.items()
    ]
    if packet_bytes > BASE_BYTES:
        fields.append(pa.field("payload", pa.binary(), nullable=False))
    return pa.schema(fields)


class PacketTemplate:
    """A message of `batch` packets as pyarrow writes it, and where its numbers and times lie."""

    def __init__(self, packet_bytes: int, batch: int, sender: int, seed: int = 1) -> None:
        schema = arrow_schema(packet_bytes)
        dice = np.random.default_rng(seed)
        arrays: list[pa.Array] = []
        for field in schema:
            if field.name == "payload":
                arrays.append(_payload(packet_bytes, batch, dice))
            else:
                arrays.append(pa.array(_values(field.name, batch, dice)).cast(field.type))
        sink = pa.BufferOutputStream()
        opened = schema.serialize().size
        with pa.ipc.new_stream(sink, schema) as writer:
            rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
            writer.write_batch(rows, custom_metadata={"edged.seq": "7" * DIGITS})
            data = sink.tell()
        text = sink.getvalue().to_pybytes()[opened:data]
        self.batch = batch
        self.digits_at = text.index(b"7" * DIGITS)
        self.seq_at = text.index(struct.pack("<q", _SEQ_MARK) * batch)
        self.ts_at = text.index(struct.pack("<q", _TIME_MARK) * batch)
        sender_at = text.index(struct.pack("<i", _SENDER_MARK) * batch)
        own = bytearray(text)
        own[sender_at : sender_at + 4 * batch] = struct.pack("<i", sender) * batch
        self.bytes = np.frombuffer(own, np.uint8)


def _values(name: str, rows: int, dice: np.random.Generator) -> npt.NDArray[Any]:
    if name == "seq":
        return np.full(rows, _SEQ_MARK, np.int64)
    if name == "ts":
        return np.full(rows, _TIME_MARK, np.int64)
    if name == "sender":
        return np.full(rows, _SENDER_MARK, np.int32)
    if name in ("power", "speed", "pitch", "yaw"):
        measured: npt.NDArray[Any] = dice.normal(100.0, 5.0, rows).round(2)
        return measured
    states: npt.NDArray[Any] = dice.integers(0, 4, rows)
    return states


def _payload(packet_bytes: int, rows: int, dice: np.random.Generator) -> pa.Array:
    size = packet_bytes - BASE_BYTES - OFFSET_BYTES
    if size < 1:
        raise ValueError(f"packets have {BASE_BYTES} bytes or at least {PAYLOAD_BYTES_MIN}")
    whole = dice.integers(0, 256, rows * size, np.uint8).tobytes()
    offsets = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(whole)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def fill_packets(
    out: Any, template: Any, count: int, message: int, at: Any, batch: int, first: int, ts: int
) -> None:
    """Write `count` messages into `out`, numbered from `message`, their packets from `first`.

    `at` holds the offsets of digits, numbers and times in the template.
    """
    size = template.size
    for m in range(count):
        start = m * size
        copy_bytes(out.ctypes.data + start, template.ctypes.data, size)
        number = message + m
        for d in range(DIGITS):
            out[start + at[0] + DIGITS - 1 - d] = 48 + number % 10
            number //= 10
        numbers = out[start + at[1] : start + at[1] + 8 * batch].view(np.int64)
        times = out[start + at[2] : start + at[2] + 8 * batch].view(np.int64)
        base = first + m * batch
        for j in range(batch):
            numbers[j] = base + j
        for j in range(batch):
            times[j] = ts
