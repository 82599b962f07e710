"""The rule that chooses a member of the shuffle family, from `edged bench shuffle`."""

from __future__ import annotations

from edged.pages.shuffle_plan import LINE_ROW_BYTES

_SMALL_TUPLE = 16
"""Smaller tuples cost more to sort into buffers than to copy."""
_FEW_PARTITIONS = 256
"""The open buffers and private pages of so many partitions stay in a core's cache."""
_PRIVATE_PARTITIONS = 1024
"""Beyond, a page of each partition and thread takes more memory than the pages that are full."""


def chosen(partitions: int, tuple_bytes: int, threads: int) -> str:
    """The member for these settings; `tuple_bytes` 0: tuples of any size.

    Threads work fastest on pages of their own, `merge`, until the pages are too many: then each
    writes the partitions of its range.  Several threads share pages where tuples need buffers and
    those of all partitions leave the cache, or where tuples are so small that the copy into buffers
    limits."""
    if partitions > _PRIVATE_PARTITIONS:
        return "ranges"
    if threads == 1:
        return "merge"
    least = LINE_ROW_BYTES[0] if partitions > _FEW_PARTITIONS else _SMALL_TUPLE
    return "on_demand_buffered/lock_free" if 0 < tuple_bytes < least else "merge"
