"""The metrics of a landing's compaction, as a collector exposes them.

They are read from the landing (`edged/central/compacted.py`): a compactor may run by a timer, and
be gone when Prometheus asks.
"""

from __future__ import annotations

from pathlib import Path

from edged.central import compacted, segments
from edged.central.compacted import Compacted
from edged.errors import CentralError
from edged.metrics import Exposition


class CompactionMetrics:
    """Reads a landing's manifest again when it changes; for one thread at a time."""

    def __init__(self, landing: str | Path) -> None:
        self._landing = Path(landing)
        self._stamp: tuple[int, int, int] | None = None
        self._found: Compacted | None = Compacted()

    def add_to(self, metrics: Exposition) -> None:
        """Add the current values.  Raises OSError if the landing cannot be read."""
        sealed = self._sealed()
        found = self._manifest()
        metrics.add("edged_compaction_manifest_unreadable", found is None)
        if found is None:
            return
        done = found.segments()
        files = [file for group in found.groups for file in group.files]
        waiting = sealed.difference(done, found.left)
        last_us = max((group.committed_us for group in found.groups), default=None)
        metrics.add("edged_compaction_segments", len(done))
        metrics.add("edged_compaction_rows", sum(file.rows for file in files))
        metrics.add("edged_compaction_bytes", sum(file.bytes for file in files))
        metrics.add("edged_compaction_waiting_segments", len(waiting))
        metrics.add("edged_compaction_damaged_segments", len(found.left))
        metrics.add(
            "edged_compaction_last_commit_timestamp_seconds",
            None if last_us is None else last_us / 1e6,
        )

    def _sealed(self) -> set[str]:
        """Segments that have pages and a summary.  Listed before the manifest is read: one that is
        compacted in between does not wait."""
        names = {path.name for path in segments.segments_dir(self._landing).iterdir()}
        return {name[:-4] for name in names if name[-4:] == ".sum" and f"{name[:-4]}.idx" in names}

    def _manifest(self) -> Compacted | None:
        """The manifest; None where it is damaged."""
        try:
            stat = compacted.manifest_path(self._landing).stat()
        except FileNotFoundError:
            return Compacted()
        stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if stamp != self._stamp:
            try:
                self._found = compacted.read(self._landing)
            except CentralError:
                self._found = None
            self._stamp = stamp
        return self._found
