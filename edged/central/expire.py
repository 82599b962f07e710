"""Retention: deleting landed pages that are old and that nobody needs any more.

A segment goes as a whole, and only where

 1. it is sealed: no collector writes to it, and the high waters that it counts are durable;
 2. its newest page landed before the given time;
 3. for every stream that has a page in it there is a consumer (`edged/central/consumers.py`), and
    every consumer of the stream is past all of its pages; or the stream was named as one that
    nobody reads.

What a consumer has not processed is therefore never deleted, whoever is killed when: positions are
put down after their batches are committed, and consumers are entered under the lock that is held
here from the reading of positions to the last deletion.  Batch reads are no consumers: one that is
under way fails where its segment goes, and says so.

The summaries of segments that went are folded (`edged/central/seals.py`), so what stays of them
does not grow with time but with devices and partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edged.central import consumers, seals, segments
from edged.central.consumers import Consumer
from edged.central.segments import Rows
from edged.errors import ConfigError

OPEN, YOUNG = "not sealed yet", "not old enough"


@dataclass(frozen=True, slots=True)
class Expired:
    """What went, or with `dry_run` would go."""

    segments: list[str] = field(default_factory=list)
    pages: int = 0
    bytes: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    """Segments that stay, by why."""


def expire(
    landing: str | Path, before_us: int, unread: Collection[str] = (), dry_run: bool = False
) -> Expired:
    """Delete the segments whose pages all landed before `before_us` (wall clock) and which nobody
    needs.  `unread` names streams, `name@version` or `name`, whose pages nobody will read.

    Raises ConfigError where such a stream has a consumer, CentralError where a consumer's position
    cannot be read.
    """
    with consumers.locked(landing):
        known = consumers.read(landing)
        _check_unread(known, unread)
        streams = _streams(landing)
        went: list[str] = []
        kept: Counter[str] = Counter()
        pages = size = 0
        for name in segments.list_segments(landing):
            rows = segments.read_rows(landing, name)
            why = _needed(landing, name, rows, before_us, known, streams, unread)
            if why:
                kept[why] += 1
                continue
            went.append(name)
            pages, size = pages + len(rows), size + int(rows["length"].sum())
            if not dry_run:
                seals.retire(landing, name)
        if not dry_run:
            for name in seals.retired(landing):  # pages that a killed run has left
                segments.pages_path(landing, name).unlink(missing_ok=True)
            seals.fold(landing)
        return Expired(went, pages, size, dict(kept))


def _needed(
    landing: str | Path,
    name: str,
    rows: Rows,
    before_us: int,
    known: list[Consumer],
    streams: Mapping[int, str],
    unread: Collection[str],
) -> str:
    """Why a segment stays; empty where it may go."""
    if seals.read(landing, name) is None:
        return OPEN
    if len(rows) and int(rows["landed_at_us"].max()) >= before_us:
        return YOUNG
    for stream in sorted(streams.get(h, "") for h in set(rows["stream_hash"].tolist())):
        if not stream:
            return "the schema of a stream in it is gone"
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
                f"--unread {consumer.stream}: {consumer.name} reads it; where that reader is gone "
                f"for good, delete consumers/{consumer.name}.json"
            )


def _streams(landing: str | Path) -> dict[int, str]:
    """Registered streams, `name@version`, by how rows are marked."""
    found = {}
    for file in Path(landing, "schemas").glob("*@*.json"):
        stream, _, version = file.stem.rpartition("@")
        if version.isdigit():
            found[segments.stream_hash(stream, int(version))] = file.stem
    return found
