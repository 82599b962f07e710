"""The `file` sink: writes rows to files of a directory, as Parquet or NDJSON.

    [sinks.copy]
    type = "file"
    input = "daily"
    path = "out/daily"        # absolute, or below `run.files`: where edged was started
    format = "parquet"        # default; or "ndjson"
    every = "10min"           # a file is finished at this age (default: 1min),
    rows = 1000000            # or at the end of the beat that reaches this number,
    bytes = "64MiB"           # or this size (in memory, not encoded)

The state remembers the directory that `path` led to.  While that exists and `path` is the same, the
sink stays there: a start from another working directory does not split its files.  State without
it is of a version whose relative paths led into the store, to `sinks/<sink>/<path>`.

`every` replaces the job's latency promise: rows that are committed but not yet in a file are in the
store.  With durability `results` they are not, so every beat with rows finishes a file.  A stop of
the daemon and the end of all streams also finish the file.

Files are `part-<sink>-<epoch>-<first beat>-<last beat>.<format>`.  Invariants:

1. A file appears complete, under its name, and durable, before its last beat is committed.
2. Name and bytes depend on the beats alone: a replay writes the same file again.
3. A row is either in exactly one file or in the saved state.  A file whose beat was never committed
   (the process died in between) is deleted in the same call that would write its rows again.
4. On a full disk the beat waits for room, and all other work with it, so that the rows of a file do
   not depend on the disk.

NDJSON is written by `edged.data.ndjson`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edged.data.flow import BeatContext, Flow, Link, State
from edged.data.ndjson import ndjson
from edged.documents import reader as doc
from edged.documents.reach import Reach
from edged.documents.units import show_duration, show_size
from edged.errors import JobError, StoreError
from edged.pages.sealed import PageKey, SealedPage
from edged.platform.disk import DISK_FULL, Disk, SystemDisk, replace_file
from edged.sinks.base import Flush, Sink, SinkContext, SinkPlan, sink

FORMATS = ("parquet", "ndjson")


class FileSink(Sink):
    """Collects rows as Arrow batches until the file is finished at the end of a beat."""

    prompt = False
    gauges = frozenset({"open_rows", "open_bytes"})

    def __init__(self, plan: FileSinkPlan, context: SinkContext, disk: Disk) -> None:
        self._plan, self._disk = plan, disk
        self._directory = plan.file_path(Path(context.files))
        self._in_store = str(Path(context.directory, plan.path))
        self._prefix = f"part-{plan.id}-{context.epoch:016x}-"
        self._batches: list[pa.RecordBatch] = []
        self._first_beat = self._opened_us = self._rows = self._bytes = 0
        self._sealed_beat = 0
        self._unconfirmed: dict[str, int] | None = None
        self._counts = {"rows": 0, "files": 0, "file_bytes": 0}

    def write(self, beat: BeatContext, flow: Flow) -> None:
        """Copy the rows."""
        if flow.batch.rows == 0:
            return
        if not self._batches:
            self._first_beat, self._opened_us = beat.number, beat.wall_us
        self._batches.append(flow.batch.to_arrow())
        self._rows += flow.batch.rows
        self._bytes += flow.batch.nbytes()

    def seal(self, beat: BeatContext, flush: Flush) -> list[SealedPage]:
        """Finish the file if it is due; never returns pages."""
        name, data = "", []
        if self._batches and (flush == Flush.ALL or self._due(beat.wall_us)):
            name = f"{self._prefix}{self._first_beat:012d}-{beat.number:012d}.{self._plan.format}"
            data = self._encoded()
        while not self._done(beat, name, data):
            pass  # retry: there may be room now
        if name:
            self._counts["rows"] += self._rows
            self._counts["files"] += 1
            self._counts["file_bytes"] += sum(map(len, data))
            self._batches, self._rows, self._bytes = [], 0, 0
        return []

    def _done(self, beat: BeatContext, name: str, data: Sequence[memoryview]) -> bool:
        """Write the file, if it has a name; False if there was no room but may be now."""
        try:
            self._disk.mkdir(self._directory)
            self._sweep(beat.number, name)
            if name:
                replace_file(self._disk, f"{self._directory}/{name}", data)
        except OSError as problem:
            if problem.errno in DISK_FULL and beat.await_room is not None:
                beat.await_room(OSError(problem.errno, problem.strerror, self._directory))
                return False
            raise StoreError(
                f"sinks.{self._plan.id}: writing to {self._directory} failed: {problem}; "
                "the rows are kept and written again after a restart"
            ) from problem
        return True

    def _due(self, wall_us: int) -> bool:
        plan = self._plan
        full = self._rows >= plan.rows or self._bytes >= plan.bytes
        return full or self.due_in_us(wall_us) == 0

    def _encoded(self) -> list[memoryview]:
        table = pa.Table.from_batches(self._batches, self._plan.input.schema.to_arrow())
        return _parquet(table) if self._plan.format == "parquet" else ndjson(table)

    def _sweep(self, beat: int, name: str) -> None:
        """Delete what an earlier process wrote for beats up to this one without committing them."""
        if self._unconfirmed is None:
            pattern = re.compile(re.escape(self._prefix) + r"[0-9]+-([0-9]+)\.[a-z]+(\.tmp)?")
            found = [pattern.fullmatch(n) for n in self._disk.listdir(self._directory)]
            last = {m.group(): int(m.group(1)) for m in found if m}
            sure = self._sealed_beat or beat - 1
            self._unconfirmed = {n: number for n, number in last.items() if number > sure}
        for old, number in list(self._unconfirmed.items()):
            if number <= beat:
                del self._unconfirmed[old]
                if old != name:
                    self._disk.unlink(f"{self._directory}/{old}")
        self._sealed_beat = beat

    def open_rows(self) -> int:
        """Rows that are in no file yet."""
        return self._rows

    def due_in_us(self, wall_us: int) -> int | None:
        """The rest of `every`, also if the wall clock was set back."""
        if not self._batches:
            return None
        return max(0, self._plan.every_us - abs(wall_us - self._opened_us))

    def save(self) -> State:
        """The rows of the open file as an Arrow IPC stream, and when it was opened."""
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, self._plan.input.schema.to_arrow()) as writer:
            for batch in self._batches:
                writer.write_batch(batch)
        numbers = [self._first_beat, self._opened_us, self._rows, self._bytes, self._sealed_beat]
        place = json.dumps([self._plan.path, self._directory]).encode()
        return {
            "open": np.frombuffer(out.getvalue(), np.uint8).copy(),
            "numbers": np.array(numbers, np.int64),
            "place": np.frombuffer(place, np.uint8).copy(),
        }

    def load(self, state: State) -> None:
        """Restore a saved state."""
        with pa.ipc.open_stream(pa.py_buffer(state["open"].tobytes())) as reader:
            self._batches = list(reader)
        first, opened_us, rows, size, sealed = (int(n) for n in state["numbers"])
        self._first_beat, self._opened_us = first, opened_us
        self._rows, self._bytes, self._sealed_beat = rows, size, sealed
        path, directory = self._plan.path, self._in_store
        if "place" in state:
            path, directory = json.loads(state["place"].tobytes())
        if path == self._plan.path and Path(directory).is_dir():
            self._directory = directory

    def skip(self, beat: int, keys: Sequence[PageKey]) -> None:
        """Drop the open file's rows; files up to this beat are committed."""
        self._batches, self._rows, self._bytes = [], 0, 0
        self._sealed_beat = beat

    def writes_to(self) -> str:
        """The directory of its files."""
        return self._directory

    def counters(self) -> Mapping[str, int | float]:
        """Rows, files and bytes written since the start, and what is open."""
        return {**self._counts, "open_rows": self._rows, "open_bytes": self._bytes}


def _parquet(table: pa.Table) -> list[memoryview]:
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    return [memoryview(out.getvalue())]


@sink("file")
@dataclass(frozen=True)
class FileSinkPlan(SinkPlan):
    """A checked `file` sink."""

    without_log = True
    keys = frozenset({"path", "format", "rows", "bytes", "every"})

    id: str
    input: Link
    path: str
    format: str
    rows: int
    bytes: int
    every_us: int

    @classmethod
    def parse(cls, path: str, id: str, document: Mapping[str, Any], input: Link) -> FileSinkPlan:
        """Check `document`; raises JobError."""
        where = doc.text(path, document, "path")
        if ".." in PurePath(where).parts:
            raise JobError(f"{path}.path", f"{where!r} leads out of its directory", "no '..'")
        return cls(
            id,
            input,
            where,
            doc.choice(path, document, "format", FORMATS, "parquet"),
            doc.integer(path, document, "rows", 1_000_000, least=1),
            doc.size(path, document, "bytes", "64MiB", least=1),
            doc.duration(path, document, "every", "1min", least=1),
        )

    def build(self, context: SinkContext) -> FileSink:
        """The running sink."""
        return FileSink(self, context, SystemDisk())

    def claims(self) -> Sequence[str]:
        """The names of its files begin with its id."""
        return [f"files {PurePath(self.path, self.id)}"]

    def file_path(self, root: Path) -> str:
        """The directory of its files."""
        return str(Path(root, self.path).absolute())

    def reach(self, root: Path) -> Reach:
        """Its files."""
        return Reach(files={"path": self.file_path(root)})

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        return [
            f"{self.format} files in {self.path}",
            f"a new file every {show_duration(self.every_us)}, {self.rows} rows or"
            f" {show_size(self.bytes)}",
        ]

    def signature(self) -> str:
        """The schema, on which the open file's rows depend; the limits of a file may change."""
        facts = [self.kind, self.version, self.input.schema.to_json()]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
