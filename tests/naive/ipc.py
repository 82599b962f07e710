"""Naive twins of kernels.cpu.ipc and ipc_columns: plain Python over bytes and struct.

They work on the same tables as the kernels; memory behind addresses is read and written by ctypes.
"""

from __future__ import annotations

import ctypes
import itertools
import struct

import numpy as np

from kernels.cpu import ipc


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


def sequence(message: Table) -> int:
    pairs = message.vector(4, 4)
    for i in range(0 if pairs is None else pairs[1]):
        at = pairs[0] + 4 * i
        pair = Table(message.data, at + message.read("<I", at))
        if pair.text(0) == b"edged.seq":
            value = pair.text(1) or b""
            if not value.isdigit() or len(value) > 18 or int(value) == 0:
                raise ValueError
            return int(value)
    return 0


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
            size, rows, number, nodes, buffers, slow, lengths = found
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
            m[ipc.MESSAGE.state] = ipc.SLOW if slow else ipc.WHOLE
            m[ipc.MESSAGE.region], m[ipc.MESSAGE.kept], m[ipc.MESSAGE.error] = index, rows, 0
            sizes[count, : len(lengths)] = lengths
            r[ipc.REGION.consumed] += size
            r[ipc.REGION.messages] += 1
            count += 1
    return count


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
        return 8, 0, 0, 0, 0, False, []
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
            return size, 0, 0, 0, 0, True, []
        number = sequence(message) if r[ipc.REGION.named] else 0
        header = Table(message.data, header_at)
        if r[ipc.REGION.slow]:  # pyarrow will read the batch
            return size, 0, number, 0, 0, True, []
        rows = header.scalar(0, "<q")
        header.child(1), header.child(2), header.scalar(3, "<I")  # damage comes first
        if header.position(3) is not None:
            r[ipc.REGION.slow] = 1
            return size, rows, number, 0, 0, True, []
        layout = layouts[r[ipc.REGION.layout]]
        nodes, buffers = header.vector(1, 16), header.vector(2, 16)
        wanted = 2 * len(layout) + int((layout[:, 4] >= 0).sum())
        if nodes is None or buffers is None or (nodes[1], buffers[1]) != (len(layout), wanted):
            r[ipc.REGION.error] = ipc.E_COLUMNS
            return None
        if rows < 0 or rows > body:
            r[ipc.REGION.error] = ipc.E_LENGTH
            return None
        lengths = columns(layout, message.data, nodes[0], buffers[0], rows, data[8 + meta : size])
        if not isinstance(lengths, int) and rows * limits[2] + sum(lengths) > limits[1]:
            lengths = ipc.E_STAGED
        return size, rows, number, nodes[0], buffers[0], False, lengths
    except Damaged:
        r[ipc.REGION.error] = ipc.E_METADATA
    except ValueError:
        r[ipc.REGION.error] = ipc.E_SEQ
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


def place(messages, count, sizes, places, totals) -> None:
    totals[:] = 0
    for m, size, at in zip(messages[:count], sizes, places, strict=False):
        if m[ipc.MESSAGE.state] in (ipc.WHOLE, ipc.FILTERED):
            m[ipc.MESSAGE.at], at[:] = totals[0], totals[2:]
            totals[0] += m[ipc.MESSAGE.kept]
            totals[1] += int(m[ipc.MESSAGE.kept] > 0)
            totals[2:] += size


def column_values(m, layout) -> list[tuple[int, bytes]]:
    """(valid, bytes of the value) of each row; ValueError(error) where they are refused."""
    rows, (node, first, kind, _, _) = int(m[ipc.MESSAGE.rows]), (int(x) for x in layout)
    nulls = struct.unpack("<qq", memory(m[ipc.MESSAGE.nodes] + 16 * node, 16))[1]
    entries = memory(m[ipc.MESSAGE.buffers] + 16 * first, 48 if kind < 0 else 32)
    buffers = struct.unpack("<6q", entries.ljust(48, b"\0"))
    body = memory(m[ipc.MESSAGE.body], m[ipc.MESSAGE.body_length])

    def bit(at: int, i: int) -> int:
        return body[at + i // 8] >> (i % 8) & 1

    valid = [bit(buffers[0], i) if nulls else 1 for i in range(rows)]
    if kind >= 0:
        start = buffers[2]
        if kind == 0:
            values = [bytes([bit(start, i)]) for i in range(rows)]
        else:
            values = [body[start + i * kind : start + (i + 1) * kind] for i in range(rows)]
        return list(zip(valid, values, strict=True))
    ends = struct.unpack_from(f"<{rows + 1}i", body, buffers[2])
    if list(ends) != sorted(ends):
        raise ValueError(ipc.E_OFFSETS)
    values = [body[buffers[4] + a : buffers[4] + b] for a, b in itertools.pairwise(ends)]
    if kind == -1:
        try:
            for value in values:
                value.decode()
        except UnicodeDecodeError:
            raise ValueError(ipc.E_UTF8) from None
    return list(zip(valid, values, strict=True))


def times_of(m, layouts, k: int, time_column: int) -> list[int]:
    return [struct.unpack("<q", v)[0] for _, v in column_values(m, layouts[k, time_column])]


def copy(
    messages, first, last, regions, layouts, time_column, places, target, row, bytes_at, times
) -> None:
    def write(at: int, data: bytes) -> None:
        ctypes.memmove(int(at), data, len(data))

    for i in range(first, last):
        m = messages[i]
        if m[ipc.MESSAGE.state] >= ipc.DROPPED or not m[ipc.MESSAGE.rows]:
            continue
        k = int(regions[m[ipc.MESSAGE.region], ipc.REGION.layout])
        keep = times_of(m, layouts, k, time_column)
        if m[ipc.MESSAGE.state] == ipc.FILTERED:
            keep = [t <= m[ipc.MESSAGE.limit] for t in keep]
        else:
            keep = [True] * len(keep)
        at = row + int(m[ipc.MESSAGE.at])
        for c in range(layouts.shape[1]):
            try:
                rows = column_values(m, layouts[k, c])
            except ValueError as problem:
                m[ipc.MESSAGE.error], m[ipc.MESSAGE.column] = problem.args[0], c
                break
            rows = [x for x, kept in zip(rows, keep, strict=True) if kept]
            _, values, valid, offsets, *_ = (int(x) for x in target[c])
            if valid:
                write(valid + at, bytes(v for v, _ in rows))
            data = b"".join(v for _, v in rows)
            if not offsets:
                write(values + at * int(target[c, 0]), data)
                continue
            end = int(bytes_at[c] + places[i, layouts[k, c, 4]])
            write(values + end, data)
            ends = np.cumsum([end, *(len(v) for _, v in rows)])
            write(offsets + 8 * at, struct.pack(f"<{len(ends)}q", *ends.tolist()))
        kept = [int(t) for t in times[at : at + m[ipc.MESSAGE.kept]]]
        m[ipc.MESSAGE.time_min] = min(kept, default=2**63 - 1)
        m[ipc.MESSAGE.time_max] = max(kept, default=-(2**63))


def admit(messages, count, regions, layouts, time_column, sizes, facts) -> None:
    facts[3] = facts[4] = 0
    failed: set[int] = set()
    for i, m in enumerate(messages[:count]):
        r = int(m[ipc.MESSAGE.region])
        if m[ipc.MESSAGE.state] == ipc.SLOW:
            continue
        if m[ipc.MESSAGE.error] and r not in failed:
            failed.add(r)
            regions[r, ipc.REGION.error], regions[r, ipc.REGION.column] = (
                m[ipc.MESSAGE.error],
                m[ipc.MESSAGE.column],
            )
            regions[r, ipc.REGION.end], regions[r, ipc.REGION.messages] = 0, -1
        if r in failed:
            m[ipc.MESSAGE.state], m[ipc.MESSAGE.kept], facts[4] = ipc.DROPPED, 0, 1
            continue
        regions[r, ipc.REGION.seq] = m[ipc.MESSAGE.seq] or regions[r, ipc.REGION.seq]
        if not m[ipc.MESSAGE.rows]:
            continue
        k = int(regions[r, ipc.REGION.layout])
        times = times_of(m, layouts, k, time_column)
        limit = int(facts[0])
        if limit == 2**63 - 1:
            latest = times[0] if facts[1] == -(2**63) else int(facts[1])
            limit = min(latest + int(facts[2]), 2**63 - 1)
        kept = [t for t in times if t <= limit]
        if len(kept) < len(times):
            m[ipc.MESSAGE.state], m[ipc.MESSAGE.limit], m[ipc.MESSAGE.kept] = (
                ipc.FILTERED,
                limit,
                len(kept),
            )
            m[ipc.MESSAGE.time_min] = min(kept, default=2**63 - 1)
            m[ipc.MESSAGE.time_max] = max(kept, default=-(2**63))
            facts[3] += len(times) - len(kept)
            facts[4] = 1
            for layout in layouts[k]:
                if layout[4] >= 0:
                    rows = zip(column_values(m, layout), times, strict=True)
                    sizes[i, layout[4]] = sum(len(v) for (_, v), t in rows if t <= limit)
        if kept:
            facts[1] = max(int(facts[1]), *kept)


def finish(
    messages, count, regions, row, chunk, chunk_producer, chunk_stop, chunk_min, chunk_max,
    seq, latest_us, ended,
) -> int:  # fmt: skip
    written = 0
    for m in messages[:count]:
        if m[ipc.MESSAGE.state] >= ipc.DROPPED:
            continue
        p = int(regions[m[ipc.MESSAGE.region], ipc.REGION.producer])
        seq[p] = m[ipc.MESSAGE.seq] or seq[p]
        ended[p] = 0
        if m[ipc.MESSAGE.kept]:
            at = chunk + written
            chunk_producer[at] = p
            chunk_stop[at] = row + m[ipc.MESSAGE.at] + m[ipc.MESSAGE.kept]
            chunk_min[at], chunk_max[at] = m[ipc.MESSAGE.time_min], m[ipc.MESSAGE.time_max]
            latest_us[p] = max(latest_us[p], m[ipc.MESSAGE.time_max])
            written += 1
    return written
