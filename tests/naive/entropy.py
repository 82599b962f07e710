"""What `kernels.cpu.entropy` computes, said plainly."""

from __future__ import annotations

from collections import Counter
from math import log2


def sample(body):
    """The bytes that are looked at: 1024 to 4096 in 16 pieces, or all of a body that is no
    longer."""
    piece = min(max(1024, len(body) // 64), 4096) // 16
    if len(body) <= 16 * piece:
        return bytes(body)
    starts = [(len(body) - piece) * k // 15 for k in range(16)]
    return b"".join(bytes(body[at : at + piece]) for at in starts)


def sampled_bits(body):
    """The entropy of the sample in bits a byte."""
    looked_at = sample(body)
    shares = [n / len(looked_at) for n in Counter(looked_at).values()]
    return -sum(share * log2(share) for share in shares)
