"""The compacted part of a landing: Parquet files with the rows of sealed segments, and the manifest
that names them.

    LANDING/compacted/manifest                               the groups that count
    LANDING/compacted/<stream>@<version>/<group:08d>.parquet the rows of one stream in one group

A group is a set of sealed segments whose rows stand, complete, in the group's files.  The manifest
is the same line twice, so that one damaged line is known from the other:

    {"next": number of the next group, "groups": [{"number", "committed_us", "newest_us",
     "segments": {name: rows}, "files": [{"stream", "rows", "row_groups", "bytes", "crc"}]}],
     "left": {segment: why it is not compacted}, "crc": …}   (edged/documents/checked_json.py)

Invariants

 1. The manifest is replaced atomically, and the files that it names are durable before.  A file
    that it does not name does not count, whatever is in it.
 2. A segment is in one group at most.  Its rows are read from its group's files if the manifest
    names it, else from its pages: once in either case.
 3. A file that the manifest names never changes.  A group goes as a whole.
 4. The manifest changes only under the lock of `edged/central/consumers.py`, which retention holds
    as well.

A reader takes a `snapshot`: positions first, the manifest second.  A segment that is compacted or
deleted in between is then in the manifest; the other order could miss it.

A file has the columns of the stream with the types of its schema, then those of
`read_request.METADATA`, sorted by device, then in landing order.  This runs on Spark executors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from edged.central import segments
from edged.central.tables import replace_file
from edged.documents import checked_json
from edged.errors import CentralError

MANIFEST = "manifest"


@dataclass(frozen=True, slots=True)
class CompactedFile:
    """A Parquet file: the rows of one stream in one group."""

    stream: str
    """`name@version`."""
    rows: int
    row_groups: int
    bytes: int
    crc: int
    """CRC-32 of the whole file."""


@dataclass(frozen=True, slots=True)
class CompactedGroup:
    """Segments and the files with their rows."""

    number: int
    committed_us: int
    """When it was committed: wall clock, microseconds since 1970 UTC."""
    newest_us: int
    """When the newest of its pages landed."""
    segments: Mapping[str, int]
    """Rows of each segment's index."""
    files: tuple[CompactedFile, ...]

    def path(self, landing: str | Path, file: CompactedFile) -> Path:
        """Where one of its files lies."""
        return directory(landing) / file.stream / f"{self.number:08d}.parquet"


@dataclass(frozen=True, slots=True)
class Compacted:
    """The content of the manifest."""

    next: int = 1
    groups: tuple[CompactedGroup, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    """Damaged segments that stay as they are, and their problems."""

    def segments(self) -> set[str]:
        """The segments in all groups."""
        return {name for group in self.groups for name in group.segments}

    def with_group(self, group: CompactedGroup) -> Compacted:
        """The same with one group more."""
        return replace(self, next=group.number + 1, groups=(*self.groups, group))

    def without(self, numbers: set[int]) -> Compacted:
        """The same without these groups."""
        return replace(self, groups=tuple(g for g in self.groups if g.number not in numbers))


@dataclass(frozen=True, slots=True)
class LandingSnapshot:
    """What a batch read covers: each landed row once."""

    position: Mapping[str, int]
    """Rows of the segments that are read as pages."""
    groups: tuple[CompactedGroup, ...]
    """The groups that are read as Parquet."""

    def files(self, landing: str | Path, stream: str) -> list[tuple[Path, CompactedFile]]:
        """The files of `stream`, which is `name@version`, oldest first."""
        return [
            (group.path(landing, file), file)
            for group in self.groups
            for file in group.files
            if file.stream == stream
        ]


def directory(landing: str | Path) -> Path:
    """The directory of the compacted part."""
    return Path(landing) / "compacted"


def manifest_path(landing: str | Path) -> Path:
    """The manifest's file."""
    return directory(landing) / MANIFEST


def read(landing: str | Path) -> Compacted:
    """The manifest; an empty one without a file.  Raises CentralError where both lines of it are
    damaged."""
    try:
        data = manifest_path(landing).read_bytes()
    except FileNotFoundError:
        return Compacted()
    lines = [found for line in _lines(data) if (found := _parsed(line)) is not None]
    if not lines:
        raise CentralError(
            f"{manifest_path(landing)}: both lines are damaged; restore the file from a backup, or "
            "see edged central check"
        )
    return lines[0]


def problem(landing: str | Path) -> str:
    """What is wrong with the manifest's file; empty if nothing is."""
    try:
        first, second = map(_parsed, _lines(manifest_path(landing).read_bytes()))
    except FileNotFoundError:
        return ""
    if first is None and second is None:
        return "both lines are damaged"
    return "" if first == second else "a line is damaged"


def write(landing: str | Path, content: Compacted) -> None:
    """Replace the manifest, durably and atomically: the commit of every change."""
    line = checked_json.pack(asdict(content)) + b"\n"
    replace_file(manifest_path(landing), 2 * line)
    os.chmod(manifest_path(landing), 0o644)  # noqa: PTH101 - whatever the umask, as schema files


def snapshot(landing: str | Path) -> LandingSnapshot:
    """What has landed, as pages or as Parquet.  Raises CentralError as `read` does."""
    end = segments.positions(landing)
    found = read(landing)
    done = found.segments()
    left = {name: rows for name, rows in end.items() if name not in done}
    return LandingSnapshot(left, found.groups)


def unnamed_files(landing: str | Path, content: Compacted) -> Iterator[Path]:
    """Files that do not count: left by a run that was killed, or by a deletion that was."""
    named = {g.path(landing, f) for g in content.groups for f in g.files}
    for path in sorted(directory(landing).rglob("*")):
        if path.is_file() and path not in named and path != manifest_path(landing):
            yield path


def _lines(data: bytes) -> tuple[bytes, bytes]:
    half = len(data) // 2
    return data[:half], data[half:]


def _parsed(line: bytes) -> Compacted | None:
    """The content of a line; None where it is damaged."""
    try:
        found = checked_json.unpack(line)
        if not isinstance(found, dict) or checked_json.pack(found) + b"\n" != line:
            return None
        groups = tuple(_group(group) for group in found["groups"])
        return Compacted(int(found["next"]), groups, dict(found["left"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _group(found: dict[str, Any]) -> CompactedGroup:
    files = tuple(_known(CompactedFile, file) for file in found["files"])
    group: CompactedGroup = _known(CompactedGroup, {**found, "files": files})
    return group


def _known(kind: Any, found: dict[str, Any]) -> Any:
    """An object of `kind`; keys that this version does not know are left out."""
    return kind(**{f.name: found[f.name] for f in fields(kind)})
