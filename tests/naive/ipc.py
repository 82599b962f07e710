"""Naive twins of kernels.cpu.ipc, ipc_frame and ipc_packed: plain Python over bytes and struct.

They work on the same tables as the kernels; memory behind addresses is read and written by ctypes.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

import numpy as np

from kernels.cpu import ipc
from tests.naive import lz4

NO_MARKS = (0, ipc.WATERMARK_NONE, 0)


@dataclass
class Packed:
    """A compressed body, and the bytes that it takes when it is unpacked."""

    bytes: int


class Damaged(Exception):
    """A position outside the metadata."""


class Table:
    """A flatbuffer table in `data` at `at`."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self.vtable = at - self.read("<i", at)
        self.length = self.read("<H", self.vtable)
        if self.vtable + 4 > len(data) or self.vtable + self.length > len(data):
            raise Damaged

    def read(self, form: str, at: int) -> int:
        if at < 0 or at + struct.calcsize(form) > len(self.data):
            raise Damaged
        return struct.unpack_from(form, self.data, at)[0]

    def position(self, index: int) -> int | None:
        if 6 + 2 * index > self.length:
            return None
        offset = self.read("<H", self.vtable + 4 + 2 * index)
        return self.at + offset if offset else None

    def scalar(self, index: int, form: str, default: int = 0) -> int:
        at = self.position(index)
        return default if at is None else self.read(form, at)

    def child(self, index: int) -> int | None:
        at = self.position(index)
        if at is None:
            return None
        to = at + self.read("<I", at)
        self.read("<I", to)
        return to

    def vector(self, index: int, width: int) -> tuple[int, int] | None:
        """Position of the first element and their number."""
        at = self.child(index)
        if at is None:
            return None
        count = self.read("<I", at)
        if at + 4 + count * width > len(self.data):
            raise Damaged
        return at + 4, count

    def text(self, index: int) -> bytes | None:
        found = self.vector(index, 1)
        return None if found is None else self.data[found[0] : sum(found)]


def root(data: bytes) -> Table:
    if len(data) < 8:
        raise Damaged
    at = struct.unpack_from("<I", data)[0]
    if at + 4 > len(data):
        raise Damaged
    return Table(data, at)


def required(value: int | None) -> int:
    if value is None:
        raise Damaged
    return value


def memory(address: int, size: int) -> bytes:
    return ctypes.string_at(int(address), int(size))


def frame(address: int, length: int, out: np.ndarray) -> None:
    out[:] = 0
    data = memory(address, length)
    if len(data) >= 4 and data[:4] != b"\xff\xff\xff\xff":
        out[0] = ipc.E_MAGIC
    if out[0] or len(data) < 8:
        return
    size = out[3] = struct.unpack_from("<i", data, 4)[0]
    if size < 0 or size > ipc.METADATA_MAX:
        out[0] = ipc.E_SIZE
    elif size == 0:
        out[1] = 8
    elif length >= 8 + size:
        try:
            message = root(data[8 : 8 + size])
            kind = message.read("<B", required(message.position(1)))
            header_at, body = required(message.child(2)), message.scalar(3, "<q")
            if body < 0 or body > 2**40:
                out[0] = ipc.E_SIZE
                return
            out[1], out[2] = 8 + size + body, kind
            if kind == ipc.SCHEMA:
                out[4] = Table(message.data, header_at).scalar(0, "<H") != 0
            if kind == ipc.DICTIONARY:
                out[4] = Table(message.data, header_at).scalar(2, "<B") != 0
        except Damaged:
            out[0] = ipc.E_METADATA


def inflated(meta: int, size: int, body_length: int) -> int:
    body = memory(meta + size, body_length)
    try:
        message = root(memory(meta, size))
        kind = message.read("<B", required(message.position(1)))
        header = Table(message.data, required(message.child(2)))
        if kind == ipc.DICTIONARY:
            header = Table(message.data, required(header.child(1)))
        first, count = header.vector(2, 16) or (0, -1)
        compressed = header.position(3) is not None and header.scalar(3, "<I") >= 0
        if count < 0:
            return -1
        total = 0
        for i in range(count):
            offset, length = struct.unpack_from("<qq", message.data, first + 16 * i)
            if offset < 0 or length < 0 or offset + length > body_length:
                return -1
            if compressed and length >= 8:
                claim = struct.unpack_from("<q", body, offset)[0]
                if claim < -1 or claim > 2**40:
                    return -1
                length = max(length, claim)
            total += length
        return total
    except Damaged:
        return -1


def marks(message: Table) -> tuple[int, int, int]:
    """Sequence number, watermark and sum."""
    pairs, found = message.vector(4, 4), {}
    for i in range(0 if pairs is None else pairs[1]):
        at = pairs[0] + 4 * i
        pair = Table(message.data, at + message.read("<I", at))
        key = pair.text(0)
        if key in (b"edged.seq", b"edged.watermark", b"edged.sum"):
            found[key] = pair.text(1) or b""
    seq, watermark, sum = 0, ipc.WATERMARK_NONE, 0
    if (value := found.get(b"edged.seq")) is not None:
        if not value.isdigit() or len(value) > 18 or int(value) == 0:
            raise ValueError(ipc.E_SEQ)
        seq = int(value)
    if (value := found.get(b"edged.watermark")) is not None:
        digits = value[1:] if value[:1] in (b"+", b"-") else value
        if not digits.isdigit() or len(digits) > 19 or not -(2**63) <= int(value) < 2**63:
            raise ValueError(ipc.E_WATERMARK)
        watermark = int(value)
    if (value := found.get(b"edged.sum")) is not None:
        if len(value) != 16 or value.strip(b"0123456789abcdef"):
            raise ValueError(ipc.E_SUM)
        sum = struct.unpack(">q", bytes.fromhex(value.decode()))[0]
    return seq, watermark, sum


def packed_bytes(message: Table, buffers: int, count: int, body: bytes) -> int:
    """The raw bytes of a compressed body, each buffer rounded up to 8, and of a table of them."""
    total = 16 * count
    for b in range(count):
        offset, length = struct.unpack_from("<qq", message.data, buffers + 16 * b)
        if offset < 0 or length < 0 or offset + length > len(body):
            raise ValueError(ipc.E_PACKED)
        claim = 0
        if length:
            claim = struct.unpack_from("<q", body, offset)[0] if length >= 8 else -2
            if claim < -1 or claim > 2**40:
                raise ValueError(ipc.E_PACKED)
        total += -(-(length - 8 if claim == -1 else claim) // 8) * 8
    return total


def unpack(messages, count, regions, layouts, limits, sizes, arena) -> None:
    for i, m in enumerate(messages[:count]):
        if m[ipc.MESSAGE.state] != ipc.PACKED:
            continue
        layout = layouts[regions[m[ipc.MESSAGE.region], ipc.REGION.layout]]
        wanted = 2 * len(layout) + int((layout[:, 4] >= 0).sum())
        body = memory(m[ipc.MESSAGE.body], m[ipc.MESSAGE.body_length])
        entries = struct.unpack(f"<{2 * wanted}q", memory(m[ipc.MESSAGE.buffers], 16 * wanted))
        table, raw = [], b""
        problem = 0
        for offset, length in zip(entries[::2], entries[1::2], strict=True):
            part = b""
            if length:
                claim = struct.unpack_from("<q", body, offset)[0]
                part = body[offset + 8 : offset + length]
                try:
                    part = part if claim == -1 else lz4.frame(part, claim) if claim else b""
                    problem = problem or (claim not in (-1, len(part)) and ipc.E_PACKED)
                except lz4.Damaged:
                    problem = problem or ipc.E_PACKED
            table += [16 * wanted + len(raw), len(part)]
            raw += part + b"\0" * (-len(part) % 8)
        if not problem:
            whole = struct.pack(f"<{2 * wanted}q", *table) + raw
            ctypes.memmove(int(arena), whole, len(whole))
            m[ipc.MESSAGE.body] = m[ipc.MESSAGE.buffers] = arena
            m[ipc.MESSAGE.body_length] = len(whole)
            nodes = memory(m[ipc.MESSAGE.nodes], 16 * len(layout))
            rows = int(m[ipc.MESSAGE.rows])
            found = columns(layout, nodes + whole, 0, len(nodes), rows, whole)
            if isinstance(found, int):
                problem = found
            else:
                sizes[i, : len(found)] = found
                if rows * limits[2] + sum(found) > limits[1]:
                    problem = ipc.E_STAGED
        arena += m[ipc.MESSAGE.unpacked]
        m[ipc.MESSAGE.error], m[ipc.MESSAGE.column] = problem, 0
        m[ipc.MESSAGE.state] = ipc.DROPPED if problem else ipc.WHOLE
        if problem:
            m[ipc.MESSAGE.kept] = 0


def scan(regions, layouts, limits, messages, sizes) -> int:
    count = 0
    for index, r in enumerate(regions):
        at, left, seq = (
            int(r[ipc.REGION.address]),
            int(r[ipc.REGION.length]),
            int(r[ipc.REGION.seq]),
        )
        r[ipc.REGION.consumed :] = 0
        while left and count < len(messages):
            if r[ipc.REGION.end]:
                r[ipc.REGION.error] = ipc.E_AFTER_END
                break
            found = whole_message(r, memory(at, left), layouts, limits)
            if found is None:
                break
            size, rows, (number, watermark, sum), nodes, buffers, slow, lengths = found
            r[ipc.REGION.need] = 0
            meta = struct.unpack_from("<i", memory(at, 8), 4)[0]
            base, at, left = at, at + size, left - size
            if r[ipc.REGION.end]:
                r[ipc.REGION.consumed] += size
                continue
            if 0 < number <= seq:
                r[ipc.REGION.duplicates] += 1
                r[ipc.REGION.duplicate_seq] = number
                r[ipc.REGION.consumed] += size
                continue
            if number > seq + 1:
                r[ipc.REGION.error], r[ipc.REGION.detail] = ipc.E_GAP, number
                break
            seq = number or seq
            if isinstance(lengths, int):
                r[ipc.REGION.error] = lengths
                break
            m = messages[count]
            m[ipc.MESSAGE.meta], m[ipc.MESSAGE.body] = base, base + 8 + meta
            m[ipc.MESSAGE.body_length], m[ipc.MESSAGE.rows], m[ipc.MESSAGE.seq] = (
                size - 8 - meta,
                rows,
                number,
            )
            m[ipc.MESSAGE.nodes], m[ipc.MESSAGE.buffers] = base + 8 + nodes, base + 8 + buffers
            m[ipc.MESSAGE.watermark], m[ipc.MESSAGE.sum] = watermark, sum
            m[ipc.MESSAGE.state] = ipc.SLOW if slow else ipc.WHOLE
            if isinstance(lengths, Packed):
                m[ipc.MESSAGE.state], m[ipc.MESSAGE.unpacked] = ipc.PACKED, lengths.bytes
                lengths = []
            m[ipc.MESSAGE.region], m[ipc.MESSAGE.kept], m[ipc.MESSAGE.error] = index, rows, 0
            sizes[count, : len(lengths)] = lengths
            r[ipc.REGION.consumed] += size
            r[ipc.REGION.messages] += 1
            count += 1
    return count


def of_another_codec(header: Table) -> bool:
    compression = Table(header.data, required(header.child(3)))
    return bool(compression.scalar(0, "<B") or compression.scalar(1, "<B"))


def whole_message(r, data: bytes, layouts, limits):
    """(size, rows, seq, nodes, buffers, slow, variable bytes or an error); None: not whole, or
    refused, which the region says."""
    r[ipc.REGION.need] = 8
    if len(data) >= 4 and data[:4] != b"\xff\xff\xff\xff":
        r[ipc.REGION.error] = ipc.E_MAGIC
        return None
    if len(data) < 8:
        return None
    meta = struct.unpack_from("<i", data, 4)[0]
    if meta < 0 or meta > ipc.METADATA_MAX:
        r[ipc.REGION.error] = ipc.E_SIZE
        return None
    if meta == 0:
        r[ipc.REGION.end] = 1
        return 8, 0, NO_MARKS, 0, 0, False, []
    r[ipc.REGION.need] = 8 + meta
    if len(data) < 8 + meta:
        return None
    try:
        message = root(data[8 : 8 + meta])
        kind = message.read("<B", required(message.position(1)))
        header_at, body = required(message.child(2)), message.scalar(3, "<q")
        if message.scalar(0, "<H") not in (3, 4):
            r[ipc.REGION.error] = ipc.E_VERSION
        elif kind not in (ipc.RECORD_BATCH, ipc.DICTIONARY):
            r[ipc.REGION.error] = ipc.E_HEADER
        elif body < 0 or body > limits[0] - 8 - meta:
            r[ipc.REGION.error] = ipc.E_SIZE
        if r[ipc.REGION.error]:
            return None
        size = r[ipc.REGION.need] = 8 + meta + body
        if size > len(data):
            return None
        if kind == ipc.DICTIONARY:
            r[ipc.REGION.slow] = 1
            return size, 0, NO_MARKS, 0, 0, True, []
        number = marks(message) if r[ipc.REGION.named] else NO_MARKS
        if r[ipc.REGION.slow]:  # pyarrow will read the batch
            return size, 0, number, 0, 0, True, []
        header = Table(message.data, header_at)
        rows = header.scalar(0, "<q")
        header.child(1), header.child(2), header.scalar(3, "<I")  # damage comes first
        packed = header.position(3) is not None
        if packed and of_another_codec(header):
            r[ipc.REGION.slow] = 1
            return size, rows, number, 0, 0, True, []
        layout = layouts[r[ipc.REGION.layout]]
        nodes, buffers = header.vector(1, 16), header.vector(2, 16)
        wanted = 2 * len(layout) + int((layout[:, 4] >= 0).sum())
        if nodes is None or buffers is None or (nodes[1], buffers[1]) != (len(layout), wanted):
            raise ValueError(ipc.E_COLUMNS)
        most = body
        if packed:
            most = packed_bytes(message, buffers[0], wanted, data[8 + meta : size])
        if not 0 <= rows <= most:
            raise ValueError(ipc.E_LENGTH)
        if packed:
            lengths = ipc.E_STAGED if most > limits[1] + 24 * wanted else Packed(most)
            return size, rows, number, nodes[0], buffers[0], False, lengths
        lengths = columns(layout, message.data, nodes[0], buffers[0], rows, data[8 + meta : size])
        if not isinstance(lengths, int) and rows * limits[2] + sum(lengths) > limits[1]:
            lengths = ipc.E_STAGED
        return size, rows, number, nodes[0], buffers[0], False, lengths
    except Damaged:
        r[ipc.REGION.error] = ipc.E_METADATA
    except ValueError as problem:
        r[ipc.REGION.error] = problem.args[0]
    return None


def columns(layout, meta: bytes, nodes: int, buffers: int, rows: int, body: bytes):
    """Variable bytes of each variable-size column, or an error."""
    lengths = []
    for node, first, kind, nullable, _ in layout:
        length, nulls = struct.unpack_from("<qq", meta, nodes + 16 * node)
        if length != rows or not 0 <= nulls <= rows:
            return ipc.E_LENGTH
        if nulls and not nullable:
            return ipc.E_NULLS
        needs = [(rows + 7) // 8 if nulls else 0]
        needs += [(rows + 7) // 8 if kind == 0 else rows * kind if kind > 0 else 4 * (rows + 1)]
        if kind < 0:
            needs = [needs[0], needs[1] if rows else 0, 0]
        ranges = []
        for b, need in enumerate(needs):
            offset, size = struct.unpack_from("<qq", meta, buffers + 16 * (first + b))
            if offset < 0 or size < need or offset + size > len(body):
                return ipc.E_BUFFER
            ranges.append((offset, size))
        if kind >= 0:
            continue
        ends = struct.unpack_from(f"<{rows + 1}i", body, ranges[1][0]) if rows else (0,)
        if not 0 <= ends[0] <= ends[-1] <= ranges[2][1]:
            return ipc.E_OFFSETS
        lengths.append(ends[-1] - ends[0])
    return lengths
