"""What a `postgres` source and its child process say to each other over a socket.

    u8 kind | u32 payload length | payload, little-endian

    to the child     CONFIG (JSON, first), CONFIRM (u64: changes up to this LSN are committed)
    to the source    ROWS (u32 length, a position behind the rows, an Arrow stream of one batch),
                     POPULATED (a position: the first rows are sent), STATE (JSON)

A position is the text that the stream's producer keeps as its content.  It is in the record of the
beat that stages the rows, so that rows and position are durable together.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

CONFIG, CONFIRM, ROWS, POPULATED, STATE = 1, 2, 3, 4, 5
_HEAD = struct.Struct("<BI")
_LENGTH = struct.Struct("<I")
NUMBER = struct.Struct("<Q")
"""The payload of CONFIRM."""


@dataclass(frozen=True, slots=True)
class Position:
    """How much of a table's rows and changes is staged."""

    system: str = ""
    """The server's system identifier; empty: nothing is staged, and no slot is known."""
    lsn: int = 0
    """All transactions that end up to here are staged; while `copying`, where changes begin."""
    rows: int = 0
    """Rows behind that: of later transactions, or of the copy."""
    copying: bool = False

    @classmethod
    def read(cls, text: str) -> Position:
        """The inverse of `text`; of an empty text the beginning."""
        return cls(**json.loads(text)) if text else cls()

    def text(self) -> str:
        """The position as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def behind(self, rows: int) -> Position:
        """The position so many rows later."""
        return replace(self, rows=self.rows + rows)


@dataclass(frozen=True, slots=True)
class ChildState:
    """What the child does: nothing is wrong with an empty `problem`."""

    problem: str = ""
    final: bool = False
    """Whether it tries no more."""


def frame(kind: int, payload: bytes) -> bytes:
    """A frame."""
    return _HEAD.pack(kind, len(payload)) + payload


def rows_payload(position: Position, batch: bytes) -> bytes:
    """The payload of ROWS."""
    text = position.text().encode()
    return _LENGTH.pack(len(text)) + text + batch


def rows_of(payload: bytes) -> tuple[Position, memoryview]:
    """The inverse of `rows_payload`."""
    (length,) = _LENGTH.unpack_from(payload)
    text = payload[_LENGTH.size : _LENGTH.size + length]
    return Position.read(text.decode()), memoryview(payload)[_LENGTH.size + length :]


def json_frame(kind: int, document: Any) -> bytes:
    """A frame of JSON."""
    return frame(kind, json.dumps(document).encode())


class Frames:
    """A parser: bytes in, (kind, payload) out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        self._rest += data

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return len(self._rest)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return self

    def __next__(self) -> tuple[int, bytes]:
        if len(self._rest) < _HEAD.size:
            raise StopIteration
        kind, length = _HEAD.unpack_from(self._rest)
        if len(self._rest) < _HEAD.size + length:
            raise StopIteration
        payload = bytes(self._rest[_HEAD.size : _HEAD.size + length])
        del self._rest[: _HEAD.size + length]
        return kind, payload
