"""A store's identity: the device epoch, for its whole life, and the session, counted at each
opening.

`identity` is one line of JSON, written once: `{"format": 1, "epoch": "<16 hex digits>", "crc":
CRC-32 of "<format> <epoch>"}`.  An unknown format is refused before anything is changed.

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

from edged.errors import StoreCorrupt, StoreError
from edged.platform.disk import Disk, replace_file

FORMAT = 1
_SLOT = struct.Struct("<QQQI")
_SLOT_BYTES = 4096


def random_u64() -> int:
    """64 random bits, never 0."""
    return int.from_bytes(os.urandom(8), "little") or 1


def create_identity(disk: Disk, path: str) -> int:
    """Write a new identity, durably; returns its epoch."""
    epoch = f"{random_u64():016x}"
    crc = zlib.crc32(f"{FORMAT} {epoch}".encode())
    text = json.dumps({"format": FORMAT, "epoch": epoch, "crc": crc}) + "\n"
    replace_file(disk, path, [text.encode()])
    return int(epoch, 16)


def read_identity(disk: Disk, path: str) -> int:
    """The epoch.  Raises StoreError for a format of another version of edged."""
    file = disk.open(path)
    try:
        data = file.pread(4096, 0)
    finally:
        file.close()
    try:
        document = json.loads(data)
        version, epoch, crc = document["format"], document["epoch"], document.get("crc")
    except (ValueError, KeyError, TypeError, AttributeError):
        version, epoch, crc = FORMAT, "", None
    if version != FORMAT:
        raise StoreError(
            f"{path}: the store has format {version}, this edged knows format {FORMAT}; nothing "
            "was changed: use the edged that wrote it, or another directory"
        )
    if crc != zlib.crc32(f"{version} {epoch}".encode()):
        raise StoreCorrupt(f"{path}: damaged; see docs/store.md, 'When the store is damaged'")
    return int(epoch, 16)


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
        body = struct.pack("<QQQ", counter, nonce, epoch)
        block = body + struct.pack("<I", zlib.crc32(body)) + bytes(_SLOT_BYTES - _SLOT.size)
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
