"""The template of a link's messages: what pyarrow writes for a row of the schema, with the places
that a kernel patches (`kernels.cpu.link_messages.LinkSpots`).

The greeting that opens a connection is made here, too.  Its session, its first number and its
schema depend on the connection; the sender patches the first two.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.client.frames import SEQ_KEY, SUM_KEY, WATERMARK_KEY
from edged.client.greeting import greeting_message
from edged.data.schema import Field, Schema
from edged.links.flatbuffer import BODY, HEADER, PREFIX, field, target
from kernels.cpu.link_messages import (
    DIGITS,
    SPOTS,
    SUM_CHARACTERS,
    WATERMARK_CHARACTERS,
)

_BLANKS = {
    SEQ_KEY: b"q" * DIGITS,
    WATERMARK_KEY: b"w" * WATERMARK_CHARACTERS,
    SUM_KEY: b"s" * SUM_CHARACTERS,
}
_LENGTH, _NODES, _BUFFERS = 0, 1, 2


@dataclass(frozen=True)
class Template:
    """The head of a message, the places in it, and the columns' kinds."""

    head: npt.NDArray[np.uint8]
    spots: npt.NDArray[np.int64]
    layout: npt.NDArray[np.int64]


def template_of(schema: Schema, compressed: bool = False) -> Template:
    """The template for messages of `schema`; `compressed`: their buffers are LZ4 frames."""
    arrow = schema.to_arrow()
    sample = pa.record_batch([_value(f.type) for f in arrow], schema=arrow)
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None)
    with pa.ipc.new_stream(out, arrow, options=options) as writer:
        writer.write_batch(sample, custom_metadata=_BLANKS)
    data = out.getvalue().to_pybytes()
    data = data[PREFIX + struct.unpack_from("<i", data, 4)[0] :]
    head = data[: PREFIX + struct.unpack_from("<i", data, 4)[0]]
    layout = np.array([[_kind(f), f.nullable] for f in schema.fields], np.int64)
    return Template(np.frombuffer(head, np.uint8).copy(), _spots(head), layout)


def greeting_of(schema: Schema, metadata: Mapping[bytes, bytes]) -> bytes:
    """The schema message with this metadata."""
    return greeting_message(schema.to_arrow(), metadata)


def _value(kind: pa.DataType) -> pa.Array:
    """One value that is not null."""
    return pa.array([0], pa.int64()).cast(kind) if not _is_text(kind) else pa.array(["x"], kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _kind(column: Field) -> int:
    dtype = column.dtype
    if dtype.variable:
        return -1
    return 0 if dtype.name == "bool" else int(dtype.width)


def _spots(head: bytes) -> npt.NDArray[np.int64]:
    spots = np.zeros(len(SPOTS), np.int64)
    message = target(head, PREFIX)
    batch = target(head, field(head, message, HEADER))
    spots[SPOTS.rows] = field(head, batch, _LENGTH)
    spots[SPOTS.body] = field(head, message, BODY)
    spots[SPOTS.nodes] = target(head, field(head, batch, _NODES)) + 4
    spots[SPOTS.buffers] = target(head, field(head, batch, _BUFFERS)) + 4
    for spot, blank in zip((SPOTS.seq, SPOTS.watermark, SPOTS.digest), _BLANKS.values(),
                           strict=True):  # fmt: skip
        spots[spot] = head.index(blank)
    spots[SPOTS.head] = len(head)
    return spots
