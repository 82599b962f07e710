"""Sealing: turns a finished page into its stored bytes: trimmed, compressed if that pays,
checksummed.

A sample decides whether compression is tried: the entropy of 1 byte in 64, spread over the body, in
bits per byte (`kernels.cpu.entropy`).  Above a threshold (ENTROPY_BITS_MAX, or the stream's) the
body is stored raw.  Otherwise it is compressed (a large one only if a PROBE_BYTES piece from its
middle shrinks), and the result is used if it is smaller by a tenth.  All of this depends on the
body and the threshold alone, so equal rows give equal pages.  The compressor is the lz4 package:
Arrow's `lz4_raw`, which the reader uses, finds only the shortest matches in rows that repeat at a
fixed distance.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import lz4.block
import numpy as np
import numpy.typing as npt

from edged.data.columns import address
from edged.pages.format import FLAG_LZ4, Header
from edged.pages.header import CHECKSUM_AT, HEADER_BYTES, checksum
from kernels.cpu.entropy import sampled_bits

COMPRESS_BYTES_MIN = 256
"""Smaller bodies are stored raw."""
PROBE_BYTES = 1 << 15
"""Bodies of at least eight times this size are probed with a piece of this size."""
ENTROPY_BITS_MAX = 7.0
"""Entropy of the sample in bits per byte above which LZ4 finds nothing."""
COMPRESSED_SHARE_MAX = 0.9
"""Largest share of the raw body that a compressed one may have."""
_CHECKSUM = slice(CHECKSUM_AT, CHECKSUM_AT + 4)


def seal_page(
    header: Header,
    page: npt.NDArray[np.uint8],
    *,
    compress: bool = True,
    entropy_bits_max: float = ENTROPY_BITS_MAX,
) -> bytes:
    """The stored bytes of a page.

    `page` is its uncompressed bytes, trimmed; the first 224 are overwritten by the header.
    `header`'s sizes, checksum and compression flag are filled in.
    """
    size = page.size
    body = _compressed(page[HEADER_BYTES:], entropy_bits_max) if compress else None
    if body is not None:
        flags, stored = header.flags | FLAG_LZ4, HEADER_BYTES + len(body)
        header = replace(header, raw_bytes=size, stored_bytes=stored, checksum=0, flags=flags)
        whole: Any = bytearray(header.pack() + body)
    else:
        header = replace(header, raw_bytes=size, stored_bytes=size, checksum=0)
        page[:HEADER_BYTES] = np.frombuffer(header.pack(), np.uint8)
        whole = page.data
    whole[_CHECKSUM] = struct.pack("<I", checksum(whole))
    return bytes(whole)


def _compressed(body: npt.NDArray[np.uint8], entropy_bits_max: float) -> bytes | None:
    if body.size < COMPRESS_BYTES_MIN or _entropy_bits(body) > entropy_bits_max:
        return None
    if body.size >= 8 * PROBE_BYTES:
        middle = body.size // 2
        if _smaller(body[middle : middle + PROBE_BYTES]) is None:
            return None
    return _smaller(body)


def _entropy_bits(body: npt.NDArray[np.uint8]) -> float:
    return float(sampled_bits(address(body), body.size))


def _smaller(body: npt.NDArray[np.uint8]) -> bytes | None:
    small: bytes = lz4.block.compress(body, store_size=False)
    return small if len(small) <= COMPRESSED_SHARE_MAX * body.size else None
