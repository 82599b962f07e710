"""The durable part of a device: log, snapshots and spool behind `Store`.  See docs/store.md."""

from edged.platform.disk import Buffer, Disk, SystemDisk
from edged.store.errors import StoreFull
from edged.store.page_index import PageRef
from edged.store.records import BeatRecord, Encoded
from edged.store.snapshot_files import SnapshotTask
from edged.store.snapshots import Snapshot
from edged.store.starting_point import Recovery
from edged.store.store import Store

__all__ = [
    "BeatRecord",
    "Buffer",
    "Disk",
    "Encoded",
    "PageRef",
    "Recovery",
    "Snapshot",
    "SnapshotTask",
    "Store",
    "StoreFull",
    "SystemDisk",
]
