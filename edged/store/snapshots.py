"""Snapshots: the heart's state after one beat, as named arrays in one file.

`snapshots/<beat:016d>.snap`, little-endian: u32 magic 0x53676445 ("EdgS"), u16 version 1, u16 zero,
u64 beat, u64 device epoch, u64 length of the table, u64 length of the facts, 20 zero bytes, u32
CRC-32 of the 60 bytes before, of the table and of the facts, in that order; then table, facts and
the arrays, each padded with zeros to a multiple of 64.  The table is JSON: a list of `{"name",
"dtype" (numpy's descr), "shape", "crc" (CRC-32 of the bytes)}`, in the arrays' order.

The file is made durable under a temporary name and then renamed, so that it exists completely or
not at all.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.errors import StoreError
from edged.platform.disk import Buffer, Disk, File, flat_view, replace_file
from edged.store.patient_file import open_patiently

Array = npt.NDArray[Any]
_MAGIC = 0x53676445
_VERSION = 1
_HEADER = struct.Struct("<IHHQQQQ20xI")
_PAD = 64


@dataclass(frozen=True)
class Snapshot:
    """The state after `beat`; the arrays are writable and belong to the caller."""

    beat: int
    facts: bytes
    arrays: dict[str, Array] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    """Arrays that are damaged and left out."""


class Damaged(Exception):
    """A snapshot file is unusable; the text says why."""


def path_of(directory: str, beat: int) -> str:
    """The file of the snapshot after `beat`."""
    return f"{directory}/{beat:016d}.snap"


def write_snapshot(
    disk: Disk,
    path: str,
    epoch: int,
    beat: int,
    facts: bytes,
    arrays: Mapping[str, Array],
    over: str | None = None,
) -> int:
    """Write a snapshot durably, without copying the arrays; returns the file's size in bytes.

    `over` is a file in the same directory that may be overwritten for it.
    """
    table, parts = [], []
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise StoreError(f"array {name!r} holds Python objects; a snapshot takes plain dtypes")
        view = flat_view(array)
        descr = np.lib.format.dtype_to_descr(array.dtype)
        row = {"name": name, "dtype": descr, "shape": array.shape, "crc": zlib.crc32(view)}
        table.append(row)
        parts.append(view)
    text = json.dumps(table).encode()
    head = _HEADER.pack(_MAGIC, _VERSION, 0, beat, epoch, len(text), len(facts), 0)[:-4]
    crc = zlib.crc32(facts, zlib.crc32(text, zlib.crc32(head)))
    buffers: list[Buffer] = [head + struct.pack("<I", crc)]
    for part in (memoryview(text), memoryview(facts), *parts):
        buffers += [part, bytes(-len(part) % _PAD)]
    replace_file(disk, path, buffers, over=over)
    return sum(len(b) for b in buffers)


def read_snapshot(disk: Disk, path: str, epoch: int, partly: bool = False) -> Snapshot:
    """Read and check a snapshot.  Raises Damaged; with `partly` damaged arrays are left out."""
    file = open_patiently(disk, path)
    try:
        return _read(file, epoch, partly)
    except (ValueError, KeyError, TypeError) as problem:
        raise Damaged(f"its table does not parse ({problem})") from problem
    finally:
        file.close()


def _read(file: File, epoch: int, partly: bool) -> Snapshot:
    size = file.size()
    head = file.pread(_HEADER.size, 0)
    if len(head) < _HEADER.size:
        raise Damaged("it is shorter than its header")
    magic, version, _, beat, owner, table_bytes, facts_bytes, crc = _HEADER.unpack(head)
    if magic != _MAGIC or version != _VERSION or owner != epoch:
        raise Damaged("its header does not belong to this store")
    at = _HEADER.size
    if at + table_bytes + facts_bytes > size:
        raise Damaged("it is shorter than its header says")
    text = file.pread(table_bytes, at)
    at += table_bytes + -table_bytes % _PAD
    facts = file.pread(facts_bytes, at)
    at += facts_bytes + -facts_bytes % _PAD
    if crc != zlib.crc32(facts, zlib.crc32(text, zlib.crc32(head[:-4]))):
        raise Damaged("its header, table or facts do not match their checksum")
    arrays, missing = {}, set()
    for row in json.loads(text):
        name = str(row["name"])
        dtype, length = _extent(row)
        try:
            arrays[name] = _array(file, at, row, dtype, length, size)
        except Damaged:
            if not partly:
                raise
            missing.add(name)
        at += length + -length % _PAD
    return Snapshot(beat, facts, arrays, frozenset(missing))


def _extent(row: dict[str, Any]) -> tuple[np.dtype[Any], int]:
    """An array's dtype and its length in bytes."""
    descr = row["dtype"]
    if isinstance(descr, list):
        descr = _tuples(descr)
    dtype = np.lib.format.descr_to_dtype(descr)
    return dtype, int(np.prod(row["shape"], dtype=np.int64)) * dtype.itemsize


def _array(
    file: File, at: int, row: dict[str, Any], dtype: np.dtype[Any], length: int, size: int
) -> Array:
    if at + length > size:
        raise Damaged(f"array {row['name']!r} is cut off")
    data: npt.NDArray[np.uint8] = np.empty(length, np.uint8)
    if length:
        file.preadinto(data.data, at)
    if zlib.crc32(data.data) != row["crc"]:
        raise Damaged(f"array {row['name']!r} does not match its checksum")
    if length == 0:
        return np.empty(row["shape"], dtype)
    array: Array = data.view(dtype).reshape(row["shape"])
    return array


def _tuples(descr: list[Any]) -> list[Any]:
    """A structured dtype's descr with the tuples that JSON turned into lists."""
    fields = []
    for name, kind, *shape in descr:
        inner = _tuples(kind) if isinstance(kind, list) else kind
        fields.append((name, inner, *(tuple(s) if isinstance(s, list) else s for s in shape)))
    return fields
