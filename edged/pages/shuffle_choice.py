"""The rule that chooses a member of the shuffle family."""

from __future__ import annotations


def chosen(partitions: int, tuple_bytes: int, threads: int) -> str:
    """The member for these settings; `tuple_bytes` 0: tuples of any size."""
    return "merge"
