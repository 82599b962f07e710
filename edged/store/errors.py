"""The store's own error, besides `StoreFailed`, `StoreBusy` and `StoreCorrupt` of edged.errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edged.errors import StoreError
from edged.platform.disk import DISK_FULL


class StoreFull(StoreError):
    """The store has no room for this; nothing was written, and the store is unchanged.

    A snapshot, acks, or freed disk space make room; the same call may then be repeated.
    """


@contextmanager
def no_room(what: str) -> Iterator[None]:
    """Raise StoreFull for a full disk; `what` names what needs the room, and where."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in DISK_FULL:
            raise
        raise StoreFull(f"{what}: {problem.strerror}; free some room on that disk") from problem
