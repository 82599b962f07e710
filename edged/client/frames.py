"""The producers' wire beside Arrow: metadata keys, and the frames of the answers.

Producer → edged is a plain Arrow IPC stream.  Metadata of the schema: `edged.stream` (required),
`edged.producer` (this producer's id), `edged.token`, `edged.settle` ("1": HELLO comes once it is
final), `edged.content` (names what this producer sends), `edged.losses` ("1": LOST frames come),
`edged.session` (COUNTER.NONCE.BASE of a link), `edged.from` (decimal ASCII: the first batch that
this producer still has), `edged.last` (the number of the batch with which a table's first rows
end).  Metadata of each record batch: `edged.seq`, decimal ASCII, counting 1, 2,
3 … per producer; `edged.watermark`, decimal ASCII with an optional sign: event time (µs) before
which no later row comes, 2^63 - 1 at the end of the stream; `edged.sum`, 16 hexadecimal digits:
what the producer calls the batch besides its number.

edged → producer are little-endian frames; a producer without an id gets errors only:

    u32 kind | u32 payload length | payload

    1 HELLO    u64 sequence number of the last committed batch (0: none); continue after it
    2 ACK      u64 all batches up to this number are committed
    3 ERROR    UTF-8 text: the fault.  The connection ends; a retry fails the same way
    4 END_ACK  the end of stream is committed
    5 AGAIN    UTF-8 text: the connection ends for a temporary reason; connect again
    6 LOST     u64 late rows, u64 rows too far ahead: dropped so far, of all this producer has sent
    7 LINK     u64 number, u64 sum of the last batch staged, after HELLO where a session was named
"""

from __future__ import annotations

import struct

STREAM_KEY, PRODUCER_KEY, TOKEN_KEY = b"edged.stream", b"edged.producer", b"edged.token"
SETTLE_KEY, SEQ_KEY = b"edged.settle", b"edged.seq"
CONTENT_KEY, LOSSES_KEY, LAST_KEY = b"edged.content", b"edged.losses", b"edged.last"
SESSION_KEY, FROM_KEY = b"edged.session", b"edged.from"
WATERMARK_KEY, SUM_KEY = b"edged.watermark", b"edged.sum"

HELLO, ACK, ERROR, END_ACK, AGAIN, LOST, LINK = 1, 2, 3, 4, 5, 6, 7
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Arrow's end-of-stream marker."""
PAYLOAD_MAX = 1 << 16

_HEAD = struct.Struct("<II")
_NUMBERED = struct.Struct("<IIQ")
_LOST = struct.Struct("<QQ")


def numbered(kind: int, seq: int) -> bytes:
    """A HELLO or ACK frame."""
    return _NUMBERED.pack(kind, 8, seq)


def text_frame(kind: int, text: str) -> bytes:
    """An ERROR or AGAIN frame."""
    payload = text.encode()[:PAYLOAD_MAX]
    return _HEAD.pack(kind, len(payload)) + payload


def end_ack() -> bytes:
    """An END_ACK frame."""
    return _HEAD.pack(END_ACK, 0)


def lost(late: int, ahead: int) -> bytes:
    """A LOST frame."""
    return _HEAD.pack(LOST, _LOST.size) + _LOST.pack(late, ahead)


def link(seq: int, sum: int) -> bytes:
    """A LINK frame."""
    return _HEAD.pack(LINK, _LOST.size) + _LOST.pack(seq, sum)


def losses_of(payload: bytes) -> tuple[int, int]:
    """Late rows and rows too far ahead in a LOST's payload.  Raises ValueError unless it has 16
    bytes."""
    if len(payload) != _LOST.size:
        raise ValueError(f"a LOST of {len(payload)} bytes")
    late, ahead = _LOST.unpack(payload)
    return int(late), int(ahead)


STORE_FULL = "the store is full, and the job rejects rows until it has room: send them later"
"""The ERROR of a source while the store is full, of jobs with `when_full = "reject"`."""


class FrameReader:
    """A parser: bytes in, (kind, payload) pairs out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The complete frames so far.  Raises ValueError for bytes that are no frames."""
        self._rest += data
        frames, at = [], 0
        while len(self._rest) - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest, at)
            if length > PAYLOAD_MAX:
                raise ValueError(
                    f"a frame of {length} bytes: the peer does not speak this protocol"
                )
            if len(self._rest) - at - _HEAD.size < length:
                break
            at += _HEAD.size
            frames.append((kind, self._rest[at : at + length]))
            at += length
        self._rest = self._rest[at:]
        return frames


def seq_of(payload: bytes) -> int:
    """The number in a HELLO's or ACK's payload.  Raises ValueError unless it has 8 bytes."""
    if len(payload) != 8:
        raise ValueError(f"a sequence number of {len(payload)} bytes")
    return int.from_bytes(payload, "little")
