"""The store's own error, beside `StoreFailed`, `StoreBusy` and `StoreCorrupt` of edged.errors."""

from __future__ import annotations

import errno

from edged.errors import StoreError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the operating system says where space or quota is used up."""


class StoreFull(StoreError):
    """There is no room for this; nothing was written and the store is as it was before.

    Snapshot and acks free room; then the same call may be tried again.
    """
