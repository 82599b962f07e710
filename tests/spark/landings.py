"""Test landings, written from the text of the page format, without edged's writer."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pyarrow as pa

from edged.central import segments
from edged.data.schema import Schema


def dense_page(schema, columns, *, stream, version=1, seq, device="dev", epoch=7, partition=0):
    """A dense page; `columns` are numpy arrays, masked arrays where they hold nulls."""
    n = len(columns[0])
    nullable = any(f.nullable for f in schema)
    parts = [("bitmap", "u1", ((len(schema) + 7) // 8,))] if nullable else []
    parts += [(f.name, f.dtype.numpy.newbyteorder("<")) for f in schema]
    rows = np.zeros(n, np.dtype(parts))
    for i, (f, c) in enumerate(zip(schema, columns, strict=True)):
        present = ~np.ma.getmaskarray(c)
        rows[f.name] = np.where(present, np.ma.getdata(c), np.zeros(1, f.dtype.numpy)[0])
        if nullable:
            rows["bitmap"][:, i // 8] |= present.astype(np.uint8) << (i % 8)
    return _page(
        1, rows.itemsize, n, rows.tobytes(), stream, version, seq, device, epoch, partition
    )


def slotted_page(schema, rows, *, stream, version=1, seq, device="dev", epoch=7, partition=0):
    """A slotted page of Python rows, None for null."""
    nullable = any(f.nullable for f in schema)
    slots, data, back = b"", b"", 0
    for row in rows:
        tuple_ = _bitmap(row) if nullable else b""
        for f, v in zip(schema, row, strict=True):
            if not f.dtype.variable:
                value = np.zeros(1, f.dtype.numpy) if v is None else np.array([v], f.dtype.numpy)
                tuple_ += value.tobytes()
        values = [
            b"" if v is None else v.encode() if isinstance(v, str) else v
            for f, v in zip(schema, row, strict=True)
            if f.dtype.variable
        ]
        ends = np.cumsum([len(v) for v in values])
        tuple_ += b"".join(struct.pack("<I", e) for e in ends) + b"".join(values)
        back += len(tuple_)
        slots += struct.pack("<III", 0, back, len(tuple_))
        data = tuple_ + data
    return _page(2, 12, len(rows), slots + data, stream, version, seq, device, epoch, partition)


def _bitmap(row):
    bits = sum(1 << i for i, v in enumerate(row) if v is not None)
    return bits.to_bytes((len(row) + 7) // 8, "little")


def _page(layout, stride, tuples, body, stream, version, seq, device, epoch, partition):
    size = 224 + len(body)
    header = struct.pack(
        "<4sBBBBIIIIIIQQQIIqqqII64s64s",
        *(b"EDGP", 1, layout, 1, 0, 16 << 20, size, size, tuples, stride, 0, epoch, seq, 1),
        *(partition, version, 0, 0, 0, 0, 0, device.encode(), stream.encode()),
    )
    crc = zlib.crc32(header + body)
    return header[:28] + struct.pack("<I", crc) + header[32:] + body


class Landing:
    """A landing that a test fills; one writer per segment stays open."""

    def __init__(self, path):
        self.path = path
        (path / "schemas").mkdir(parents=True, exist_ok=True)
        self._writers = {}

    def register(self, stream, schema, version=1):
        (self.path / "schemas" / f"{stream}@{version}.json").write_text(schema.to_json())

    def land(self, pages, segment="seg-a-00000001", landed_at_us=None):
        """Commit `pages` to `segment`, each with its index row."""
        if segment not in self._writers:
            self._writers[segment] = segments.SegmentWriter(self.path, segment)
        writer = self._writers[segment]
        rows = np.zeros(len(pages), segments.ROW)
        for i, page in enumerate(pages):
            (tuples,), (crc,) = (
                struct.unpack_from("<I", page, 20),
                struct.unpack_from("<I", page, 28),
            )
            epoch, seq, _, partition, version = struct.unpack_from("<QQQII", page, 32)
            device = page[96:160].rstrip(b"\0").decode()
            stream = page[160:224].rstrip(b"\0").decode()
            at = writer.append([page])
            landed = 1_000_000 * (writer.rows + 1) if landed_at_us is None else landed_at_us
            rows[i] = (
                *(at, len(page), crc, tuples, partition, seq, epoch, landed),
                *(segments.stream_hash(stream, version), segments.device_hash(device)),
            )
        writer.sync()
        writer.commit(rows)

    def damage(self, segment, row):
        """Flip one bit in the body of the page that index row `row` names."""
        found = segments.read_rows(self.path, segment, row, row + 1)[0]
        with segments.pages_path(self.path, segment).open("r+b") as file:
            file.seek(int(found["offset"]) + 230)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 4]))

    def close(self):
        for writer in self._writers.values():
            writer.close()


READINGS = Schema.from_json(
    '[{"name":"key","type":"int32"},{"name":"time","type":"timestamp"},'
    '{"name":"power","type":"float64","nullable":true}]'
)


def reading_columns(seq, n=1000, first_time_us=0):
    """The columns of `n` readings, a function of the arguments; every seventh power is null."""
    rng = np.random.default_rng(seq)
    key = rng.integers(0, 10, n).astype(np.int32)
    time = first_time_us + np.arange(n, dtype=np.int64) * 1000
    # Multiples of 1/8: sums are exact in any order.
    power = np.ma.array(rng.integers(0, 4000, n) / 8, mask=np.arange(n) % 7 == 0)
    return key, time, power


def readings(seq, n=1000, *, stream="curve", first_time_us=0, **names):
    """A page of `reading_columns`."""
    columns = reading_columns(seq, n, first_time_us)
    return dense_page(READINGS, columns, stream=stream, seq=seq, **names)


def readings_table(seqs, n=1000, first_time_us=0):
    """The rows of the pages `readings(seq)` for `seqs`, made without any page."""
    parts = [
        pa.table(
            [pa.array(c).cast(f.dtype.arrow) for c, f in zip(columns, READINGS, strict=True)],
            names=READINGS.names,
        )
        for columns in (reading_columns(seq, n, first_time_us) for seq in seqs)
    ]
    return pa.concat_tables(parts)
