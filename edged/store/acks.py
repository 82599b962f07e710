"""The file of acks: what the centre has confirmed, so that a restart offers fewer pages again.

`acks` is two lines: JSON `{"epoch": "<16 hex digits>", "acks": [[stream, partition, seq], …],
"newest": [[stream, partition, seq], …], "session": counter}`, and the CRC-32 of the first line in
decimal.  `newest` has the last number that existed, acked or not: where a snapshot is lost, page
numbers go on behind it; `session` does the same for the session.  The file is a hint, written
without a sync.  If it is stale, missing or damaged, pages are offered once more and the centre
drops them.
"""

from __future__ import annotations

from edged.platform.disk import DISK_FULL, Disk
from edged.store.checked_lines import read_checked, write_checked
from edged.store.page_index import Route

Numbers = dict[Route, int]


def read_acks(disk: Disk, path: str, epoch: int) -> tuple[Numbers, Numbers]:
    """The acked number and the newest number of each (stream, partition); empty if the file is
    missing or damaged."""
    if not disk.exists(path):
        return {}, {}
    document = read_checked(disk, path)
    if document is None or document["epoch"] != f"{epoch:016x}":
        return {}, {}
    acked, newest = (
        {(str(s), int(p)): int(q) for s, p, q in document.get(name, ())}
        for name in ("acks", "newest")
    )
    return acked, newest


def read_session_hint(disk: Disk, path: str, epoch: int) -> int | None:
    """The session that wrote the file; None if it is missing or damaged."""
    document = read_checked(disk, path) if disk.exists(path) else None
    if document is None or document["epoch"] != f"{epoch:016x}":
        return None
    session: int | None = document.get("session")
    return session


def write_acks(
    disk: Disk, path: str, epoch: int, session: int, acked: Numbers, newest: Numbers
) -> None:
    """Replace the file.  A full disk is ignored."""
    lists = ([[s, p, q] for (s, p), q in sorted(n.items())] for n in (acked, newest))
    document = dict(zip(("acks", "newest"), lists, strict=True))
    try:
        content = {"epoch": f"{epoch:016x}", **document, "session": session}
        write_checked(disk, path, content, sync=False)
    except OSError as problem:
        if problem.errno not in DISK_FULL:
            raise
