"""The log's bytes, read by hand from the specification in edged/store/records.py and log.py."""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

from edged.pages.sealed import PageKey, SealedPage
from edged.store import BeatRecord, Store
from edged.store.records import Encoded, Lineage


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def parse_by_hand(segment: bytes) -> list[dict]:
    """The records of a segment, by the words of the specification alone."""
    magic, version, zero, number, nonce, epoch, follows = struct.unpack("<IHHQQQQ", segment[:40])
    assert (magic, version, zero, number, follows) == (0x4C676445, 1, 0, 1, 0)
    assert segment[40:60] == bytes(20)
    assert struct.unpack("<I", segment[60:64])[0] == zlib.crc32(segment[:60])
    seed = zlib.crc32(struct.pack("<Q", nonce))
    records, at = [], 4096
    while segment[at : at + 4] == b"EdgR":
        head = segment[at : at + 72]
        _, version, flags, number, beat, previous, durable, snapshots, length = struct.unpack(
            "<IHHQQQQQQ", head[:56]
        )
        inputs, pages, crc, head_crc = struct.unpack("<IIII", head[56:])
        assert head_crc == zlib.crc32(head[:68], seed)
        assert (version, number, length % 4096) == (1, 1, 0)
        data = segment[at : at + length]
        lengths = struct.unpack(f"<{1 + inputs}Q", data[72 : 72 + 8 * (1 + inputs)])
        place = 72 + 8 * (1 + inputs)
        entries = []
        for _ in range(pages):
            entries.append(struct.unpack("<QQII64s", data[place : place + 88]))
            place += 88
        parts = []
        for size in lengths:
            parts.append(data[place : place + size])
            place += size + -size % 8
        assert crc == zlib.crc32(data[72:place], seed)
        found = []
        for seq, size, partition, page_crc, name in entries:
            page = data[place : place + size]
            assert page_crc == zlib.crc32(page)
            found.append((name.rstrip(b"\0").decode(), partition, seq, page))
            place += size + -size % 8
        assert data[place:] == bytes(length - place)
        past = (previous, durable, snapshots, flags)
        records.append({"beat": beat, "past": past, "parts": parts, "pages": found, "epoch": epoch})
        at += length
    return records


def test_a_reader_written_from_the_specification_finds_every_byte(tmp_path):
    page = SealedPage(PageKey("curve", 5, 1), b"page bytes")
    with Store.open(tmp_path, segment_bytes=1 << 16) as store:
        store.commit(BeatRecord(3, b"facts", [np.arange(3, dtype="i2"), b"xyz"], [page]))
        store.commit(BeatRecord(4, b"", [], []), sync=False)
        store.commit(BeatRecord(9, b"f" * 5000, [b""], [page, SealedPage(page.key, b"")]))
        epoch = store.device_epoch
    (file,) = Path(tmp_path / "log").iterdir()
    records = parse_by_hand(file.read_bytes())
    assert [r["beat"] for r in records] == [3, 4, 9]
    assert [r["past"] for r in records] == [(0, 0, 0, 1), (3, 3, 0, 0), (4, 3, 0, 1)]
    assert records[0]["parts"] == [b"facts", bytes([0, 0, 1, 0, 2, 0]), b"xyz"]
    assert records[0]["pages"] == [("curve", 5, 1, b"page bytes")]
    assert records[2]["parts"] == [b"f" * 5000, b""]
    assert [p[3] for p in records[2]["pages"]] == [b"page bytes", b""]
    assert {r["epoch"] for r in records} == {epoch}


def test_the_bytes_of_a_record_are_those_of_format_one():
    page = SealedPage(PageKey("curve", 5, 1), b"page bytes")
    record = Encoded(BeatRecord(3, b"facts", [b"xyz"], [page]))
    data = b"".join(bytes(b) for b in record.buffers(7, 99, Lineage(1, 2, 3, True, False)))
    assert len(data) == record.length == 4096
    golden = "66006bb0ec53222e50a437a7085e0df84cc141f8efb29aa0b765e45a55725291"
    assert hashlib.sha256(data).hexdigest() == golden, "a new layout needs a new format number"
