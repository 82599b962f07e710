"""Naive twins of kernels.cpu.ipc_columns: plain Python over bytes and struct."""

from __future__ import annotations

import ctypes
import itertools
import struct

import numpy as np

from kernels.cpu import ipc
from tests.naive.ipc import memory


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
    seq, latest_us, ended, promised_us, sums,
) -> int:  # fmt: skip
    written = 0
    for m in messages[:count]:
        if m[ipc.MESSAGE.state] >= ipc.DROPPED:
            continue
        p = int(regions[m[ipc.MESSAGE.region], ipc.REGION.producer])
        if m[ipc.MESSAGE.seq]:
            seq[p], sums[p] = m[ipc.MESSAGE.seq], m[ipc.MESSAGE.sum]
        ended[p] = m[ipc.MESSAGE.watermark] == ipc.WATERMARK_END
        if not ended[p]:
            promised_us[p] = max(promised_us[p], m[ipc.MESSAGE.watermark])
            latest_us[p] = max(latest_us[p], m[ipc.MESSAGE.watermark])
        if m[ipc.MESSAGE.kept]:
            at = chunk + written
            chunk_producer[at] = p
            chunk_stop[at] = row + m[ipc.MESSAGE.at] + m[ipc.MESSAGE.kept]
            chunk_min[at], chunk_max[at] = m[ipc.MESSAGE.time_min], m[ipc.MESSAGE.time_max]
            latest_us[p] = max(latest_us[p], m[ipc.MESSAGE.time_max])
            written += 1
    return written
