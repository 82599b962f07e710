"""A table's directory: its versions, and one file that names the published one.

    <table>/
      _current            JSON, replaced by rename: the manifest of the published version
      v=7/state/*.parquet the merged partial rows after batch 7      (merge and changes mode)
      v=7/final/*         the published rows, where they are not the state's (merge mode)
      batch=7/*           the rows of batch 7                                (append mode)
                          what batch 7 changed in the published rows         (changes mode)
      final               symbolic link to the published files; follows `_current` (merge mode)

Invariants:

1. A version named by `_current` is complete and never written again; any other is ignored and may
   be incomplete.
2. Version N is version N-1 merged with batch N, and nothing else.
3. The published version and the few before it are kept, so that a reader has time to finish.

Reading needs pyarrow only.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from edged.errors import CentralError

MERGE, CHANGES, APPEND = MODES = ("merge", "changes", "append")
CURRENT = "_current"
FINAL = "final"
KEEP_VERSIONS = 3
"""Versions that are kept, the published one included."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a table's `_current`."""

    version: int
    """The batch after which the table has this content."""
    query: str
    """Id of the streaming query, that is of its checkpoint, that wrote it."""
    mode: str
    format: str
    shown: str
    """The published part: `final`, `state` or `batch`."""
    fingerprint: dict[str, Any] = field(default_factory=dict)
    """The settings that the merged state depends on; see `spec.TableSpec.fingerprint`."""
    columns: str = ""
    """The state's columns and types, as Spark's JSON."""
    offset: str = ""
    """The source offset after this batch, from the checkpoint's offset log, if readable."""
    rows: int = 0
    """Rows of the state, or appended by this batch."""


class TableDirectory:
    """The directory of one table."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def current(self) -> Manifest | None:
        """The published manifest; None if nothing is published yet."""
        try:
            text = (self.path / CURRENT).read_text("utf-8")
        except FileNotFoundError:
            return None
        try:
            return Manifest(**json.loads(text))
        except (ValueError, TypeError) as problem:
            raise CentralError(
                f"{self.path / CURRENT}: not a table's manifest ({problem}); restore the output "
                "from a backup, or start again with a new --output and a new --checkpoint"
            ) from problem

    def version(self, number: int) -> Path:
        """The directory of version `number` (merge mode)."""
        return self.path / f"v={number}"

    def batch(self, number: int) -> Path:
        """The directory of the rows of batch `number` (append mode)."""
        return self.path / f"batch={number}"

    def publish(self, manifest: Manifest) -> None:
        """Make `manifest` the current one, durably and atomically."""
        if manifest.mode != APPEND:
            _sync_tree(self.version(manifest.version))
        if manifest.mode != MERGE:
            _sync_tree(self.batch(manifest.version))
        text = json.dumps(asdict(manifest), sort_keys=True, indent=1)
        replace_file(self.path / CURRENT, text.encode())
        self.link_published(manifest)

    def link_published(self, manifest: Manifest) -> None:
        """Point the `final` link at the part that `manifest` publishes."""
        if manifest.mode != MERGE:
            return
        fresh = self.path / f".{FINAL}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(Path(f"v={manifest.version}") / manifest.shown)
        fresh.replace(self.path / FINAL)

    def prune(self, manifest: Manifest, keep: int = KEEP_VERSIONS) -> None:
        """Delete versions older than the last `keep`.  Batches all stay."""
        for path in self.path.glob("v=*"):
            number = path.name[2:]
            if number.isdigit() and int(number) <= manifest.version - keep:
                shutil.rmtree(path, ignore_errors=True)

    def shown(self, manifest: Manifest) -> list[Path]:
        """The directories of the published part, oldest first."""
        if manifest.mode == MERGE:
            return [self.version(manifest.version) / manifest.shown]
        numbers = sorted(int(p.name[6:]) for p in self.path.glob("batch=*") if p.name[6:].isdigit())
        return [self.batch(n) for n in numbers if n <= manifest.version]


def read(path: str | Path, part: str | None = None) -> pa.Table:
    """The published rows of the table at `path` as one Arrow table.

    `part` = "state" reads the merged partial rows instead of the view.  Raises CentralError if
    nothing is published yet.
    """
    table = TableDirectory(path)
    for attempt in range(5):
        manifest = table.current()
        if manifest is None:
            raise CentralError(
                f"{path}: no table was published here yet; run `edged central aggregate` first"
            )
        try:
            return _read(table, manifest, part)
        except FileNotFoundError:
            if attempt == 4 or table.current() == manifest:
                raise
    raise AssertionError("unreachable")


def _read(table: TableDirectory, manifest: Manifest, part: str | None) -> pa.Table:
    import pyarrow.dataset as ds  # slow to import; executors only write marks

    places, kind = table.shown(manifest), manifest.format
    if part == "state" or manifest.shown == "state":
        places, kind = [table.version(manifest.version) / "state"], "parquet"
    files = [str(f) for place in places for f in _data_files(place)]
    return ds.dataset(files, format=kind).to_table()


def _data_files(place: Path) -> Iterator[Path]:
    for file in sorted(place.iterdir()):
        if not file.name.startswith(("_", ".")):
            yield file


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file atomically: a reader, or a power cut, sees the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    with open(fresh, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(path)
    _sync(path.parent)


def _sync_tree(place: Path) -> None:
    for directory, _, files in os.walk(place):
        for name in files:
            _sync(Path(directory) / name)
        _sync(Path(directory))
    _sync(place.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
