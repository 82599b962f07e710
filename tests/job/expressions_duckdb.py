"""Expressions evaluated by edged and by a real DuckDB over the same rows, side by side."""

from __future__ import annotations

import math
import re
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from edged.data.columns import Batch
from edged.data.schema import TYPES, Field, Schema
from edged.data.workers import Workers
from edged.errors import ExpressionError
from edged.expressions import tree
from edged.expressions.program import Projection

INTEGERS = {
    f"{u}int{bits}": (0 if u else -(1 << (bits - 1)), (1 << (bits if u else bits - 1)) - 1)
    for u in ("", "u")
    for bits in (8, 16, 32, 64)
}
Answer = tuple[str, list[Any]]
"""The type and the values of an expression."""
needs_duckdb_2 = pytest.mark.skipif(
    duckdb.__version__.startswith("1."),
    reason="the dialect is DuckDB 2's; the last release for Python 3.10 is 1.5",
)
SHORT = {"i": "int", "u": "uint"}
FLOATS = [0.0, -0.0, 1.0, -1.5, 2.5, 0.1, -7.25, 100.0, 1e10, -1e18, 9.3e18, 1.9e19, 3.4e38, 1e300]
FLOATS += [math.nan, math.inf, -math.inf, 5e-324, 0.49999999999999994, 127.5, -128.5, 255.49]
TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "abc",
    "Ab",
    "é",
    "éa",
    "aé",
    "日本",
    "日本語",
    "😀",
    "a%b",
    "_",
    "a b",
    " a ",
]
TIMES = [
    "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2020-02-29 12:34:56.789012",
    "2019-12-30 00:00:00", "2021-01-03 23:59:59", "2000-01-03 00:00:00", "1999-12-31 10:11:12",
    "1600-03-01 01:02:03", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999",
    "2024-05-31 00:00:00", "2100-02-28 06:00:00",
]  # fmt: skip

SCHEMA = Schema.of(
    [
        *(Field(n.replace("uint", "u").replace("int", "i"), TYPES[n], True) for n in INTEGERS),
        Field("f32", TYPES["float32"], True),
        Field("f64", TYPES["float64"], True),
        Field("b", TYPES["bool"], True),
        Field("s", TYPES["string"], True),
        Field("ts", TYPES["timestamp"], True),
        Field("k", TYPES["int32"], False),
        Field("x", TYPES["float64"], False),
        Field("w", TYPES["string"], False),
        Field("t", TYPES["timestamp"], False),
    ]
)


def rows(seed: int, count: int) -> Batch:
    """`count` rows of edge values and small ones, a sixth of them null."""
    rng = np.random.default_rng(seed)
    arrays = [_array(rng, f, count) for f in SCHEMA]
    return Batch.from_arrow(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.to_arrow()), SCHEMA)


def _array(rng: np.random.Generator, field: Field, count: int) -> pa.Array:
    values = [_value(rng, field.dtype.name) for _ in range(count)]
    if field.nullable:
        values = [None if rng.random() < 1 / 6 else v for v in values]
    if field.dtype.name == "timestamp":
        return pa.array(values, pa.int64()).cast(field.dtype.arrow)
    return pa.array(values, field.dtype.arrow)


def _value(rng: np.random.Generator, name: str):
    if name in INTEGERS:
        low, high = INTEGERS[name]
        edges = [low, low + 1, high, high - 1, 0, 1, 2, 5]
        some = int(rng.choice([-3, -1, 0, 1, 2, 3, 7, 10, 60, 100]))
        return edges[rng.integers(len(edges))] if rng.random() < 0.4 else max(some, low)
    if name.startswith("float"):
        value = FLOATS[rng.integers(len(FLOATS))]
        value = value if rng.random() < 0.6 else float(np.round(rng.normal() * 10, 2))
        return (
            float(np.float32(min(value, 3e38) if value == value else value))
            if "32" in name
            else value
        )
    if name == "bool":
        return bool(rng.integers(2))
    if name == "timestamp":
        text = TIMES[rng.integers(len(TIMES))]
        return int(np.datetime64(text.replace(" ", "T"), "us").astype(np.int64))
    return TEXTS[rng.integers(len(TEXTS))]


def connect(batch: Batch) -> duckdb.DuckDBPyConnection:
    """A DuckDB with the batch as table `t`, its rows in order, no rewriting of expressions."""
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("PRAGMA disable_optimizer")
    source = batch.to_arrow()
    naive = [
        c.cast(pa.timestamp("us")) if pa.types.is_timestamp(c.type) else c for c in source.columns
    ]
    table = pa.table(naive, names=source.schema.names)
    connection.register("source", table)
    connection.execute("CREATE TABLE t AS SELECT * FROM source")
    return connection


def duckdb_type(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The type DuckDB gives the expression, DECIMALs without their size."""
    [(name,)] = connection.execute(f"SELECT typeof({sql}) FROM t LIMIT 1").fetchall()
    return re.sub(r"\(.*", "", name)


def bind(sql: str) -> tree.Node | None:
    """edged's typed tree, or None where edged refuses the expression."""
    try:
        return Projection.of("c", {"c": sql}, SCHEMA).trees[0]
    except ExpressionError:
        return None


def compare(batch: Batch, connection: duckdb.DuckDBPyConnection, expressions: list[str]) -> None:
    """Assert that both give the same type, and for every row the same value or an error."""
    assert differences(batch, connection, expressions) == []


def differences(
    batch: Batch, connection: duckdb.DuckDBPyConnection, expressions: list[str]
) -> list[str]:
    """The expressions that differ in their type, or in the value or error of a row, and how."""
    tried = {f"c{i}": f"TRY({sql})" for i, sql in enumerate(expressions)}
    plan = Projection.of("c", tried, batch.schema)
    ours = plan.build(child=False).project(batch, Workers(1)).to_arrow()
    wanted = answered(connection, expressions)
    found = []
    for i, sql in enumerate(expressions):
        mine = (plan.trees[i].type.name, plain(ours.column(i)))
        if (problem := difference(batch, sql, mine, wanted[i])) is not None:
            found.append(problem)
    return found


def evaluated(batch: Batch, sql: str) -> Answer | None:
    """edged's type and values, NULL where a row is in error; None where it refuses."""
    try:
        plan = Projection.of("c", {"c": f"TRY({sql})"}, batch.schema)
    except ExpressionError:
        return None
    made = plan.build(child=False).project(batch, Workers(1)).to_arrow()
    return plan.trees[0].type.name, plain(made.column(0))


def answered(connection: duckdb.DuckDBPyConnection, expressions: list[str]) -> list[Answer]:
    """DuckDB's types and values, NULL where a row is in error."""
    columns = ", ".join(f"TRY({sql}) AS c{i}" for i, sql in enumerate(expressions))
    relation = connection.sql(f"SELECT {columns} FROM t")
    kinds = [re.sub(r"\(.*", "", str(kind)) for kind in relation.types]
    values = relation.to_arrow_table().columns
    return [(kind, plain(column)) for kind, column in zip(kinds, values, strict=True)]


def difference(batch: Batch, sql: str, mine: Answer, wanted: Answer) -> str | None:
    """What differs between two answers; None: nothing."""
    kind = wanted[0]
    if mine[0] != kind:
        return f"{sql}: {mine[0]} is {kind} in DuckDB"
    pairs = enumerate(zip(mine[1], wanted[1], strict=True))
    for row, (a, b) in pairs:
        if not same(a, b, kind):
            where = batch.slice(row, row + 1).to_arrow().to_pylist()
            return f"{a!r} is {b!r} in DuckDB: {sql}: row {row}: {where}"
    return None


def plain(array) -> list:
    """Python values: timestamps as µs, decimals as float."""
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64()).to_pylist()
    if pa.types.is_decimal(array.type):
        return [None if v is None else float(v) for v in array.to_pylist()]
    return array.to_pylist()


def same(a, b, kind: str) -> bool:
    """Equal: NaN equals itself, doubles to 1e-12 relative, FLOAT to 1e-6."""
    if a is None or b is None or not isinstance(b, float):
        return a == b
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
        return a == b or (math.isnan(a) and math.isnan(b))
    bound = 1e-6 if kind == "FLOAT" else 1e-12
    return math.isclose(a, b, rel_tol=bound, abs_tol=1e-300)
