"""What the collect kernels compute, said plainly."""

from __future__ import annotations


def collect_offsets(sizes):
    """Offsets, from 0, of texts of these sizes."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return offsets


def collect_bytes(texts):
    """The texts, one after the other."""
    return b"".join(texts)
