"""The identity and the session of a store whose files of them are damaged.

Every file of a store has its epoch under a checksum.  A store therefore keeps its epoch, and with
it the numbering that the centre knows, as long as one of them is whole: the session, a segment of
the log, or a file of the spool.  A new epoch is never made for a store that holds data.

The session has to count on from any number that the centre has seen.  Where both of its slots are
damaged, it goes on far above the one that `acks` holds, or far above all that is likely.
"""

from __future__ import annotations

from collections.abc import Iterator

from edged.errors import StoreCorrupt
from edged.platform.disk import Disk
from edged.store import identity
from edged.store.acks import read_session_hint
from edged.store.salvage import Salvage
from edged.store.segments import epoch_of_segment
from edged.store.spool import epoch_of_spool_file

SESSION_STEP, SESSION_UNKNOWN = 1 << 12, 1 << 20


def read_or_restore_identity(disk: Disk, store: str, salvage: Salvage) -> int | None:
    """The epoch of a store; None: it has no identity, and nothing tells of one.

    Raises StoreCorrupt where the identity is damaged and nothing else is whole.
    """
    path, problem, damage = f"{store}/identity", "missing", None
    if disk.exists(path):
        try:
            return identity.read_identity(disk, path)
        except StoreCorrupt as found:
            problem, damage = "damaged", found
    epoch = next(_epochs(disk, store), None)
    if epoch is not None:
        salvage.add(path, 0, -1, "identity", f"{problem}; the epoch follows from other files")
        identity.write_identity(disk, path, epoch, identity.FORMAT)
    elif damage is not None:
        raise damage
    return epoch


def restore_session(disk: Disk, store: str, epoch: int, salvage: Salvage) -> None:
    """Let the session count on where both slots are damaged; with one it does by itself."""
    path = f"{store}/session"
    whole = len(identity.valid_slots(disk, path)) if disk.exists(path) else 2
    if whole == 1:
        salvage.add(path, 0, -1, "session", "a slot is damaged; a number is skipped")
    if whole == 0:
        salvage.add(path, 0, -1, "session", "both slots are damaged; it counts on far above")
        known = read_session_hint(disk, f"{store}/acks", epoch)
        counter = SESSION_UNKNOWN if known is None else known + SESSION_STEP
        identity.write_session(disk, path, counter, epoch)


def _epochs(disk: Disk, store: str) -> Iterator[int]:
    if disk.exists(f"{store}/session"):
        yield from identity.epochs_of_session(disk, f"{store}/session")
    for directory, suffix, epoch_of in (
        ("log", ".log", epoch_of_segment),
        ("spool", ".pages", epoch_of_spool_file),
    ):
        place = f"{store}/{directory}"
        for name in disk.listdir(place) if disk.exists(place) else ():
            if name.endswith(suffix):
                file = disk.open(f"{place}/{name}")
                try:
                    epoch = epoch_of(file)
                finally:
                    file.close()
                if epoch is not None:
                    yield epoch
