"""PostgreSQL's logical replication messages (`pgoutput`, version 1) as rows with weights.

    insert     the new row with weight 1
    update     the old row with weight -1, then the new one with weight 1
    delete     the old row with weight -1

Where the table's key is given, rows are named by it: an update gives its old row only where its key
has changed, and columns of old rows that are not of the key are empty.  Without a key the server
must send whole old rows (`REPLICA IDENTITY FULL`).

Values arrive as text and are converted exactly or not at all.  A batch is decoded column by column:
the loops over its rows are numpy's.  For changes of four columns and 53 bytes, beside other work,
that took 0.6 µs of CPU time a row, and the loop over messages before it 0.3 µs of Python without
psycopg2, which hands over one message a call.

Reference: PostgreSQL 15, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from edged.data.schema import BINARY, STRING, TIMESTAMP, WEIGHT_COLUMN, Field, Schema

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

TYPE_NAMES = {
    16: "boolean", 17: "bytea", 20: "bigint", 21: "smallint", 23: "integer", 26: "oid",
    700: "real", 701: "double precision", 1082: "date", 1114: "timestamp", 1184: "timestamptz",
    1700: "numeric",
}  # fmt: skip
"""Types by oid that fill a column which is no string; pg_type.dat."""
_INTEGERS, _FLOATS, _TIMES = (20, 21, 23, 26), (700, 701, 1700), (1082, 1114, 1184)
FULL = "f"
"""The replica identity of whole old rows."""
_HEAD = 6
"""Bytes of a message of a row before its first tuple: kind, relation, and the tuple's mark."""
_PADDING = bytes(8)
_HEX = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


class ReplicationError(Exception):
    """Changes that cannot be taken, however often they are read; says what to do."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the server describes it before its rows: `R`."""

    id: int
    name: str
    """With its schema."""
    identity: str
    """The replica identity: FULL, or another."""
    columns: tuple[tuple[str, int, bool], ...]
    """Name, oid of the type, and whether old rows have it."""

    @classmethod
    def read(cls, message: bytes) -> Relation:
        """The relation of a message `R`."""
        (id,) = struct.unpack_from(">I", message, 1)
        space, at = _text(message, 5)
        name, at = _text(message, at)
        identity = chr(message[at])
        (count,) = struct.unpack_from(">H", message, at + 1)
        at += 3
        columns = []
        for _ in range(count):
            key = bool(message[at] & 1)
            column, at = _text(message, at + 1)
            (oid,) = struct.unpack_from(">I", message, at)
            columns.append((column, oid, key))
            at += 8
        return cls(id, f"{space or 'pg_catalog'}.{name}", identity, tuple(columns))


class Converter:
    """Converts text of the server into the columns of a schema with WEIGHT_COLUMN."""

    def __init__(self, schema: Schema, names: Mapping[str, str], key: Sequence[str]) -> None:
        """`names` maps columns to those of the table where they differ; `key` is empty where whole
        rows are named."""
        self.schema, self.key = schema, frozenset(key)
        self.names = {f.name: names.get(f.name, f.name) for f in schema if f.name != WEIGHT_COLUMN}

    def check(self, table: str, types: Mapping[str, tuple[int, str]]) -> None:
        """Raise ReplicationError where the table's columns, oid and name of the type by name, do
        not fill the schema's."""
        for f in self.schema:
            if f.name == WEIGHT_COLUMN:
                continue
            name = self.names[f.name]
            if name not in types:
                have = ", ".join(types)
                raise ReplicationError(f"{table} has no column {name}; it has {have}")
            oid, type = types[name]
            if not _fills(f, oid):
                raise ReplicationError(
                    f"{table}.{name} is {type}, which is no {f.dtype.name}; make the column of the"
                    " job a string, or give another type"
                )

    def batch(
        self, texts: Mapping[str, pa.Array], weights: npt.NDArray[np.int32]
    ) -> pa.RecordBatch:
        """Rows of these texts, by the table's names.  Raises ReplicationError."""
        arrays = []
        for f in self.schema:
            if f.name == WEIGHT_COLUMN:
                arrays.append(pa.array(weights))
                continue
            arrays.append(self._column(f, texts[self.names[f.name]], weights < 0))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.to_arrow())

    def none(self) -> pa.RecordBatch:
        """No row."""
        return pa.RecordBatch.from_pylist([], self.schema.to_arrow())

    def _column(self, f: Field, texts: pa.Array, old: npt.NDArray[np.bool_]) -> pa.Array:
        try:
            values = _converted(f, texts)
        except (pa.ArrowException, ValueError) as problem:
            raise ReplicationError(f"column {self.names[f.name]}: {problem}") from None
        if not values.null_count or f.nullable:
            return values
        missing = np.asarray(values.is_null())
        if self.key and f.name not in self.key:
            zero = pa.scalar("" if f.dtype is STRING else b"" if f.dtype is BINARY else 0)
            values = pc.if_else(pa.array(missing & old), zero.cast(values.type), values)
            missing &= ~old
        if missing.any():
            raise ReplicationError(
                f"column {self.names[f.name]} is null, and the job's {f.name} cannot be: add a ? to"
                " its type"
            )
        return values


class RowChanges(NamedTuple):
    """Rows of some messages, and how many each message gives."""

    rows: pa.RecordBatch
    counts: Int64s


class RowDecoder:
    """Decodes messages `I`, `U` and `D` of one relation."""

    def __init__(self, relation: Relation, converter: Converter) -> None:
        """Raises ReplicationError where the relation does not fill the schema."""
        self.relation, self._converter = relation, converter
        kinds = {n: (oid, TYPE_NAMES.get(oid, f"of type {oid}")) for n, oid, _ in relation.columns}
        converter.check(relation.name, kinds)
        self._at = {name: i for i, (name, _, _) in enumerate(relation.columns)}
        self._key = [self._at[converter.names[name]] for name in sorted(converter.key)]
        self._names = list(dict.fromkeys(converter.names.values()))

    def decode(self, messages: Sequence[bytes]) -> RowChanges:
        """The rows of these messages.  Raises ReplicationError."""
        data, starts = _joined(messages)
        kind, mark = data[starts], data[starts + _HEAD - 1]
        has_old = (mark == ord("K")) | (mark == ord("O"))
        has_new = kind != ord("D")
        old = _Tuples.scan(data, starts + _HEAD, has_old, len(self._at))
        after = np.where(has_old, old.ends + 1, starts + _HEAD)
        new = _Tuples.scan(data, after, has_new, len(self._at))
        taken = self._taken(data, kind, mark, has_old & has_new, old, new)
        weights, which, is_old = _places(taken, has_new)
        texts = {}
        for name in self._names:
            texts[name] = self._texts(data, self._at[name], old, new, which, is_old, mark)
        counts = taken.astype(np.int64) + has_new
        return RowChanges(self._converter.batch(texts, weights), counts)

    def _taken(
        self,
        data: Bytes,
        kind: Bytes,
        mark: Bytes,
        both: npt.NDArray[np.bool_],
        old: _Tuples,
        new: _Tuples,
    ) -> npt.NDArray[np.bool_]:
        """The messages whose old row is taken back."""
        deletes: npt.NDArray[np.bool_] = kind == ord("D")
        if self._converter.key:
            self._check_identity(deletes | both)
            moved = np.zeros(kind.size, np.bool_)
            for i in self._key:
                a, b = old.texts(data, i, both), new.texts(data, i, both)
                moved[both] |= np.asarray(pc.fill_null(pc.not_equal(a, b), True))
            moved |= deletes
            return moved
        needed: npt.NDArray[np.bool_] = kind != ord("I")
        if (needed & (mark != ord("O"))).any():
            raise ReplicationError(
                f"an update or delete of {self.relation.name} has no whole old row: name the"
                f" table's key in the job, or ALTER TABLE {self.relation.name} REPLICA IDENTITY"
                " FULL"
            )
        return needed

    def _check_identity(self, needed: npt.NDArray[np.bool_]) -> None:
        """Raise ReplicationError where old rows lack a column of the key."""
        if not needed.any() or self.relation.identity == FULL:
            return
        for i in self._key:
            name, _, there = self.relation.columns[i]
            if not there:
                raise ReplicationError(
                    f"old rows of {self.relation.name} have no {name}, which is in the job's key:"
                    " name the columns of its primary key, or set REPLICA IDENTITY FULL"
                )

    def _texts(
        self,
        data: Bytes,
        i: int,
        old: _Tuples,
        new: _Tuples,
        which: Int64s,
        is_old: npt.NDArray[np.bool_],
        mark: Bytes,
    ) -> pa.Array:
        """The texts of a column, by row."""
        kept = ~is_old & (new.kinds[i][which] == ord("u"))
        if (kept & (mark[which] != ord("O"))).any():
            name = self.relation.columns[i][0]
            raise ReplicationError(
                f"{self.relation.name}.{name} holds a large value that an update leaves as it is,"
                f" and the server does not send it: ALTER TABLE {self.relation.name} REPLICA"
                f" IDENTITY FULL, or ALTER COLUMN {name} SET STORAGE MAIN"
            )
        from_old = is_old | kept
        starts = np.where(from_old, old.starts[i][which], new.starts[i][which])
        sizes = np.where(from_old, old.sizes[i][which], new.sizes[i][which])
        kinds = np.where(from_old, old.kinds[i][which], new.kinds[i][which])
        return _gathered(data, starts, sizes, kinds == ord("n"))


@dataclass(frozen=True, slots=True)
class _Tuples:
    """Where the columns of tuples lie: by column, an array over the messages."""

    kinds: list[Bytes]
    starts: list[Int64s]
    sizes: list[Int64s]
    ends: Int64s

    @classmethod
    def scan(cls, data: Bytes, at: Int64s, there: npt.NDArray[np.bool_], columns: int) -> _Tuples:
        """The tuples at `at`, of messages that have one; others have nulls."""
        kinds, starts, sizes = [], [], []
        at = np.where(there, at + 2, 0)  # the number of columns is the relation's
        for _ in range(columns):
            kind = np.where(there, data[at], ord("n")).astype(np.uint8)
            has = kind == ord("t")
            size = np.where(has, _uint32(data, at + 1), 0)
            kinds.append(kind)
            starts.append(at + 5)
            sizes.append(size)
            at = at + np.where(there, 1, 0) + np.where(has, 4 + size, 0)
        return cls(kinds, starts, sizes, at)

    def texts(self, data: Bytes, i: int, some: npt.NDArray[np.bool_]) -> pa.Array:
        """The texts of a column, of some messages."""
        null = self.kinds[i][some] == ord("n")
        return _gathered(data, self.starts[i][some], self.sizes[i][some], null)


def _joined(messages: Sequence[bytes]) -> tuple[Bytes, Int64s]:
    """The bytes of all messages, and where each begins."""
    sizes = np.fromiter(map(len, messages), np.int64, len(messages))
    starts = np.cumsum(sizes) - sizes
    return np.frombuffer(b"".join([*messages, _PADDING]), np.uint8), starts


def _places(
    taken: npt.NDArray[np.bool_], given: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], Int64s, npt.NDArray[np.bool_]]:
    """Weight, message, and whether it is the old one, of each row, in the order of messages."""
    both = np.stack([taken, given], 1).ravel()
    rows = np.flatnonzero(both)
    is_old = rows % 2 == 0
    return np.where(is_old, -1, 1).astype(np.int32), rows // 2, is_old


def _uint32(data: Bytes, at: Int64s) -> Int64s:
    """Big-endian numbers."""
    value = np.zeros(at.size, np.int64)
    for i in range(4):
        value = value << 8 | data[np.minimum(at + i, data.size - 1)]
    return value


def _gathered(data: Bytes, starts: Int64s, sizes: Int64s, null: npt.NDArray[np.bool_]) -> pa.Array:
    """Pieces of `data` as an array of text."""
    ends = np.cumsum(sizes)
    shift = np.repeat(starts - (ends - sizes), sizes)
    values = data[shift + np.arange(shift.size)]
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    valid = None
    if null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.string(), sizes.size, buffers)


def _fills(f: Field, oid: int) -> bool:
    """Whether a type of the server fills a column."""
    if f.dtype is STRING:
        return True
    if f.dtype is BINARY:
        return oid == 17
    if f.dtype is TIMESTAMP:
        return oid in _TIMES
    if f.dtype.name == "bool":
        return oid == 16
    return oid in (_FLOATS if f.dtype.floating else _INTEGERS)


def _converted(f: Field, texts: pa.Array) -> pa.Array:
    """Texts of the server in the column's type.  Raises ValueError."""
    if f.dtype is STRING:
        texts.validate(full=True)
        return texts
    if f.dtype is BINARY:
        return _unhexed(texts)
    if f.dtype is TIMESTAMP:
        return _timestamps(texts)
    if f.dtype.name == "bool":
        return pc.equal(texts, "t")
    return texts.cast(f.dtype.arrow)


def _timestamps(texts: pa.Array) -> pa.Array:
    """A type's texts have an offset, or none of them has: these are in UTC."""
    try:
        return texts.cast(TIMESTAMP.arrow)
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp("us")).cast(TIMESTAMP.arrow)


def _unhexed(texts: pa.Array) -> pa.Array:
    r"""Binary data of its text, `\x` and two digits a byte."""
    plain: Any = pc.fill_null(pc.utf8_slice_codeunits(texts, 2), "")
    offsets = np.frombuffer(plain.buffers()[1], np.int32)[: len(plain) + 1]
    digits = np.frombuffer(plain.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    nibbles = _HEX[digits]
    if (nibbles > 15).any() or digits.size % 2:
        raise ValueError("bytea is not in hexadecimal")
    values = nibbles[0::2] << 4 | nibbles[1::2]
    ends = pa.py_buffer(np.ascontiguousarray((offsets - offsets[0]) // 2, np.int32))
    made = pa.Array.from_buffers(pa.binary(), len(plain), [None, ends, pa.py_buffer(values)])
    return pc.if_else(texts.is_valid(), made, pa.scalar(None, pa.binary()))


def _text(message: bytes, at: int) -> tuple[str, int]:
    """A text that ends with a zero, and where the next thing begins."""
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1
