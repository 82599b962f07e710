"""The greeting: a connection's first message, a schema whose metadata names producer and stream."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.client import frames
from edged.data.columns import address
from edged.data.schema_message import check_schema_message
from edged.errors import ProtocolError, Unauthorized
from edged.sources._tcp_session import Session
from kernels.cpu import ipc
from kernels.cpu.ipc_frame import FRAME, frame

GREETING_BYTES_MAX = 1 << 20
"""Size of the largest accepted schema message."""
CONTENT_BYTES_MAX = 64
"""Longest `edged.content`."""
GREETING_HEAD_BYTES = 8
"""Bytes that tell how many follow."""
ID_BYTES_MAX = 256
"""Longest producer id in bytes of UTF-8."""


@dataclass(frozen=True)
class Greeting:
    """The content of a greeting; `size` is its length in bytes.

    With `settle`, HELLO is sent only once it is final; with `losses`, LOST frames are sent.
    `content` names what the producer sends; "": it is not named.  `session` is that of a link.
    `first` is the first batch that the producer still has; 0: it does not say.
    A table's first rows end with batch `last`; 0: the producer does not say it.
    """

    stream: str
    producer: str
    settle: bool
    losses: bool
    content: str
    session: Session | None
    first: int
    last: int
    schema: pa.Schema
    message: bytes
    size: int


def wanted(data: bytes) -> int:
    """The number of bytes to receive after `data` without reading past the greeting; the greeting
    cannot be complete before they are there."""
    if len(data) < GREETING_HEAD_BYTES:
        return GREETING_HEAD_BYTES - len(data)
    out = _framed(data)
    size = int(out[FRAME.size]) or 8 + int(out[FRAME.metadata])
    return max(1, min(size, GREETING_BYTES_MAX + 1) - len(data))


def read_greeting(data: bytes, token: bytes | None) -> Greeting | None:
    """The greeting at the start of `data`, or None while it is incomplete.

    Raises ProtocolError for other bytes, Unauthorized if its token is not `token`.
    """
    out = _framed(data)
    error, size, kind = (
        int(out[FRAME.error]),
        int(out[FRAME.size]),
        int(out[FRAME.header]),
    )
    if error == ipc.E_MAGIC:
        raise ProtocolError("this is not an Arrow IPC stream (it begins with FF FF FF FF)")
    if error or size > GREETING_BYTES_MAX:
        raise ProtocolError(
            f"the first message is damaged or larger than {GREETING_BYTES_MAX} bytes"
        )
    if size == 0 or size > len(data):
        return None
    if kind != ipc.SCHEMA:
        raise ProtocolError("the first message is not a schema")
    if out[FRAME.flag]:
        raise ProtocolError("the sender is big-endian; send little-endian buffers")
    check_schema_message(data[:size])
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data[:size]))
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise ProtocolError(f"the schema cannot be read: {problem}") from None
    _check_texts(schema)
    metadata = schema.metadata or {}
    if token is not None and not hmac.compare_digest(metadata.get(frames.TOKEN_KEY, b""), token):
        raise Unauthorized("edged.token in the schema's metadata is missing or wrong")
    if frames.STREAM_KEY not in metadata:
        raise ProtocolError("edged.stream is missing in the schema's metadata")
    stream = metadata[frames.STREAM_KEY].decode(errors="replace")
    producer = _producer(metadata)
    settle = _flag(metadata, frames.SETTLE_KEY, producer)
    losses = _flag(metadata, frames.LOSSES_KEY, producer)
    content = _content(metadata, producer)
    session = _session(metadata, producer)
    first = _number(metadata, frames.FROM_KEY, producer)
    last = _number(metadata, frames.LAST_KEY, producer)
    return Greeting(
        stream, producer, settle, losses, content, session, first, last, schema, data[:size], size
    )


def _check_texts(schema: pa.Schema) -> None:
    """pyarrow decodes names and time zones when they are asked for, each time.  Raises
    ProtocolError."""
    try:
        for field in schema:
            _ = field.name, getattr(field.type, "tz", None)
    except UnicodeDecodeError as problem:
        raise ProtocolError(f"a column's name or time zone is not UTF-8: {problem}") from None


def _framed(data: bytes) -> npt.NDArray[np.int64]:
    out = np.zeros(len(FRAME), np.int64)
    copy = np.frombuffer(bytearray(data), np.uint8)
    frame(address(copy), len(data), out)
    return out


def _producer(metadata: dict[bytes, bytes]) -> str:
    raw = metadata.get(frames.PRODUCER_KEY, b"")
    try:
        id = raw.decode()
    except UnicodeDecodeError:
        raise ProtocolError("edged.producer is not UTF-8") from None
    if len(raw) > ID_BYTES_MAX or not id.isprintable():
        raise ProtocolError(
            f"edged.producer must be printable and at most {ID_BYTES_MAX} bytes long"
        )
    return id


def _content(metadata: dict[bytes, bytes], producer: str) -> str:
    raw = metadata.get(frames.CONTENT_KEY, b"")
    if len(raw) > CONTENT_BYTES_MAX or not raw.isascii() or (raw and not producer):
        raise ProtocolError(
            f"edged.content is at most {CONTENT_BYTES_MAX} characters of ASCII, and goes with an"
            " edged.producer"
        )
    return raw.decode()


def _session(metadata: dict[bytes, bytes], producer: str) -> Session | None:
    raw = metadata.get(frames.SESSION_KEY)
    if raw is not None and not producer:
        raise ProtocolError("edged.session goes with an edged.producer")
    return None if raw is None else Session.parse(raw)


def _number(metadata: dict[bytes, bytes], key: bytes, producer: str) -> int:
    raw = metadata.get(key)
    if raw is None:
        return 0
    if not producer or not raw.isdigit() or len(raw) > ipc.SEQ_DIGITS_MAX or int(raw) == 0:
        text = f"{key.decode()} is a batch's number, and goes with an edged.producer"
        raise ProtocolError(text)
    return int(raw)


def _flag(metadata: dict[bytes, bytes], key: bytes, producer: str) -> bool:
    value = metadata.get(key)
    if value is not None and (value != b"1" or not producer):
        raise ProtocolError(f'{key.decode()} is "1", and goes with an edged.producer')
    return value is not None
