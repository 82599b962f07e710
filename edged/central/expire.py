"""Retention: deletes landed pages that are old and that every consumer has read.

A segment is deleted as a whole, and only if

 1. it is sealed: no collector writes to it, and the high waters that it counts are durable;
 2. its newest page landed before the given time;
 3. every stream with a page in it has a consumer (`edged/central/consumers.py`), and every consumer
    of the stream is past all of its pages; or the stream was named as one without consumers.

A page that a consumer has not processed is therefore never deleted, even after a kill: positions
are recorded after their batches are committed, and consumers are registered under the lock that is
held here from the reading of positions to the last deletion.  Batch reads are not consumers: a
batch read fails with a clear error if its segment is deleted meanwhile.

Compacted rows (`edged/central/compacted.py`) are deleted by groups: when all of a group's segments
are deleted and its newest page landed before the given time.  `retire_compacted` deletes compacted
segments earlier and keeps their rows as Parquet.

The summaries of deleted segments are folded (`edged/central/seals.py`), so that they grow with the
number of devices and partitions, not with time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edged.central import compacted, consumers, landing_format, seals, segments
from edged.central.consumers import Consumer
from edged.central.segments import Rows
from edged.errors import ConfigError

OPEN, YOUNG = "not sealed yet", "not old enough"


@dataclass(frozen=True, slots=True)
class Expired:
    """What was deleted, or with `dry_run` would be."""

    segments: list[str] = field(default_factory=list)
    pages: int = 0
    bytes: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    """Number of kept segments, by reason."""
    files: int = 0
    """Deleted Parquet files of compacted rows."""
    file_bytes: int = 0


def expire(
    landing: str | Path, before_us: int, unread: Collection[str] = (), dry_run: bool = False
) -> Expired:
    """Delete the segments whose pages all landed before `before_us` (wall clock) and that no
    consumer needs.  `unread` names streams, `name@version` or `name`, that have no consumers.

    Raises ConfigError if such a stream has a consumer, CentralError if a consumer's position is
    unreadable, or the landing has an unknown format.
    """
    landing_format.require(landing)
    with consumers.locked(landing):
        names = segments.list_segments(landing)
        found = _delete(landing, names, before_us, unread, dry_run)
        live = set(names).difference(found.segments)
        content = compacted.read(landing)
        old = [g for g in content.groups if g.newest_us < before_us and live.isdisjoint(g.segments)]
        if old and not dry_run:
            compacted.write(landing, content.without({group.number for group in old}))
            for group in old:
                for file in group.files:
                    group.path(landing, file).unlink(missing_ok=True)
        files = [file for group in old for file in group.files]
        return replace(found, files=len(files), file_bytes=sum(file.bytes for file in files))


def retire_compacted(
    landing: str | Path, committed_before_us: int, unread: Collection[str] = ()
) -> Expired:
    """Delete the segments that were compacted before that time (wall clock) and that no consumer
    needs; their rows stay as Parquet.

    A batch read that was planned before the compaction reads the segments: it has the time since
    the compaction.  Raises as `expire` does.
    """
    landing_format.require(landing)
    with consumers.locked(landing):
        groups = compacted.read(landing).groups
        old = {n for g in groups if g.committed_us < committed_before_us for n in g.segments}
        names = [name for name in segments.list_segments(landing) if name in old]
        return _delete(landing, names, 1 << 62, unread, False)


def _delete(
    landing: str | Path,
    names: Sequence[str],
    before_us: int,
    unread: Collection[str],
    dry_run: bool,
) -> Expired:
    """Delete those of the segments that are not needed; the lock is held."""
    known = consumers.read(landing)
    _check_unread(known, unread)
    streams = _streams(landing)
    deleted: list[str] = []
    kept: Counter[str] = Counter()
    pages = size = 0
    for name in names:
        rows = segments.read_rows(landing, name)
        reason = _needed(landing, name, rows, before_us, known, streams, unread)
        if reason:
            kept[reason] += 1
            continue
        deleted.append(name)
        pages, size = pages + len(rows), size + int(rows["length"].sum())
        if not dry_run:
            seals.retire(landing, name)
    if not dry_run:
        for name in seals.retired(landing):  # pages left by a killed run
            segments.pages_path(landing, name).unlink(missing_ok=True)
        seals.fold(landing)
    return Expired(deleted, pages, size, dict(kept))


def _needed(
    landing: str | Path,
    name: str,
    rows: Rows,
    before_us: int,
    known: list[Consumer],
    streams: Mapping[int, str],
    unread: Collection[str],
) -> str:
    """The reason to keep a segment; empty if it may be deleted."""
    if seals.read(landing, name) is None:
        return OPEN
    if len(rows) and int(rows["landed_at_us"].max()) >= before_us:
        return YOUNG
    for stream in sorted(streams.get(h, "") for h in set(rows["stream_hash"].tolist())):
        if not stream:
            return "the schema of a stream in it is missing"
        if {stream, stream.partition("@")[0]} & set(unread):
            continue
        readers = [consumer for consumer in known if consumer.stream == stream]
        if not readers:
            return f"{stream} has no consumer"
        for consumer in readers:
            if consumer.position.get(name, 0) < len(rows):
                return f"{consumer.name} has not read it"
    return ""


def _check_unread(known: list[Consumer], unread: Collection[str]) -> None:
    for consumer in known:
        if {consumer.stream, consumer.stream.partition("@")[0]} & set(unread):
            raise ConfigError(
                f"--unread {consumer.stream}: {consumer.name} reads it; if that reader is gone "
                f"for good, delete consumers/{consumer.name}.json"
            )


def _streams(landing: str | Path) -> dict[int, str]:
    """Registered streams, `name@version`, by their hash in rows."""
    found = {}
    for file in Path(landing, "schemas").glob("*@*.json"):
        stream, _, version = file.stem.rpartition("@")
        if version.isdigit():
            found[segments.stream_hash(stream, int(version))] = file.stem
    return found
