"""`file`: replay of Parquet, CSV and NDJSON files.

    source = { type = "file", path = "data/*.parquet", pace = "60x", columns = { kw = "P_avg" } }

- `path`: a file, a directory or a glob, read in the order of the names, rows in file order.  A
  relative path starts at `run.files`, by default the directory in which edged was started.
- `format`: `parquet`, `csv` or `ndjson`; default: by the suffix.
- `pace`: `full` (default), `real_time`, or a factor such as `60x` or 60: event time runs that many
  times faster than the clock.  All files of one pace share their clock, which starts at the
  earliest of their first rows: streams recorded together are replayed together.
- `columns`: stream column = column of the file, where the names differ.
- `producer`: the producer's id; default: `file:<path>`.

The producer's sequence number is the number of rows staged.  It is recovered with the stream, so
that a replay continues after the last committed row: exactly once, as long as the files that were
read have not changed.  At the end of the files the producer's end of stream is staged.  Where a
start finds other files than at that end, rows behind the last one go on, and the stream opens
again.

Where Debezium's events are a table's, the end of its snapshot ends the table's population: the end
of the block of 4 MiB that it is in.

Unreadable rows are refused together with the rows read with them.  Rows before them stay staged;
nothing after them is read until the source is restarted, and the stream does not end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.staging import TIME_MAX_US
from edged.documents import reader as doc
from edged.documents.reach import Reach
from edged.errors import ConfigError, JobError
from edged.platform.timers import TimerFd
from edged.sources.base import Source, SourcePlan, source
from edged.sources.reading import FORMATS, Reader, find_files

if TYPE_CHECKING:
    from edged.data.schema import Schema
    from edged.data.staging import Staging
    from edged.data.workers import Workers

_PACE_MIN, _PACE_MAX = 1e-9, 1e9
_WAIT_US_MAX = 3600 * 1_000_000
"""Longest timer: the next row may be further away than a timer can wait."""


@source("file")
@dataclass(frozen=True)
class FileSourcePlan(SourcePlan):
    """A checked `file` source; `pace` is the factor, 0 for full speed."""

    path: str
    format: str | None
    pace: float
    producer: str
    columns: dict[str, str]
    schema: Schema = field(repr=False)
    time: str
    events: bool = False
    """Whether lines are events of Debezium."""
    key: tuple[str, ...] = ()
    """The key of a table; empty: it has none."""

    polls: ClassVar[bool] = True
    keys: ClassVar[frozenset[str]] = frozenset({"path", "format", "pace", "producer", "columns"})

    @classmethod
    def parse(cls, path: str, document: Mapping[str, Any], stream: Any) -> FileSourcePlan:
        """Check the table; the files are searched when the source starts."""
        where = doc.text(path, document, "path")
        pace = _pace(f"{path}.pace", document.get("pace", "full"))
        kind = doc.choice(path, document, "format", FORMATS) if "format" in document else None
        if stream.events and kind not in (None, "ndjson"):
            raise JobError(f"{path}.format", f"{kind} holds no events of Debezium", "ndjson does")
        if pace and not stream.time:
            raise JobError(f"{path}.pace", "a table has no event time", "leave it out")
        return cls(
            where,
            kind,
            pace,
            doc.text(path, document, "producer", f"file:{where}"),
            _renamed(path, document, stream.schema),
            stream.schema,
            stream.time,
            stream.events,
            () if stream.table is None else stream.table.key,
        )

    def share_key(self) -> str:
        """Files of one pace share their clock."""
        return f"file:{self.pace:g}"

    def build(
        self,
        stagings: Mapping[str, Staging],
        plans: Mapping[str, SourcePlan],
        workers: Workers | None = None,
    ) -> FileSource:
        """The running replay of all streams of this pace."""
        replays = []
        for name, staging in stagings.items():
            plan = plans[name]
            assert isinstance(plan, FileSourcePlan)
            replays.append(_Replay(plan, staging))
        return FileSource(replays, self.pace)

    def file_path(self, root: Path) -> str:
        """The path with its root."""
        return str(Path(root, self.path).absolute())

    def reach(self, root: Path) -> Reach:
        """Its files."""
        return Reach(files={"path": self.file_path(root)})

    def describe(self) -> list[str]:
        """The files and the pace."""
        speed = {0.0: "at full speed", 1.0: "in real time"}.get(self.pace, f"{self.pace:g}x faster")
        lines = [f"{self.path} ({self.format or 'format by suffix'}), {speed}"]
        lines += ["lines are events of Debezium"] if self.events else []
        lines += [f"{name} is its column {inside}" for name, inside in self.columns.items()]
        return lines


class _Replay:
    """The files of one stream, and the number of staged rows."""

    def __init__(self, plan: FileSourcePlan, staging: Staging) -> None:
        self._plan = plan
        self._staging = staging
        self._producer = 0
        self._batches: Iterator[Batch] = iter(())
        self._head: Batch | None = None
        self._latest = np.empty(0, np.int64)
        self.problem = ""
        """Why reading the files has stopped."""
        self.rows = 0
        self.reader: Reader | None = None

    def start(self, root: Path) -> None:
        """Find and check the files, and skip the staged rows.  A relative path starts at `root`.

        The producer gets its number here, after recovery has assigned the old ones.
        """
        plan, producers = self._plan, self._staging.producers
        self.reader = reader = self.check(root)
        self._producer = producers.number(plan.producer)
        read_to_end = producers.contents.get(self._producer) == reader.content()
        if not (producers.ended[self._producer] and read_to_end):
            self._batches = reader.batches(int(producers.seq[self._producer]))
        else:
            reader.bytes_read = reader.bytes_total

    def check(self, root: Path) -> Reader:
        """Find and check the files; returns their reader.  Raises ConfigError."""
        plan = self._plan
        reader = Reader(
            find_files(plan.path, root),
            plan.schema,
            plan.columns,
            plan.format,
            plan.events,
            plan.key,
        )
        reader.check()
        return reader

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._staging.name

    @property
    def held(self) -> bool:
        """Whether nothing may be staged now."""
        return self._staging.held

    def head(self) -> Batch | None:
        """The next rows; None at the end of the files, which is recorded, and after an error."""
        if self._head is None and not self.problem:
            try:
                self._head = next(self._batches, None)
            except ConfigError as problem:
                self.problem = str(problem)
                return None
            if self.reader is not None and self.reader.populated:
                self._end_population()
            if self._head is None:
                self._end()
                return None
            self._latest = self._times(self._head)
        return self._head

    def _times(self, rows: Batch) -> npt.NDArray[np.int64]:
        """When each row is due; a table's are due at once."""
        if not self._plan.time:
            return np.zeros(rows.rows, np.int64)
        return np.maximum.accumulate(rows[self._plan.time].values)

    def _end(self) -> None:
        """Stage the end of stream, and note the files that it is the end of."""
        assert self.reader is not None
        producers = self._staging.producers
        producers.ended[self._producer] = 1
        producers.contents.put(self._producer, self.reader.content())

    def _end_population(self) -> None:
        """Note that a table's first rows are staged."""
        producers = self._staging.producers
        if not self._plan.time and self._producer not in producers.lasts:
            producers.end_first_rows(self._producer, int(producers.seq[self._producer]))

    def next_us(self) -> int | None:
        """Event time at which the next row is due: the largest of all rows so far."""
        return None if self.head() is None else int(self._latest[0])

    def fill(self, limit_us: int | None, monotonic_us: int, wall_us: int) -> bool:
        """Stage rows that are due up to event time `limit_us` (None: all) while there is room.

        Returns whether due rows were left because staging is full.  A replay with rows left is
        marked as seen each time: its next row is known, so it is not idle.
        """
        if self.head() is not None:
            self._staging.producers.seen_us[self._producer] = monotonic_us
        while (head := self.head()) is not None:
            due = head.rows
            if limit_us is not None:
                due = int(np.searchsorted(self._latest, limit_us, side="right"))
            if due == 0:
                return False
            room = self._staging.room()
            if room <= 0:
                return True
            take = min(due, max(1, room * head.rows // max(1, head.nbytes())))
            self._stage(head, take, wall_us)
        return False

    def _stage(self, head: Batch, take: int, wall_us: int) -> None:
        self._staging.append(head.slice(0, take), self._producer, wall_us)
        producers = self._staging.producers
        producers.seq[self._producer] += take
        producers.ended[self._producer] = 0
        self.rows += take
        self._head = head.slice(take, head.rows) if take < head.rows else None
        self._latest = self._latest[take:]


class FileSource(Source):
    """A running replay of one or more streams at one pace."""

    gauges = frozenset({"bytes_read", "bytes_total"})

    def __init__(self, replays: list[_Replay], pace: float) -> None:
        self._replays = replays
        self._pace = pace
        self._root = Path()
        self._timer = TimerFd()
        self._origin: tuple[int, int] | None = None
        """Event time and monotonic clock, in microseconds, at the start of the replay."""
        self._more = False
        self._finished = False
        self._refused: list[_Replay] = []

    def place(self, directory: Path, files: Path) -> None:
        """Set where relative paths start."""
        self._root = files

    def check(self, leaving: Sequence[Source]) -> None:
        """Find the files and their columns."""
        for replay in self._replays:
            replay.check(self._root)

    def start(self) -> None:
        """Open the files.  Raises ConfigError if they are missing or lack a column."""
        for replay in self._replays:
            replay.start(self._root)
        self._timer.arm(0)

    def fileno(self) -> int:
        """Readable when the next row is due."""
        return self._timer.fileno()

    def due_us(self) -> int | None:
        """When the next row is due."""
        return self._timer.due_us

    def ingest(self, monotonic_us: int, wall_us: int) -> None:
        """Stage due rows, up to each stream's high watermark."""
        limit_us = self._limit(monotonic_us)
        full = [replay.fill(limit_us, monotonic_us, wall_us) for replay in self._replays]
        self._more = any(full)
        self._arm(monotonic_us)
        for replay in self._replays:
            if replay.problem and replay not in self._refused:
                self._refused.append(replay)
                self.on_refused("unreadable", replay.problem)

    def more(self) -> bool:
        """Whether due rows were left because staging was full."""
        return self._more and not all(replay.held for replay in self._replays)

    def seal(self) -> Any:
        """No ticket: files need no acknowledgement."""
        return None

    def committed(self, ticket: Any) -> None:
        """Nothing to do: the committed sequence number is in the beat's record."""

    def finished(self) -> bool:
        """Whether every file is staged to its end."""
        return self._finished

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()

    def problem(self) -> str:
        """Why a file cannot be read on."""
        return next((replay.problem for replay in self._replays if replay.problem), "")

    def rows_total(self, stream: str) -> int | None:
        """See `Source.rows_total`: Parquet files say it."""
        reader = self._reader(stream)
        return None if reader is None else reader.rows_total

    def read_share(self, stream: str) -> float | None:
        """See `Source.read_share`: bytes of bytes."""
        reader = self._reader(stream)
        if reader is None or not reader.bytes_total:
            return None
        return min(1.0, reader.bytes_read / reader.bytes_total)

    def _reader(self, stream: str) -> Reader | None:
        return next((r.reader for r in self._replays if r.stream == stream), None)

    def counters(self) -> Mapping[str, int | float]:
        """Rows staged since the start, and how far the files are read."""
        readers = [replay.reader for replay in self._replays if replay.reader is not None]
        found = {
            "rows": sum(replay.rows for replay in self._replays),
            "bytes_read": sum(reader.bytes_read for reader in readers),
            "bytes_total": sum(reader.bytes_total for reader in readers),
        }
        return {**found, "refused_unreadable": len(self._refused)} if self._refused else found

    def _limit(self, monotonic_us: int) -> int | None:
        if self._pace == 0:
            return None
        if self._origin is None:
            firsts = [t for replay in self._replays if (t := replay.next_us()) is not None]
            if not firsts:
                return None
            self._origin = (min(firsts), monotonic_us)
        event_us, start_us = self._origin
        return min(event_us + math.floor((monotonic_us - start_us) * self._pace), TIME_MAX_US)

    def _arm(self, monotonic_us: int) -> None:
        nexts = [t for replay in self._replays if (t := replay.next_us()) is not None]
        self._finished = not nexts
        if not nexts or self._more:
            self._timer.disarm()
        elif self._origin is None:
            self._timer.arm(0)
        else:
            event_us, start_us = self._origin
            due_us = start_us + math.ceil((min(nexts) - event_us) / self._pace)
            self._timer.arm(min(due_us, monotonic_us + _WAIT_US_MAX))


def _pace(path: str, value: object) -> float:
    advice = "full, real_time or a factor such as 60x"
    if value in ("full", "real_time"):
        return 1.0 if value == "real_time" else 0.0
    if isinstance(value, str) and value.endswith("x"):
        try:
            value = float(value[:-1])
        except ValueError:
            raise JobError(path, f"{value!r} is not a pace", advice) from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise JobError(path, f"{value!r} is not a pace", advice)
    if not _PACE_MIN <= value <= _PACE_MAX:
        raise JobError(path, f"{value:g} is out of range", "a factor above 0, from 1e-9 to 1e9")
    return float(value)


def _renamed(path: str, document: Mapping[str, Any], schema: Schema) -> dict[str, str]:
    given = doc.table(path, document, "columns", {})
    where = doc.below(path, "columns")
    for name in given:
        if name not in schema:
            advice = doc.did_you_mean(name, schema.names)
            raise JobError(f"{where}.{name}", "the stream has no such column", advice)
        doc.text(where, given, name)
    return dict(given)
