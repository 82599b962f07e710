"""An independent partitioner in numpy, which checks what the shuffle's members write.

It makes the generator's tuples again and compares, for each partition, the multiset of their rows
with that of the rows in pages.  Rows are compared by a 64-bit digest of all of their bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edged.pages.header import HEADER_BYTES
from edged.pages.shuffle import GeneratedInput, Shuffle, ShufflePlan, ShuffleRun
from kernels.cpu.hash import K
from kernels.cpu.shuffle.source import L

_WEYL = np.uint32(0x9E3779B1)
_Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]


def fmix32(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """MurmurHash3's 32-bit finaliser."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x85EBCA6B)
    x = x ^ (x >> np.uint32(13))
    x = x * np.uint32(0xC2B2AE35)
    mixed: npt.NDArray[np.uint32] = x ^ (x >> np.uint32(16))
    return mixed


def digests(rows: _Bytes, lengths: npt.NDArray[Any]) -> _Words:
    """A 64-bit digest of the first `lengths` bytes of each row."""
    width = -(-rows.shape[1] // 8) * 8
    padded = np.zeros((len(rows), width), np.uint8)
    padded[:, : rows.shape[1]] = np.where(np.arange(rows.shape[1]) < lengths[:, None], rows, 0)
    weights = np.random.default_rng(1).integers(0, 2**63, width // 8, np.uint64) * 2 + 1
    found: _Words = (padded.view(np.uint64) * weights).sum(axis=1, dtype=np.uint64)
    found ^= found >> np.uint64(29)
    found = found * K + lengths.astype(np.uint64)
    return found


def expected(source: GeneratedInput, partitions: int) -> _Words:
    """Partition and digest of each tuple, sorted."""
    numbers = np.arange(source.tuples, dtype=np.uint64)
    short = numbers.astype(np.uint32)
    keys, table = fmix32(short * _WEYL + np.uint32(source.seed)), source.key_table()
    if table.size:
        keys = table[keys % np.uint32(table.size)]
    low, high = source.data_bytes
    sizes = np.full(source.tuples, max(4, source.tuple_bytes) - 4, np.uint32)
    if not source.tuple_bytes:
        span = np.uint64(high - low + 1)
        sizes = (low + (fmix32(short).astype(np.uint64) * span >> np.uint64(32))).astype(np.uint32)
    words = np.arange(1, -(-int(sizes.max(initial=0)) // 8) + 1, dtype=np.uint64)
    data = ((numbers[:, None] + np.uint64(1)) * K + words * L).view(np.uint8)
    heads = [keys[:, None].view(np.uint8)]
    if source.layout == "slotted":
        heads.append(sizes[:, None].view(np.uint8))
    rows = np.hstack([*heads, data.reshape(source.tuples, -1)])
    targets = fmix32(keys) % np.uint32(partitions)
    return _sorted(targets, digests(rows, sizes + 4 * len(heads)))


def found(run: ShuffleRun, source: GeneratedInput) -> _Words | None:
    """Partition and digest of each row in pages, sorted; None where a slot names another key."""
    targets, parts = [], []
    width = source.shape.row_bytes_max
    for page in run.handed():
        targets.append(np.full(page.tuples, page.partition, np.uint32))
        body = page.raw[HEADER_BYTES:]
        if source.layout == "dense":
            parts.append(digests(body.reshape(page.tuples, width), np.full(page.tuples, width)))
            continue
        stride = source.shape.stride
        slots = body[: stride * page.tuples].reshape(page.tuples, stride).copy().view(np.uint32)
        begin, lengths = page.raw.size - slots[:, 1].astype(np.int64), slots[:, 2]
        places = np.minimum(begin[:, None] + np.arange(width), page.raw.size - 1)
        rows = page.raw[places]
        keys = rows[:, :4].copy().view(np.uint32)[:, 0]
        if not np.array_equal(fmix32(keys), slots[:, 0]):
            return None
        parts.append(digests(rows, lengths))
    return _sorted(np.concatenate(targets), np.concatenate(parts)) if parts else None


def is_exact(plan: ShufflePlan, source: GeneratedInput) -> bool:
    """Whether a run of the plan writes each tuple once, into a page of its partition."""
    run = Shuffle(plan, source).run()
    got, wanted = found(run, source), expected(source, plan.partitions)
    return got is not None and np.array_equal(got, wanted)


def _sorted(targets: npt.NDArray[np.uint32], rows: _Words) -> _Words:
    order = np.lexsort((rows, targets))
    return np.column_stack([targets[order].astype(np.uint64), rows[order]])
