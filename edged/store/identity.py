"""A store's identity: the device epoch, for its whole life, and the session, counted at each
opening.

`identity` is one line of JSON, written when the store is made and by each migration
(`edged.store.migration`): `{"format": n, "epoch": "<16 hex digits>", "crc": CRC-32 of "<format>
<epoch>", "edged": version}`.  An unknown format is refused before anything is changed; `edged`, the
version that wrote the file, is for the refusal, and format 1 has none.

`session` holds two slots of 4096 bytes, written in turn and made durable before the store is used:
u64 counter, u64 random nonce, u64 device epoch, u32 CRC-32 of the 24 bytes before, little-endian.
The larger valid counter is current.  A damaged slot may have held the next one, so that number is
skipped: the counter never goes back.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from edged import __version__
from edged.errors import StoreCorrupt, StoreFormatUnknown
from edged.platform.disk import Disk, replace_file

FORMAT, FORMAT_MIN = 2, 1
"""The format that this version writes, and the oldest that it migrates."""
READABLE = range(FORMAT_MIN, FORMAT + 1)
_SLOT = struct.Struct("<QQQI")
_SLOT_BYTES = 4096


def random_u64() -> int:
    """64 random bits, never 0."""
    return int.from_bytes(os.urandom(8), "little") or 1


def create_identity(disk: Disk, path: str) -> int:
    """Write a new identity, durably; returns its epoch."""
    epoch = random_u64()
    write_identity(disk, path, epoch, FORMAT)
    return epoch


def _crc(version: object, epoch: object) -> int:
    return zlib.crc32(f"{version} {epoch}".encode())


def write_identity(disk: Disk, path: str, epoch: int, version: int) -> None:
    """Write the identity of a store of format `version`, durably."""
    number = f"{epoch:016x}"
    content = {"format": version, "epoch": number, "crc": _crc(version, number)}
    content["edged"] = __version__
    replace_file(disk, path, [(json.dumps(content) + "\n").encode()])


def read_identity(disk: Disk, path: str) -> int:
    """The epoch.  Raises StoreFormatUnknown for a format that is neither read nor migrated."""
    document = _read(disk, path)
    version, epoch = document["format"], document["epoch"]
    of = [v for v in (version, *READABLE) if document.get("crc") == _crc(v, epoch)]
    if version not in READABLE and of in ([], [version]):
        raise StoreFormatUnknown(f"{path}: {_refusal(document)}")
    if version not in of:
        raise StoreCorrupt(f"{path}: damaged; see docs/store.md, 'When the store is damaged'")
    return int(epoch, 16)


def read_format(disk: Disk, path: str) -> int:
    """The format of a store whose identity is whole."""
    return int(_read(disk, path)["format"])


def _read(disk: Disk, path: str) -> dict[str, Any]:
    """The content; where it is damaged, one that matches no checksum."""
    file = disk.open(path)
    try:
        data = file.pread(4096, 0)
    finally:
        file.close()
    try:
        document = json.loads(data)
        return {**document, "format": document["format"], "epoch": document["epoch"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"format": FORMAT, "epoch": ""}


def _refusal(document: Mapping[str, Any]) -> str:
    """Why a store's format is refused, and what to do."""
    version = document["format"]
    by = f", written by edged {document['edged']}" if "edged" in document else ""
    text = (
        f"the store has format {version}{by}; this edged {__version__} reads formats {FORMAT_MIN} "
        f"to {FORMAT}.  Nothing was changed"
    )
    if isinstance(version, int) and version < FORMAT_MIN:
        return f"{text}: start a version in between first, which migrates it"
    return (
        f"{text}: install the edged that wrote it, or a later one.  To go back to this version, "
        "let that one deliver everything (edged stop --drain), then give this one another directory"
    )


def valid_slots(disk: Disk, path: str) -> list[tuple[int, int]]:
    """Counter and epoch of each slot of a session that is whole; an empty one has zeros."""
    file = disk.open(path)
    try:
        slots = [file.pread(_SLOT.size, i * _SLOT_BYTES) for i in (0, 1)]
    finally:
        file.close()
    found = []
    for slot in slots:
        if len(slot) == _SLOT.size:
            counter, _, epoch, crc = _SLOT.unpack(slot)
            if slot == bytes(_SLOT.size) or crc == zlib.crc32(slot[:-4]):
                found.append((counter, epoch))
    return found


def epochs_of_session(disk: Disk, path: str) -> list[int]:
    """The epoch of each whole slot."""
    return [epoch for _, epoch in valid_slots(disk, path) if epoch]


def write_session(disk: Disk, path: str, counter: int, epoch: int) -> None:
    """Replace a session by one with this counter in both slots, durably."""
    block = _slot(counter, random_u64(), epoch)
    replace_file(disk, path, [block + block])


def _slot(counter: int, nonce: int, epoch: int) -> bytes:
    body = struct.pack("<QQQ", counter, nonce, epoch)
    return body + struct.pack("<I", zlib.crc32(body)) + bytes(_SLOT_BYTES - _SLOT.size)


def next_session(disk: Disk, path: str, epoch: int) -> tuple[int, int]:
    """Count this opening, durably; returns (counter, nonce)."""
    fresh = not disk.exists(path)
    if fresh:
        replace_file(disk, path, [bytes(2 * _SLOT_BYTES)])
    file = disk.open(path)
    try:
        slots = [file.pread(_SLOT.size, i * _SLOT_BYTES) for i in (0, 1)]
        counters = [_counter(slot, epoch, path) for slot in slots]
        if max(c or 0 for c in counters) > 1:
            # After the first two openings no valid slot is empty.
            counters = [c or None for c in counters]
        valid = [c for c in counters if c is not None]
        if not valid:
            raise StoreCorrupt(
                f"{path}: both slots are damaged; see docs/store.md, 'When the store is damaged'"
            )
        counter = max(valid) + (1 if len(valid) == 2 else 2)
        nonce = random_u64()
        block = _slot(counter, nonce, epoch)
        older = counters.index(None) if None in counters else counters.index(min(valid))
        file.pwritev([block], older * _SLOT_BYTES)
        file.sync()
    finally:
        file.close()
    return counter, nonce


def _counter(slot: bytes, epoch: int, path: str) -> int | None:
    if slot == bytes(_SLOT.size):
        return 0
    if len(slot) < _SLOT.size:
        return None
    counter, _, owner, crc = _SLOT.unpack(slot)
    if crc != zlib.crc32(slot[:-4]):
        return None
    if owner != epoch:
        raise StoreCorrupt(f"{path}: belongs to another store; see docs/store.md")
    return int(counter)
