"""Debezium's change events: lines of JSON become rows with weights, without Python per row.

    {"op": "u", "before": {"id": 7, "kw": 1.5}, "after": {"id": 7, "kw": 2.0}, "source": {…}}

An event is an envelope as above, or one below `payload`, as converters with schemas write it.

    op    event                   rows
    c r   insert, snapshot        `after` with weight 1
    u     update                  `before` with weight -1, then `after` with weight 1
    d     delete                  `before` with weight -1

Where a table's key is given, the rows are named by it, and events need no whole old rows, as
PostgreSQL sends them by default:

    c r   insert, snapshot        `after` with weight 1, in place of the row of its key
    u     update                  the same; where `before` is there and has another key, before it
                                  `before` with weight -1
    d     delete                  `before` with weight -1; only its key counts

Rows come in the order of events.  A line `null` (a tombstone) and blank lines are skipped; keys
that no column names are ignored.  `source.snapshot` of `last` says that the event is the last of
the table's first population.

A column is taken from the key of its name, or of the given one.  Timestamps are microseconds, or
text in ISO 8601.  Numbers in text (`decimal.handling.mode = "string"`) are not taken, nor is binary
data, which is base64.

Everything else is an error that names the line: text that is no JSON or is cut off, an unknown op,
truncation (`t`), a missing `before` or `after`, a value of another type, a null or a missing key in
a column that is not nullable; by key the latter counts for the key in `before`, and for the whole
of `after`.  PostgreSQL writes whole old rows with `REPLICA IDENTITY FULL`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from edged.data.schema import TIMESTAMP, WEIGHT_COLUMN, Field, Schema

OPS = ("c", "r", "u", "d")
_SNIFFED = 200
"""Lines that are searched for a first value of a timestamp."""
_TOMBSTONE = re.compile(rb"(?m)^[ \t]*null[ \t\r]*$")
_NO_OBJECT = re.compile(rb"(?m)^[ \t\r]*[^ \t\r\n{]")
_LAST = re.compile(rb'"snapshot"\s*:\s*"last"')
Ints = npt.NDArray[np.int64]


class EventError(ValueError):
    """An event that cannot be taken; `line` counts from 1 in the block."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line, self.problem = line, problem


@dataclass(frozen=True, slots=True)
class DebeziumRows:
    """The rows of a block of events, under the decoder's schema."""

    rows: pa.RecordBatch
    populated: bool
    """Whether one of the events is the last of the table's snapshot."""


class DebeziumDecoder:
    """Decodes blocks of whole lines."""

    def __init__(
        self,
        schema: Schema,
        names: Mapping[str, str] | None = None,
        key: Sequence[str] = (),
    ) -> None:
        """`schema` has WEIGHT_COLUMN; `names` maps columns to keys of a row where they differ.
        `key` holds the columns that name a row; none: whole old rows do."""
        self._schema, self._by = schema, frozenset(key)
        self._keys = {f.name: (names or {}).get(f.name, f.name) for f in schema}

    def decode(self, block: bytes) -> DebeziumRows:
        """The rows of the lines of `block`.  Raises EventError."""
        if b"null" in block:
            block = _TOMBSTONE.sub(b"", block)
        if not block.strip():
            empty = self._schema.to_arrow().empty_table().combine_chunks()
            return DebeziumRows(_only_batch(empty), False)
        lines = _Lines(block)
        events = self._parsed(lines, self._text_timestamps(lines))
        before, after, op = (_part(events, name) for name in ("before", "after", "op"))
        codes = _codes(op, lines)
        taken = codes >= OPS.index("d" if self._by else "u")
        if self._by:
            taken |= (codes == OPS.index("u")) & self._moved(before, after)
        places = _Places.of(codes, taken, before, after, lines)
        arrays = []
        for f in self._schema:
            if f.name == WEIGHT_COLUMN:
                arrays.append(pa.array(places.weights))
                continue
            key = self._keys[f.name]
            both = pa.concat_arrays([pc.struct_field(before, key), pc.struct_field(after, key)])
            values = both.take(places.rows)
            if self._by and f.name not in self._by and not f.nullable:
                values = _filled(f, values, places.weights < 0)
            arrays.append(_column(f, values, places, lines))
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema.to_arrow())
        return DebeziumRows(rows, bool(_LAST.search(block)) and _is_last(lines))

    def _parsed(self, lines: _Lines, texts: set[str]) -> pa.Table:
        """The envelopes of the lines, one each."""
        row = pa.struct(
            [
                pa.field(self._keys[f.name], _json_type(f, f.name in texts))
                for f in self._schema
                if f.name != WEIGHT_COLUMN
            ]
        )
        envelope = [("before", row), ("after", row), ("op", pa.string())]
        parse = pa.json.ParseOptions(
            explicit_schema=pa.schema([*envelope, ("payload", pa.struct(envelope))]),
            unexpected_field_behavior="ignore",
        )

        def read(first: int, stop: int) -> pa.Table:
            block = lines.text(first, stop)
            size = pa.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
            block.decode()
            found = pa.json.read_json(pa.BufferReader(block), size, parse)
            if found.num_rows != stop - first:
                raise ValueError("one event a line is expected")
            return found.combine_chunks()

        return _attempt(read, len(lines), lines.number)

    def _moved(self, before: pa.Array, after: pa.Array) -> npt.NDArray[np.bool_]:
        """The events with an old row whose key is not the new one's."""
        moved = np.zeros(len(before), np.bool_)
        for name in self._by:
            old, new = (pc.struct_field(part, self._keys[name]) for part in (before, after))
            moved |= np.asarray(pc.fill_null(pc.not_equal(old, new), True))
        moved &= np.asarray(before.is_valid())
        return moved

    def _text_timestamps(self, lines: _Lines) -> set[str]:
        """The timestamp columns whose first value is text."""
        wanted = {f.name for f in self._schema if f.dtype is TIMESTAMP}
        texts: set[str] = set()
        for i in range(min(len(lines), _SNIFFED)):
            if not wanted:
                break
            event = _json(lines.text(i, i + 1))
            rows = [event[part] for part in ("after", "before") if part in event]
            for row in rows:
                values = row if isinstance(row, dict) else {}
                there = {n for n in wanted if values.get(self._keys[n]) is not None}
                texts |= {n for n in there if isinstance(values[self._keys[n]], str)}
                wanted -= there
        return texts


class _Lines:
    """The lines of a block that are not blank."""

    def __init__(self, block: bytes) -> None:
        if wrong := _NO_OBJECT.search(block):  # pyarrow ends the process for some of them
            raise EventError(block.count(b"\n", 0, wrong.end()) + 1, "is no object of JSON")
        self._block = block
        data = np.frombuffer(block, np.uint8)
        ends = np.append(np.flatnonzero(data == ord("\n")), data.size)
        starts = np.append(0, ends[:-1] + 1)
        there = ends > starts
        for i in np.flatnonzero(there & (data[np.minimum(starts, data.size - 1)] != ord("{"))):
            there[i] = bool(block[int(starts[i]) : int(ends[i])].strip())
        self._numbers: Ints = np.flatnonzero(there) + 1
        self._starts, self._ends = starts[there], ends[there]

    def __len__(self) -> int:
        return int(self._numbers.size)

    def number(self, i: int) -> int:
        """The number of a line in the block, from 1."""
        return int(self._numbers[i])

    def text(self, first: int, stop: int) -> bytes:
        """The lines from `first` to before `stop`."""
        return self._block[int(self._starts[first]) : int(self._ends[stop - 1])]


@dataclass(frozen=True, slots=True)
class _Places:
    """Where each row comes from."""

    rows: Ints
    """The row's number in the old rows of all events and, behind them, the new ones."""
    weights: npt.NDArray[np.int32]
    event: Ints

    @classmethod
    def of(
        cls,
        codes: Ints,
        taken: npt.NDArray[np.bool_],
        before: pa.Array,
        after: pa.Array,
        lines: _Lines,
    ) -> _Places:
        """The rows of events with these ops, of which some take an old row.  Raises EventError
        where a part is missing."""
        count = codes.size
        given = codes <= OPS.index("u")
        for name, needed, part in (("before", taken, before), ("after", given, after)):
            missing = needed & ~np.asarray(part.is_valid())
            if missing.any():
                i = int(np.argmax(missing))
                raise EventError(lines.number(i), f"op {OPS[codes[i]]} has no {name}")
        starts = np.cumsum(taken.astype(np.int64) + given)
        total = int(starts[-1])
        starts = np.append(0, starts[:-1])
        rows, weights = np.empty(total, np.int64), np.empty(total, np.int32)
        event = np.empty(total, np.int64)
        for chosen, at, shift, weight in (
            (taken, starts, 0, -1),
            (given, starts + taken, count, 1),
        ):
            which = np.flatnonzero(chosen)
            to = at[which]
            rows[to], weights[to], event[to] = which + shift, weight, which
        return cls(rows, weights, event)


def _codes(op: pa.Array, lines: _Lines) -> Ints:
    """The place of each op in OPS."""
    codes = pc.fill_null(pc.index_in(op, value_set=pa.array(OPS)), -1)
    found: Ints = np.asarray(codes).astype(np.int64)
    if (found < 0).any():
        i = int(np.argmax(found < 0))
        word = op[i].as_py()
        problem = f"op {word!r} is none of {', '.join(OPS)}"
        if word is None:
            problem = "has no op; an envelope of Debezium has op, before and after"
        elif word == "t":
            problem = "op t truncates the table, which no row can say"
        raise EventError(lines.number(i), problem)
    return found


def _part(events: pa.Table, name: str) -> pa.Array:
    """A part of the envelopes, at the top or below `payload`."""
    top, payload = _only(events.column(name)), _only(events.column("payload"))
    if payload.null_count == len(payload):
        return top
    inner, count = pc.struct_field(payload, name), len(payload)
    if not payload.null_count:
        return inner
    below = np.asarray(payload.is_valid())
    return pa.concat_arrays([top, inner]).take(pa.array(np.arange(count) + count * below))


def _column(f: Field, values: pa.Array, places: _Places, lines: _Lines) -> pa.Array:
    if f.dtype is TIMESTAMP:
        values = _attempt(
            lambda first, stop: _timestamps(values.slice(first, stop - first)),
            len(values),
            lambda i: lines.number(int(places.event[i])),
        )
    if values.null_count and not f.nullable:
        i = int(np.argmin(np.asarray(values.is_valid())))
        part = "before" if places.weights[i] < 0 else "after"
        raise EventError(lines.number(int(places.event[i])), f"{part} has no {f.name}")
    return values


def _filled(f: Field, values: pa.Array, rows: npt.NDArray[np.bool_]) -> pa.Array:
    """The values, with 0 or empty text in place of nulls in some rows, whose values do not
    count."""
    missing = rows & np.asarray(values.is_null())
    if not missing.any():
        return values
    zero = pa.scalar(0).cast(values.type)
    if pa.types.is_string(values.type):
        zero = pa.scalar("1970-01-01T00:00:00Z" if f.dtype is TIMESTAMP else "")
    return pc.if_else(pa.array(missing), zero, values)


def _timestamps(values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type):
        try:
            return values.cast(TIMESTAMP.arrow)
        except pa.ArrowInvalid:
            return values.cast(pa.timestamp("us")).cast(TIMESTAMP.arrow)
    return values.cast(TIMESTAMP.arrow)


def _attempt(call: Callable[[int, int], Any], count: int, line: Callable[[int], int]) -> Any:
    """`call(0, count)`; where it fails, the first item at fault is found and named by its line."""
    try:
        return call(0, count)
    except ValueError as problem:
        first, stop, text = 0, count, str(problem)
    while stop - first > 1:
        middle = (first + stop) // 2
        try:
            call(first, middle)
            first = middle
        except ValueError:
            stop = middle
    try:
        call(first, stop)
    except ValueError as problem:
        text = str(problem)
    raise EventError(line(first), text.removesuffix(" in row 0").removesuffix("."))


def _is_last(lines: _Lines) -> bool:
    """Whether an event is the last of a snapshot; text of a row may look like it."""
    for i in range(len(lines)):
        text = lines.text(i, i + 1)
        if _LAST.search(text):
            source = _json(text).get("source")
            if isinstance(source, dict) and source.get("snapshot") == "last":
                return True
    return False


def _json(line: bytes) -> dict[str, Any]:
    """The envelope of a line, empty where it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    event: dict[str, Any] = found if isinstance(found, dict) else {}
    payload = event.get("payload")
    return payload if isinstance(payload, dict) else event


def _json_type(f: Field, is_text: bool) -> pa.DataType:
    if f.dtype is TIMESTAMP:
        return pa.string() if is_text else pa.int64()
    return f.dtype.arrow


def _only(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _only_batch(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_only(c) for c in table.columns], schema=table.schema)
