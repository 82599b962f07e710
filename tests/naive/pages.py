"""A second reader and writer of pages, made from the text of `edged.pages.format` alone.

Nothing of edged is imported: struct and plain loops, LZ4 included.  A schema is a list of
(name, type, nullable); a row is a list of Python values, None where it is null.
"""

from __future__ import annotations

import struct
import zlib

CODES = {
    "bool": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B",
    "uint16": "H", "uint32": "I", "uint64": "Q", "float32": "f", "float64": "d", "timestamp": "q",
}  # fmt: skip
HEADER_FIELDS = [
    ("magic", 0, "4s"), ("format", 4, "B"), ("layout", 5, "B"), ("checksum_kind", 6, "B"),
    ("capacity", 8, "I"), ("stored_bytes", 12, "I"), ("raw_bytes", 16, "I"), ("tuples", 20, "I"),
    ("stride", 24, "I"), ("checksum", 28, "I"), ("epoch", 32, "Q"), ("seq", 40, "Q"),
    ("beat", 48, "Q"), ("partition", 56, "I"), ("version", 60, "I"), ("time_min_us", 64, "q"),
    ("time_max_us", 72, "q"), ("sealed_at_us", 80, "q"), ("flags", 88, "I"),
    ("device", 96, "64s"), ("stream", 160, "64s"),
]  # fmt: skip


def header(page):
    """The header's fields by name."""
    fields = {name: struct.unpack_from("<" + code, page, at)[0] for name, at, code in HEADER_FIELDS}
    for name in ("device", "stream"):
        fields[name] = fields[name].rstrip(b"\0").decode()
        if "\0" in fields[name] or len(fields[name].encode()) > 63:
            raise ValueError("name")
    return fields


def unlz4(block, size):
    """An LZ4 block, decompressed."""
    out, at = bytearray(), 0

    def length(nibble):
        nonlocal at
        total = nibble
        while nibble == 15:
            total += block[at]
            at += 1
            if block[at - 1] != 255:
                break
        return total

    while at < len(block):
        token = block[at]
        at += 1
        literals = length(token >> 4)
        out += block[at : at + literals]
        at += literals
        if at == len(block):
            break
        back = block[at] | block[at + 1] << 8
        at += 2
        for _ in range(4 + length(token & 15)):
            out.append(out[-back])
    assert len(out) == size
    return bytes(out)


def value_at(kind, page, at):
    """A fixed-width value."""
    value = struct.unpack_from("<" + CODES[kind], page, at)[0]
    return bool(value) if kind == "bool" else value


def width(kind):
    """Bytes of a fixed-width type, 0 for a variable one."""
    return struct.calcsize("<" + CODES[kind]) if kind in CODES else 0


def bitmap_bytes(schema):
    """Bytes of the presence bitmap."""
    return (len(schema) + 7) // 8 if any(nullable for _, _, nullable in schema) else 0


def present(schema, page, bitmap_at):
    """Which columns of a tuple are not null."""
    if not bitmap_bytes(schema):
        return [True] * len(schema)
    bits = [bool(page[bitmap_at + i // 8] >> (i % 8) & 1) for i in range(len(schema))]
    return [bit or not nullable for bit, (_, _, nullable) in zip(bits, schema, strict=True)]


def read_tuple(schema, page, at):
    """One tuple (a dense row behind its weight, or a slot's data) as a list of values."""
    there, row = present(schema, page, at), [None] * len(schema)
    at += bitmap_bytes(schema)
    for i, (_, kind, _) in enumerate(schema):
        if width(kind):
            row[i] = value_at(kind, page, at) if there[i] else None
            at += width(kind)
    variable = [i for i, (_, kind, _) in enumerate(schema) if not width(kind)]
    data, begin = at + 4 * len(variable), 0
    for k, i in enumerate(variable):
        end = struct.unpack_from("<I", page, at + 4 * k)[0]
        value = bytes(page[data + begin : data + end])
        row[i] = (value.decode() if schema[i][1] == "string" else value) if there[i] else None
        begin = end
    return row


def read_page(page, schema):
    """(header, rows, weights, slot keys) of a sound page; raises ValueError for a damaged one."""
    h = header(page)
    if h["magic"] != b"EDGP" or h["stored_bytes"] != len(page):
        raise ValueError("no page")
    if zlib.crc32(page[:28] + b"\0\0\0\0" + page[32:]) != h["checksum"]:
        raise ValueError("damaged")
    if page[4:8] not in (b"\1\1\1\0", b"\1\2\1\0") or h["flags"] > 3 or page[92:96] != bytes(4):
        raise ValueError("unknown format, layout, checksum, flag or reserved field")
    check_sizes(h, schema)
    if h["flags"] & 1:
        page = page[:224] + unlz4(page[224:], h["raw_bytes"] - 224)
    if h["layout"] == 2:
        check_slots(h, page, schema)
    rows, weights, keys = [], [], []
    for k in range(h["tuples"]):
        at = 224 + k * h["stride"]
        weight_at = at if h["layout"] == 1 else at + 12
        weighted = h["flags"] & 2
        weights.append(struct.unpack_from("<i", page, weight_at)[0] if weighted else 1)
        if h["layout"] == 1:
            rows.append(read_tuple(schema, page, at + (4 if weighted else 0)))
        else:
            key, offset, _ = struct.unpack_from("<III", page, at)
            keys.append(key)
            rows.append(read_tuple(schema, page, h["raw_bytes"] - offset))
    return h, rows, weights, keys


def fixed_bytes(schema):
    """Size of a tuple before its variable bytes, without a weight."""
    return bitmap_bytes(schema) + sum(width(kind) or 4 for _, kind, _ in schema)


def check_sizes(h, schema):
    """Raise ValueError where names, sizes or the layout contradict each other or the schema."""
    weight = 4 if h["flags"] & 2 else 0
    dense = all(width(kind) for _, kind, _ in schema)
    stride = (fixed_bytes(schema) if dense else 12) + weight
    slots = 224 + h["tuples"] * h["stride"]
    if not h["flags"] & 1 and h["stored_bytes"] != h["raw_bytes"]:
        raise ValueError("sizes")
    if h["stored_bytes"] > h["raw_bytes"] or not slots <= h["raw_bytes"] <= h["capacity"] <= 2**24:
        raise ValueError("sizes")
    if h["layout"] != (1 if dense else 2) or h["stride"] != stride:
        raise ValueError("layout")
    if dense and h["raw_bytes"] != slots:
        raise ValueError("rows")


def check_slots(h, page, schema):
    """Raise ValueError where slots have gaps, or a tuple's columns are not its data."""
    total, variable = 0, sum(not width(kind) for _, kind, _ in schema)
    for k in range(h["tuples"]):
        _, offset, length = struct.unpack_from("<III", page, 224 + k * h["stride"])
        total += length
        if offset != total or length < fixed_bytes(schema) or total > h["raw_bytes"]:
            raise ValueError("slots")
        first = h["raw_bytes"] - offset + fixed_bytes(schema)
        ends = struct.unpack_from(f"<{variable}I", page, first - 4 * variable)
        if list(ends) != sorted(ends) or ends[-1] != length - fixed_bytes(schema):
            raise ValueError("ends")
        check_texts(page, schema, first, ends)
    if h["raw_bytes"] != 224 + h["tuples"] * h["stride"] + total:
        raise ValueError("gap")


def check_texts(page, schema, first, ends):
    """Raise ValueError where a string is not UTF-8."""
    kinds = [kind for _, kind, _ in schema if not width(kind)]
    for kind, begin, end in zip(kinds, (0, *ends), ends, strict=False):
        if kind == "string":
            page[first + begin : first + end].decode()


def write_tuple(schema, row):
    """A tuple's bytes (dense: without a weight)."""
    out = bytearray(bitmap_bytes(schema))
    for i, value in enumerate(row):
        if value is not None and out[: bitmap_bytes(schema)]:
            out[i // 8] |= 1 << (i % 8)
    for (_, kind, _), value in zip(schema, row, strict=True):
        if width(kind):
            out += struct.pack("<" + CODES[kind], 0 if value is None else value)
    tail = bytearray()
    for (_, kind, _), value in zip(schema, row, strict=True):
        if not width(kind):
            tail += (value.encode() if kind == "string" else value) if value is not None else b""
            out += struct.pack("<I", len(tail))
    return bytes(out + tail)


def partition_rows(hashes, partitions):
    """Row numbers by partition, in row order."""
    return [
        [i for i, h in enumerate(hashes) if (h >> 32) % partitions == p] for p in range(partitions)
    ]


def fill_dense(schema, rows, capacity):
    """Bodies of the pages that `rows` fill, the last one open."""
    bodies = [b""]
    for row in rows:
        data = write_tuple(schema, row)
        if 224 + len(bodies[-1]) + len(data) > capacity:
            bodies.append(b"")
        bodies[-1] += data
    return bodies


def fill_slotted(schema, rows, hashes, capacity):
    """As `fill_dense`, with slots; every row fits into an empty page."""
    pages = [[]]
    for row, h in zip(rows, hashes, strict=True):
        data = write_tuple(schema, row)
        if 224 + sum(12 + len(d) for _, d in pages[-1]) + 12 + len(data) > capacity:
            pages.append([])
        pages[-1].append((h & 0xFFFFFFFF, data))
    bodies = []
    for page in pages:
        slots, tail = b"", b""
        for key, data in page:
            tail = data + tail
            slots += struct.pack("<III", key, len(tail), len(data))
        bodies.append(slots + tail)
    return bodies
