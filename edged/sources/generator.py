"""`generator`: rows made on the device, for benchmarks, tests and first steps.

    source = { type = "generator", rate = 100000, key = "sensor", keys = "zipf", key_max = 1000 }

- `rate`: rows a second, or `full` (as fast as staging takes them).  `rows`: how many in all;
  default: unlimited.
- `key`: the key column (integers, floats, string, binary); key k is the number k, in text `k<k>`.
- `keys`: `uniform` (default), `zipf` or `sequential` over `0..key_max-1` (default 1000); `skew` is
  zipf's exponent (default 1.0).
- `start`: event time of the first row, ISO 8601, or `now` (default).  `step`: event time from row
  to row; default 1/rate, 1us at full speed.
- `nulls`: share of nulls in nullable columns (default 0).  `seed`: selects another data set.

Other columns are random: integers 0..99, floats in [0, 1), bools, text `v0`..`v99`, timestamps up
to a second before the row's time.  Row i is a pure function of (seed, stream, i): rows are made in
blocks of 16 Ki from a generator seeded with the block's number.  The sequence number of the
producer `generator:<stream>` counts rows, so that after a restart the next row follows the last
committed one; with `start = "now"` the start is computed from the last committed time.
"""

from __future__ import annotations

import datetime
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column
from edged.data.flow import WATERMARK_MIN_US
from edged.data.schema import BOOL, TIMESTAMP, Field, Schema
from edged.documents import reader as doc
from edged.documents.reach import Reach
from edged.errors import JobError
from edged.platform.timers import TimerFd
from edged.sources.base import Source, SourcePlan, source

if TYPE_CHECKING:
    from edged.data.staging import Staging
    from edged.data.workers import Workers

BLOCK_ROWS = 1 << 14
KEY_MAX = 1 << 40
RATE_MAX = 1e9
KEYS = ("uniform", "zipf", "sequential")
_ZIPF_EXACT = 1 << 16
"""Ranks whose probability is summed exactly; the tail is integrated."""

Ints = npt.NDArray[np.int64]


@source("generator")
@dataclass(frozen=True)
class GeneratorPlan(SourcePlan):
    """A checked `generator` source; `rate` is rows a second, 0 for full speed."""

    stream: str
    schema: Schema = field(repr=False)
    time: str
    rate: float
    rows: int | None
    key: str | None
    keys_of: str
    key_max: int
    skew: float
    seed: int
    start_us: int | None
    step_us: float
    nulls: float

    polls: ClassVar[bool] = True
    keys: ClassVar[frozenset[str]] = frozenset(
        {"rate", "rows", "key", "keys", "key_max", "skew", "seed", "start", "step", "nulls"}
    )

    @classmethod
    def parse(cls, path: str, document: Mapping[str, Any], stream: Any) -> GeneratorPlan:
        """Check the table."""
        rate = 0.0
        if document.get("rate") != "full":
            rate = doc.number(path, document, "rate", least=1e-3, most=RATE_MAX)
        step_us = 1e6 / rate if rate else 1.0
        if "step" in document:
            step_us = float(doc.duration(path, document, "step"))
        key_max = doc.integer(path, document, "key_max", 1000, least=1, most=KEY_MAX)
        return cls(
            stream.name,
            stream.schema,
            stream.time,
            rate,
            doc.integer(path, document, "rows", least=0) if "rows" in document else None,
            _key_column(path, document, stream, key_max),
            doc.choice(path, document, "keys", KEYS, "uniform"),
            key_max,
            doc.number(path, document, "skew", 1.0, least=0.0, most=10.0),
            doc.integer(path, document, "seed", 0, least=0),
            _start(f"{path}.start", document.get("start", "now")),
            step_us,
            doc.number(path, document, "nulls", 0.0, least=0.0, most=1.0),
        )

    def share_key(self) -> str:
        """Each generator runs alone."""
        return f"generator:{self.stream}"

    def build(
        self,
        stagings: Mapping[str, Staging],
        plans: Mapping[str, SourcePlan],
        workers: Workers | None = None,
    ) -> GeneratorSource:
        """The running generator."""
        return GeneratorSource(self, stagings[self.stream])

    def endless(self) -> str:
        """Without `rows` there is no last one."""
        return "" if self.rows is not None else "it makes rows without limit; set rows"

    def reach(self, root: Path) -> Reach:
        """Nothing."""
        return Reach()

    def describe(self) -> list[str]:
        """The rows and their rate."""
        speed = f"{self.rate:g} rows/s" if self.rate else "at full speed"
        amount = "without end" if self.rows is None else f"{self.rows} rows"
        lines = [f"{amount}, {speed}, {self.step_us:g} µs of event time a row"]
        if self.key is not None:
            skew = f" (exponent {self.skew:g})" if self.keys_of == "zipf" else ""
            lines.append(f"{self.key}: {self.key_max} keys, {self.keys_of}{skew}")
        return lines


class RowFactory:
    """The rows of a plan as a function of their number; event times count from 0."""

    def __init__(self, plan: GeneratorPlan) -> None:
        self._plan = plan
        self._zipf = Zipf(plan.key_max, plan.skew) if plan.keys_of == "zipf" else None
        self._stream = zlib.crc32(plan.stream.encode())

    def time_us(self, row: int) -> int:
        """Event time of a row after the start."""
        return math.floor(row * self._plan.step_us)

    def block(self, number: int, start_us: int) -> Batch:
        """Block `number`: BLOCK_ROWS rows from row `number * BLOCK_ROWS` on."""
        rng = np.random.default_rng([self._plan.seed, self._stream, number])
        row = np.arange(number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS, dtype=np.int64)
        times = start_us + np.floor(row * self._plan.step_us).astype(np.int64)
        columns = []
        for f in self._plan.schema:
            if f.name == self._plan.time:
                columns.append(Column(times))
                continue
            valid = None
            if f.name == self._plan.key:
                column = _numbered(f, "k", self._keys(rng, row))
            else:
                column = _random(f, rng, times)
            if f.nullable:
                valid = (rng.random(BLOCK_ROWS) >= self._plan.nulls).astype(np.uint8)
            columns.append(Column(column.values, valid, column.offsets))
        return Batch(self._plan.schema, BLOCK_ROWS, tuple(columns))

    def _keys(self, rng: np.random.Generator, row: Ints) -> Ints:
        if self._zipf is not None:
            return self._zipf.draw(rng, row.size)
        if self._plan.keys_of == "sequential":
            sequential: Ints = row % self._plan.key_max
            return sequential
        uniform: Ints = rng.integers(0, self._plan.key_max, row.size)
        return uniform


class Zipf:
    """Draws ranks 0..size-1 with probability ∝ 1 / (rank + 1)^skew.

    The first 64 Ki ranks are exact; the sum of the tail is an integral between half ranks, whose
    relative error is below 1e-9.
    """

    def __init__(self, size: int, skew: float) -> None:
        self._size, self._skew = size, skew
        self._exact = min(size, _ZIPF_EXACT)
        self._sums = np.cumsum(np.arange(1, self._exact + 1, dtype=np.float64) ** -skew)
        self._edge = self._exact + 0.5
        self._tail = 0.0 if size == self._exact else self._integral(size + 0.5)

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """`count` ranks."""
        at = rng.random(count) * (self._sums[-1] + self._tail)
        ranks: Ints = np.searchsorted(self._sums, at, side="right").astype(np.int64)
        behind = at >= self._sums[-1]
        if behind.any():
            tail = np.rint(self._inverse(at[behind] - self._sums[-1])).astype(np.int64) - 1
            ranks[behind] = np.clip(tail, 0, self._size - 1)
        return ranks

    def _integral(self, to: float) -> float:
        if abs(self._skew - 1) < 1e-9:
            return math.log(to / self._edge)
        power = 1 - self._skew
        return float((to**power - self._edge**power) / power)

    def _inverse(self, area: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if abs(self._skew - 1) < 1e-9:
            return self._edge * np.exp(area)
        power = 1 - self._skew
        return np.asarray((self._edge**power + area * power) ** (1 / power))


class GeneratorSource(Source):
    """A running generator."""

    gauges = frozenset({"rows_done", "rows_total"})

    def __init__(self, plan: GeneratorPlan, staging: Staging) -> None:
        self._plan, self._staging = plan, staging
        self._rows = RowFactory(plan)
        self._timer = TimerFd()
        self._producer = 0
        self._next = 0
        self._first = 0
        self._start_us = plan.start_us
        self._began_us: int | None = None
        self._block: tuple[int, Batch] | None = None
        self._more = False

    def start(self) -> None:
        """Continue after the last committed row."""
        producers = self._staging.producers
        self._producer = producers.number(f"generator:{self._plan.stream}")
        self._first = self._next = int(producers.seq[self._producer])
        latest = int(producers.latest_us[self._producer])
        if self._start_us is None and self._next and latest != WATERMARK_MIN_US:
            self._start_us = latest - self._rows.time_us(self._next - 1)
        self._timer.arm(0)

    def fileno(self) -> int:
        """Readable when the next row is due."""
        return self._timer.fileno()

    def due_us(self) -> int | None:
        """When the next row is due."""
        return self._timer.due_us

    def ingest(self, monotonic_us: int, wall_us: int) -> None:
        """Stage due rows, up to the high watermark."""
        if self._began_us is None:
            self._began_us = monotonic_us
        if self._start_us is None:
            self._start_us = wall_us
        due = self._due(monotonic_us)
        self._more = False
        while self._next < due:
            room = self._staging.room()
            if room <= 0:
                self._more = True
                break
            self._stage(due, room, monotonic_us, wall_us)
        self._arm()

    def more(self) -> bool:
        """Whether due rows wait because staging was full."""
        return self._more and not self._staging.held

    def seal(self) -> Any:
        """No ticket: a generator needs no acknowledgement."""
        return None

    def committed(self, ticket: Any) -> None:
        """Nothing to do: the committed sequence number is in the beat's record."""

    def finished(self) -> bool:
        """Whether all `rows` are staged."""
        return self._plan.rows is not None and self._next >= self._plan.rows

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()

    def counters(self) -> Mapping[str, int | float]:
        """Rows made since the start; with an end also how far it is."""
        made = {"rows": self._next - self._first}
        if self._plan.rows is None:
            return made
        return {**made, "rows_done": self._next, "rows_total": self._plan.rows}

    def _due(self, monotonic_us: int) -> int:
        """Number of the first row that is not due yet."""
        assert self._began_us is not None
        end = 2**62 if self._plan.rows is None else self._plan.rows
        if not self._plan.rate:
            return end
        passed = math.floor((monotonic_us - self._began_us) * self._plan.rate / 1e6)
        return min(end, self._first + passed + 1)

    def _stage(self, due: int, room: int, monotonic_us: int, wall_us: int) -> None:
        number, at = divmod(self._next, BLOCK_ROWS)
        if self._block is None or self._block[0] != number:
            assert self._start_us is not None
            self._block = (number, self._rows.block(number, self._start_us))
        block = self._block[1]
        fit = max(1, room * BLOCK_ROWS // max(1, block.nbytes()))
        count = min(due - self._next, BLOCK_ROWS - at, fit)
        self._staging.append(block.slice(at, at + count), self._producer, wall_us)
        self._next += count
        producers = self._staging.producers
        producers.seq[self._producer], producers.ended[self._producer] = self._next, 0
        producers.seen_us[self._producer] = monotonic_us

    def _arm(self) -> None:
        if self.finished():
            self._staging.producers.ended[self._producer] = 1
            self._timer.disarm()
        elif self._more:
            self._timer.disarm()
        elif not self._plan.rate:
            self._timer.arm(0)
        else:
            assert self._began_us is not None
            wait_us = (self._next - self._first) * 1e6 / self._plan.rate
            self._timer.arm(self._began_us + math.ceil(wait_us))


def _random(f: Field, rng: np.random.Generator, times: Ints) -> Column:
    if f.dtype is BOOL:
        return Column(rng.integers(0, 2, times.size, np.uint8))
    if f.dtype is TIMESTAMP:
        return Column(times - rng.integers(0, 1_000_000, times.size))
    if f.dtype.floating:
        return Column(rng.random(times.size).astype(f.dtype.numpy))
    return _numbered(f, "v", rng.integers(0, 100, times.size))


def _numbered(f: Field, prefix: str, numbers: Ints) -> Column:
    """Numbers as a column: themselves, or as text after a prefix."""
    if not f.dtype.variable:
        return Column(numbers.astype(f.dtype.numpy))
    digits = np.char.mod(f"{prefix}%d", numbers).astype(np.bytes_)
    wide = digits.view(np.uint8).reshape(numbers.size, digits.itemsize)
    lengths = np.char.str_len(digits)
    used = np.arange(digits.itemsize) < lengths[:, None]
    offsets = np.zeros(numbers.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Column(wide[used], None, offsets)


def _key_column(path: str, document: Mapping[str, Any], stream: Any, key_max: int) -> str | None:
    if "key" not in document:
        return None
    name = doc.text(path, document, "key")
    where = doc.below(path, "key")
    if name not in stream.schema:
        advice = doc.did_you_mean(name, stream.schema.names)
        raise JobError(where, f"no column is called {name}", advice)
    dtype = stream.schema.field(name).dtype
    if dtype in (BOOL, TIMESTAMP):
        raise JobError(where, f"{name} is {dtype}", "keys are numbers, string or binary")
    if dtype.integer and key_max - 1 > np.iinfo(dtype.numpy).max:
        raise JobError(f"{path}.key_max", f"{key_max} keys do not fit into {dtype}")
    return name


def _start(path: str, value: object) -> int | None:
    if value == "now":
        return None
    advice = 'now, or ISO 8601 such as "2024-01-01T00:00:00Z"'
    try:
        parsed = datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        raise JobError(path, f"{value!r} is not a time", advice) from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=datetime.timezone.utc)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return (parsed - epoch) // datetime.timedelta(microseconds=1)
