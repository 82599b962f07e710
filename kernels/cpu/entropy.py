"""The entropy of a sample of bytes: whether compressing a page is worth a try."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.registry import kernel

SAMPLE_BYTES_MIN, SAMPLE_BYTES_MAX, SAMPLE_SHARE = 1 << 10, 1 << 12, 64
"""A sample is 1 byte in SAMPLE_SHARE, within these bounds: fewer than 1024 bytes look poorer than
they are (1024 random ones have 7.8 bits a byte, 256 have 7.2)."""
PIECES = 16
"""Pieces of a sample, spread evenly."""
_COUNTS = np.arange(SAMPLE_BYTES_MAX + 1, dtype=np.float64)
_TERMS = _COUNTS * np.log2(np.maximum(_COUNTS, 1.0))


@kernel("float64(int64, int64)", reference="tests.naive.entropy.sampled_bits")
def sampled_bits(body: int, size: int) -> Any:
    """Shannon entropy, in bits a byte (0..8), of a sample of the `size` bytes at an address; 0 of
    no bytes."""
    counts = np.zeros(256, np.int32)
    piece = min(max(SAMPLE_BYTES_MIN, size // SAMPLE_SHARE), SAMPLE_BYTES_MAX) // PIECES
    pieces = PIECES
    if size <= piece * PIECES:
        piece, pieces = size, 1
    for k in range(pieces):
        start = body + (size - piece) * k // max(1, pieces - 1)
        for at in range(start, start + piece):
            counts[mem.load_u8(at)] += 1
    sample, terms = piece * pieces, 0.0
    if sample == 0:
        return 0.0
    for count in counts:
        terms += _TERMS[min(np.int64(count), SAMPLE_BYTES_MAX)]
    return max(0.0, np.log2(float(sample)) - terms / sample)
