"""The store's own error, beside `StoreFailed`, `StoreBusy` and `StoreCorrupt` of edged.errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edged.errors import StoreError
from edged.platform.disk import DISK_FULL


class StoreFull(StoreError):
    """There is no room for this; nothing was written and the store is as it was before.

    Snapshot and acks free room, and so do people; then the same call may be tried again.
    """


@contextmanager
def no_room(what: str) -> Iterator[None]:
    """Makes StoreFull of a disk that is full; `what` says what it has no room for, and where."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in DISK_FULL:
            raise
        raise StoreFull(f"{what}: {problem.strerror}; free some room on that disk") from problem
