"""Seals: the summary of a segment that closes it and outlives its pages.

    LANDING/segments/seg-<instance>-<number:08d>.sum

A summary holds, for every (device, epoch, stream@version, partition) in the segment, the row
(`edged/central/segments.py`) with the greatest seq, followed by the CRC-32 of these rows as u32.  A
segment is sealed when it has one: nothing is appended to it any more, and the records of its
devices were durable before.

Invariants

 1. A segment is retired (its .idx and .pages are deleted) only when it is sealed.  Its summary
    stays, so that a lost record can be rebuilt, a late page is recognised, and its name is not
    reused.
 2. Summaries of retired segments of one collector may be folded: the greatest rows of all replace
    the summary with the highest number, durably, before the others are deleted.  A reader that
    goes through them in the order of their names misses nothing, even during a fold.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edged.central import segments
from edged.central.segments import ROW, ROW_BYTES, Rows
from edged.central.tables import replace_file
from edged.errors import CentralError

_LOG = logging.getLogger(__name__)
_KEYS = ("partition", "stream_hash", "epoch", "device_hash")


def path(landing: str | Path, name: str) -> Path:
    """The file of the summary of segment `name`."""
    return segments.segments_dir(landing) / f"{name}.sum"


def read(landing: str | Path, name: str) -> Rows | None:
    """The greatest rows of segment `name`; None if it is not sealed, or the file is damaged."""
    try:
        data = path(landing, name).read_bytes()
    except FileNotFoundError:
        return None
    body, crc = data[:-4], data[-4:]
    if len(body) % ROW_BYTES or zlib.crc32(body).to_bytes(4, "little") != crc:
        _LOG.error("%s is damaged: the segment's rows are read instead", path(landing, name))
        return None
    rows: Rows = np.frombuffer(body, dtype=ROW)
    return rows


def write(landing: str | Path, name: str, rows: Rows) -> None:
    """Seal segment `name` durably with its greatest rows."""
    body = rows.tobytes()
    replace_file(path(landing, name), body + zlib.crc32(body).to_bytes(4, "little"))


def greatest(rows: Rows) -> Rows:
    """The row with the greatest seq of every (device, epoch, stream@version, partition)."""
    order = np.lexsort((rows["seq"], *(rows[k] for k in _KEYS)))
    ordered = rows[order]
    last = np.ones(len(rows), dtype=bool)
    last[:-1] = False
    for k in _KEYS:
        last[:-1] |= ordered[k][1:] != ordered[k][:-1]
    found: Rows = ordered[last]
    return found


def all_names(landing: str | Path) -> set[str]:
    """Names of all existing segments, and of retired ones with a summary of their own."""
    summaries = segments.segments_dir(landing).glob("seg-*.sum")
    return {*segments.list_segments(landing), *(p.stem for p in summaries)}


def retire(landing: str | Path, name: str) -> int:
    """Delete the pages and rows of a sealed segment; returns the bytes freed.

    Raises CentralError if the segment is not sealed.
    """
    if read(landing, name) is None:
        raise CentralError(f"segment {name} is not sealed: it cannot be retired")
    freed = 0
    crcs = segments.segments_dir(landing) / f"{name}.crc"
    for file in (segments.idx_path(landing, name), crcs, segments.pages_path(landing, name)):
        if file.exists():
            freed += file.stat().st_size
            file.unlink()
    return freed


def retired(landing: str | Path) -> list[str]:
    """Names of the retired segments that still have a summary, sorted."""
    return sorted(all_names(landing).difference(segments.list_segments(landing)))


def fold(landing: str | Path) -> None:
    """Fold the summaries of retired segments, one per collector.  For one process at a time;
    collectors may run.  A damaged summary is not changed."""
    groups: dict[str, list[tuple[str, Rows]]] = {}
    for name in retired(landing):
        rows = read(landing, name)
        if rows is not None:
            groups.setdefault(segments.parse_name(name)[0], []).append((name, rows))
    for group in groups.values():
        _fold(landing, group)


def _fold(landing: str | Path, group: Sequence[tuple[str, Rows]]) -> None:
    if len(group) < 2:
        return
    last, _ = group[-1]
    write(landing, last, greatest(np.concatenate([rows for _, rows in group])))
    for name, _ in group[:-1]:
        path(landing, name).unlink()
    segments.sync_directory(segments.segments_dir(landing))
