"""The file of acks: what the centre has confirmed, so that a restart offers fewer pages again.

`acks` is two lines: JSON `{"epoch": "<16 hex digits>", "acks": [[stream, partition, seq], …]}`, and
the CRC-32 of the first line in decimal.  It is a hint, written without a sync.  If it is stale,
missing or damaged, pages are offered once more and the centre drops them.
"""

from __future__ import annotations

from edged.platform.disk import DISK_FULL, Disk
from edged.store.checked_lines import read_checked, write_checked
from edged.store.page_index import Route


def read_acks(disk: Disk, path: str, epoch: int) -> dict[Route, int]:
    """The acked sequence number of each (stream, partition); empty if the file is missing or
    damaged."""
    if not disk.exists(path):
        return {}
    document = read_checked(disk, path)
    if document is None or document["epoch"] != f"{epoch:016x}":
        return {}
    return {(str(s), int(p)): int(q) for s, p, q in document["acks"]}


def write_acks(disk: Disk, path: str, epoch: int, acked: dict[Route, int]) -> None:
    """Replace the file.  A full disk is ignored."""
    acks = [[s, p, q] for (s, p), q in sorted(acked.items())]
    try:
        write_checked(disk, path, {"epoch": f"{epoch:016x}", "acks": acks}, sync=False)
    except OSError as problem:
        if problem.errno not in DISK_FULL:
            raise
