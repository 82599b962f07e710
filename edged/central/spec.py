"""The aggregation's document: its streams, its tables, and how partial results merge.

TOML or JSON, one shape:

    [streams]                        # temp view -> stream@version (or stream: the latest version)
    curve = "curve@1"

    [tables.power_curve]
    from = "curve"                   # one stream feeds one table
    mode = "merge"                   # or "changes", "append"
    sql = "SELECT turbine, count(*) AS n, min(p) AS p_min, … FROM curve GROUP BY turbine"
    keys = ["turbine"]
    view = "SELECT turbine, sqrt(p_m2 / (p_n - 1)) AS stddev FROM this"      # optional
    weight = "n"                     # optional: the sum that says how many rows a key stands for
    format = "parquet"               # of the published files: parquet (default), json, csv

    [tables.power_curve.merge]       # how two rows of one key become one
    n = "sum"                        # sum | count (adds counts) | min | max
    p_min = "min"
    power = { moments = ["p_n", "p_mean", "p_m2"] }     # count, mean, sum of squared deviations
    trend = { comoments = ["t_count", "t_mean_x", "t_mean_y", "t_m2_x", "t_m2_y", "t_m2_xy"] }
    p99_sketch = "quantiles"         # a sketch of `quantile`; "distinct": one of `approx_distinct`
    state = { last_by = "time" }     # the value at the largest `time`; or first_by, the smallest

`sql` is Spark SQL and runs over each micro-batch of the stream alone: it makes *partial* rows.  In
merge mode they are merged by `keys` into the table; every column of `sql`'s result is a key or is
named in `merge`.  In append mode `sql` runs as one streaming query and its rows are appended;
`watermark = { column = "time", delay = "1h" }` is required if `sql` aggregates.

With `weight` a key whose weight is 0 is not in the table: its rows were taken back.  All merge
functions must be `sum`, `count`, `moments` or `comoments` then, since others cannot take a row
back.  In changes mode a table is merged in the same way, and what is published are its changes,
batch by batch.

Every fault is a `JobError` with its dotted path.

msgspec is not used here: the readers of job documents give the same paths and suggestions, and the
remaining rules (merge functions, keys that cross tables) are most of this module either way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edged.central.tables import APPEND, MERGE, MODES
from edged.documents.reader import (
    choice,
    did_you_mean,
    duration,
    load_document,
    names,
    refuse_unknown,
    table,
    text,
)
from edged.errors import JobError

FORMATS = ("parquet", "json", "csv")
"""File formats of published tables; merged state is always Parquet."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_STREAM = re.compile(r"([a-z][a-z0-9_-]{0,62}|edged\.telemetry)(@[0-9]{1,9})?")
SKETCHES = ("quantiles", "distinct")
"""Merge functions of sketches."""
_SIMPLE = ("sum", "count", "min", "max", *SKETCHES)
_MOMENTS = {
    "moments": (3, "the columns of count, mean and sum of squared deviations"),
    "comoments": (6, "the columns of count, mean_x, mean_y, m2_x, m2_y and m2_xy"),
}
"""Number of the columns, and what they are."""
_ORDERED = ("last_by", "first_by")


@dataclass(frozen=True, slots=True)
class Merge:
    """How one column (or those of `moments`) of two rows with one key becomes one."""

    function: str
    """sum | min | max | quantiles | distinct | moments | comoments | last_by | first_by."""
    columns: tuple[str, ...]
    """Its input and output columns: one, or (count, mean, m2) of `moments`, six of `comoments`."""
    by: str = ""
    """The ordering column of `last_by` and `first_by`."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of the output."""

    name: str
    source: str
    """The view in `streams` that feeds it."""
    mode: str
    sql: str
    keys: tuple[str, ...] = ()
    merge: tuple[Merge, ...] = ()
    view: str = ""
    format: str = "parquet"
    watermark: tuple[str, int] | None = None
    """(column, delay in microseconds)."""
    weight: str = ""
    """The column whose sum is a key's weight; empty: keys stay."""

    def fingerprint(self) -> dict[str, Any]:
        """The settings that merged state depends on: a table with other ones cannot be
        continued."""
        facts = {
            "mode": self.mode,
            "keys": list(self.keys),
            "merge": [[m.function, list(m.columns), m.by] for m in self.merge],
        }
        return {**facts, "weight": self.weight} if self.weight else facts


@dataclass(frozen=True, slots=True)
class Spec:
    """The whole document, checked."""

    streams: dict[str, str]
    tables: dict[str, TableSpec]


def load_spec(path: str | Path) -> Spec:
    """The spec in the file at `path`, TOML or JSON.  Raises JobError."""
    return parse_spec(load_document(path))


def parse_spec(document: Mapping[str, Any]) -> Spec:
    """Check `document` and return it as a Spec.  Raises JobError at the first fault."""
    refuse_unknown("", document, ("streams", "tables"))
    streams = table("", document, "streams")
    for name in streams:
        _is_name(f"streams.{name}", name)
        stream = text("streams", streams, name)
        if not _STREAM.fullmatch(stream):
            raise JobError(f"streams.{name}", f"{stream!r} is not a stream", 'like "curve@1"')
    bodies = table("", document, "tables")
    if not bodies:
        raise JobError("tables", "there is no table", "name at least one")
    parsed = {
        name: _parse_table(f"tables.{name}", name, table("tables", bodies, name), streams)
        for name in bodies
    }
    return Spec(dict(streams), parsed)


def _parse_table(
    path: str, name: str, body: Mapping[str, Any], streams: dict[str, str]
) -> TableSpec:
    _is_name(path, name)
    mode = choice(path, body, "mode", MODES, MERGE)
    own = ("watermark",) if mode == APPEND else ("keys", "merge", "view", "weight")
    refuse_unknown(path, body, ("from", "mode", "sql", "format", *own))
    source = text(path, body, "from")
    if source not in streams:
        raise JobError(
            f"{path}.from", f"there is no stream {source!r}", did_you_mean(source, streams)
        )
    sql = text(path, body, "sql")
    kind = choice(path, body, "format", FORMATS, "parquet")
    if mode == APPEND:
        watermark = _watermark(path, body) if "watermark" in body else None
        return TableSpec(name, source, mode, sql, format=kind, watermark=watermark)
    keys = names(path, body, "keys")
    merge = _merges(f"{path}.merge", table(path, body, "merge"), keys)
    view = text(path, body, "view", "")
    weight = text(path, body, "weight", "")
    if weight:
        _check_weight(path, weight, merge)
    return TableSpec(name, source, mode, sql, keys, merge, view, kind, weight=weight)


def _check_weight(path: str, weight: str, merges: tuple[Merge, ...]) -> None:
    if not any(m.columns == (weight,) and m.function == "sum" for m in merges):
        raise JobError(f"{path}.weight", f"{weight} is not merged", f'add {weight} = "sum"')
    for merge in merges:
        if merge.function not in ("sum", *_MOMENTS):
            raise JobError(
                f"{path}.merge.{merge.columns[0]}",
                f"{merge.function} cannot take a row back, and the table has a weight",
                "sum, count, moments and comoments can",
            )


def _merges(path: str, body: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Merge, ...]:
    merges = tuple(_parse_merge(path, label, how) for label, how in body.items())
    owner: dict[str, str] = dict.fromkeys(keys, "keys")
    for merge, label in zip(merges, body, strict=True):
        for column in merge.columns:
            if column in owner:
                raise JobError(f"{path}.{label}", f"column {column!r} is in {owner[column]} too")
            owner[column] = f"merge.{label}"
        wanted = "max" if merge.function == "last_by" else "min"
        if merge.by and not any(m.columns == (merge.by,) and m.function == wanted for m in merges):
            advice = f'add {merge.by} = "{wanted}"'
            raise JobError(f"{path}.{label}", f"column {merge.by!r} must be merged too", advice)
    return merges


def _parse_merge(path: str, label: str, how: Any) -> Merge:
    if isinstance(how, str) and how in _SIMPLE:
        return Merge("sum" if how == "count" else how, (label,))
    if isinstance(how, Mapping) and len(how) == 1:
        function = next(iter(how))
        if function in _MOMENTS:
            columns, (count, advice) = names(f"{path}.{label}", how, function), _MOMENTS[function]
            if len(columns) == count:
                return Merge(function, columns)
            raise JobError(f"{path}.{label}.{function}", f"needs {count} columns", advice)
        if function in _ORDERED:
            return Merge(function, (label,), text(f"{path}.{label}", how, function))
    simple = ", ".join(f'"{f}"' for f in _SIMPLE)
    advice = f'one of {simple}, {{ moments = ["n", "mean", "m2"] }}, {{ last_by = "time" }}'
    raise JobError(f"{path}.{label}", f"{how!r} is not a merge", advice)


def _watermark(path: str, body: Mapping[str, Any]) -> tuple[str, int]:
    mark = table(path, body, "watermark")
    path = f"{path}.watermark"
    refuse_unknown(path, mark, ("column", "delay"))
    return text(path, mark, "column"), duration(path, mark, "delay")


def _is_name(path: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise JobError(path, f"{name!r} is not a name", "a to z, 0 to 9 and _, at most 63")
