"""LZ4 of a message's buffers, in Arrow's form, where a sample of the body says that it pays.

Each buffer of a compressed body is an i64, its raw length, and an LZ4 frame; a buffer that does not
shrink has length -1 and its bytes.  `always` compresses every body, `auto` those whose sampled
bytes have an entropy of at most a threshold (`kernels.cpu.entropy`), and keeps the result if it is
smaller by a tenth.  A body that was tried in vain makes `auto` pass over the next ones without a
try: one, then two, up to PASSED_OVER_MAX.  The outcome depends on bodies, threshold and `state`, so
that a replay writes the same bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edged.data.columns import address
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.links.template import Template, template_of
from edged.pages.seal import COMPRESS_BYTES_MIN
from kernels.cpu.entropy import sampled_bits
from kernels.cpu.link_messages import (
    DIGITS,
    LINK_COLUMN,
    SPOTS,
    WATERMARK_CHARACTERS,
    patch,
)
from kernels.cpu.lz4_pack import HASH_BITS, ROOM_A_BUFFER, pack_buffers

AUTO, NEVER, ALWAYS = "auto", "never", "always"
COMPRESS = (AUTO, NEVER, ALWAYS)
PASSED_OVER_MAX = 64
_SMALLER_SHARE_MAX = 0.9
"""Largest share of the raw body that a compressed one may have with `auto`."""

Bytes = npt.NDArray[np.uint8]


class MessageCompressor:
    """Compresses messages of one schema, as `kernels.cpu.link_messages.encode` wrote them."""

    def __init__(self, schema: Schema, plain: Template, mode: str, entropy_bits_max: float) -> None:
        self._plain, self._packed = plain, template_of(schema, compressed=True)
        self._mode, self._entropy_bits_max = mode, entropy_bits_max
        loose = int((plain.layout[:, LINK_COLUMN.kind] < 0).sum())
        self._buffers = 2 * len(schema) + loose
        self._entries = np.empty(2 * self._buffers, np.int64)
        self._table = np.empty(1 << HASH_BITS, np.int32)
        self._scratch = Scratch()
        self.state = (0, 1)
        """Messages that are passed over before the next try, and how many after a vain one."""

    def compress(self, message: Bytes, seq: int) -> Bytes | None:
        """The message, its body compressed; None: it stays as it is."""
        body = message[self._plain.spots[SPOTS.head] :]
        if body.size < COMPRESS_BYTES_MIN:
            return None
        if self._mode == ALWAYS:
            return self._message(message, *self._buffers_of(message, body), seq)
        left, pause = self.state
        if left:
            self.state = (left - 1, pause)
            return None
        if float(sampled_bits(address(body), body.size)) > self._entropy_bits_max:
            return None
        packed, entries = self._buffers_of(message, body)
        if len(packed) > _SMALLER_SHARE_MAX * body.size:
            self.state = (pause, min(PASSED_OVER_MAX, 2 * pause))
            return None
        self.state = (0, 1)
        return self._message(message, packed, entries, seq)

    def digest_at(self) -> int:
        """Where the digest's digits are in a compressed message."""
        return int(self._packed.spots[SPOTS.digest])

    def _buffers_of(self, message: Bytes, body: Bytes) -> tuple[Bytes, bytes]:
        """The compressed body, valid until the next call, and the entries of its buffers."""
        entries = address(message) + int(self._plain.spots[SPOTS.buffers])
        room = body.size + ROOM_A_BUFFER * self._buffers
        packed = self._scratch.get("body", room, np.uint8)
        size = pack_buffers(
            address(body), entries, self._buffers, address(packed), address(self._entries),
            self._table,
        )  # fmt: skip
        return packed[:size], self._entries.tobytes()

    def _message(self, message: Bytes, packed: Bytes, entries: bytes, seq: int) -> Bytes:
        was, now = self._plain.spots, self._packed.spots
        head = int(now[SPOTS.head])
        made = np.empty(head + len(packed), np.uint8)
        made[:head] = self._packed.head
        made[head:] = packed
        for spot, size in (
            (SPOTS.rows, 8),
            (SPOTS.nodes, 16 * self._plain.layout.shape[0]),
            (SPOTS.seq, DIGITS),
            (SPOTS.watermark, WATERMARK_CHARACTERS),
        ):
            made[now[spot] : now[spot] + size] = message[was[spot] : was[spot] + size]
        places = ((SPOTS.buffers, entries), (SPOTS.body, len(packed).to_bytes(8, "little")))
        for spot, data in places:
            made[now[spot] : now[spot] + len(data)] = np.frombuffer(data, np.uint8)
        patch(
            address(made) + int(now[SPOTS.digest]),
            address(made) + head,
            len(packed),
            np.uint64(seq),
        )
        return made
