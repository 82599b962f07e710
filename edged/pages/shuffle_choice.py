"""The rule that chooses a member of the shuffle family, from `edged bench shuffle`."""

from __future__ import annotations

_SMALL_TUPLE, _LARGE_TUPLE = 16, 256
"""Tuples below the first cost more to sort into buffers than to copy; those from the second on fill
whole cache lines by themselves."""
_FEW_PARTITIONS = 256
"""The open buffers and private pages of so many partitions stay in a core's cache."""
_PRIVATE_PARTITIONS = 1024
"""Beyond, a page of each partition and thread takes more memory than the pages that are full."""


def chosen(partitions: int, tuple_bytes: int, threads: int) -> str:
    """The member for these settings; `tuple_bytes` 0: tuples of any size.

    One thread needs no shared pages: `ranges`, whose pages are the same bytes for any number of
    threads.  Several threads work fastest on pages of their own, `merge`, until the pages are too
    many, where they share them, or tuples are so small that the copy into buffers limits."""
    many = partitions > _FEW_PARTITIONS
    large = tuple_bytes >= _LARGE_TUPLE
    if threads == 1 or partitions > _PRIVATE_PARTITIONS or (many and large):
        return "ranges"
    if many or 0 < tuple_bytes < _SMALL_TUPLE:
        return "on_demand_buffered/lock_free"
    return "merge"
