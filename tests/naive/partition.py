"""What the partition kernels compute, said plainly."""

from __future__ import annotations


def count(hashes, valid):
    """Rows of each of the 64 partitions."""
    counts = [0] * 64
    for h, v in zip(hashes, valid, strict=True):
        counts[h >> 58] += v
    return counts


def scatter(hashes, valid, times, first_row):
    """The records (time, tag, row number), partition by partition, in arrival order."""
    parts = [[] for _ in range(64)]
    for i, h in enumerate(hashes):
        if valid[i]:
            tag = (h >> 58) * 2**26 + h % 2**26
            parts[h >> 58].append((times[i], tag, (first_row + i) % 2**32))
    return [record for part in parts for record in part]
