"""Merging of partial rows: for every merge function one Spark SQL expression over a key's rows.

`sum`, `min` and `max` are Spark's.  `last_by = "t"` is the value at the largest t, ties broken by
the larger value, so that the order of rows does not matter.  `moments` (n, mean, m2) follows Chan,
Golub and LeVeque (1979): for two groups with means a and b, and d = b - a,

    n = n_a + n_b        mean = a + d * n_b / n        m2 = m2_a + m2_b + d² * n_a * n_b / n

applied to the rows in sorted order, so that a repetition gives the same bits.  Groups of n = 0 are
ignored; if all are, mean and m2 are null.  m2 / (n - 1) is the sample variance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.central.spec import Merge, TableSpec
from edged.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_MOMENTS = """
aggregate(
  array_sort(filter(
    collect_list(named_struct(
      'n', cast({n} as bigint), 'mean', cast({mean} as double), 'm2', cast({m2} as double))),
    part -> part.n > 0)),
  named_struct('n', 0L, 'mean', 0.0D, 'm2', 0.0D),
  (a, b) -> named_struct(
    'n', a.n + b.n,
    'mean', a.mean + (b.mean - a.mean) * (cast(b.n as double) / (a.n + b.n)),
    'm2', a.m2 + b.m2
          + (b.mean - a.mean) * (b.mean - a.mean) * (cast(a.n as double) * b.n / (a.n + b.n))))
"""


def merged(rows: DataFrame, table: TableSpec) -> DataFrame:
    """`rows` merged to one row per key, with the columns of `columns_of(table)` in order."""
    from pyspark.sql.functions import expr

    whole = rows.groupBy(*(_quoted(k) for k in table.keys)).agg(
        *(expr(_aggregate(m)).alias(f"_{i}") for i, m in enumerate(table.merge))
    )
    columns = [expr(_quoted(k)).alias(k) for k in table.keys]
    for i, m in enumerate(table.merge):
        columns += [expr(e).alias(c) for e, c in zip(_parts(m, f"_{i}"), m.columns, strict=True)]
    return whole.select(*columns)


def columns_of(table: TableSpec) -> list[str]:
    """The merged table's columns, in order: the keys, then the columns of `merge`."""
    return [*table.keys, *(c for m in table.merge for c in m.columns)]


def state_schema(partial: DataFrame, table: TableSpec) -> StructType:
    """The columns and types of the merged state, from the (empty) result of the table's `sql`.

    They stay the same over repeated merges: sums of decimals get the widest decimal at once.
    Raises JobError if `sql` does not fit `keys` and `merge`.
    """
    from pyspark.sql.types import DecimalType, StructField, StructType

    _check_columns(partial.columns, table)
    summed = {m.columns[0] for m in table.merge if m.function == "sum"}
    fields = []
    for field in merged(partial, table).schema.fields:
        kind = field.dataType
        if isinstance(kind, DecimalType) and field.name in summed:
            kind = DecimalType(38, kind.scale)
        fields.append(StructField(field.name, kind, True))
    return StructType(fields)


def conform(rows: DataFrame, schema: StructType) -> DataFrame:
    """`rows` with the columns of `schema`, by name, cast to its types."""
    return rows.select(
        *(rows[_quoted(f.name)].cast(f.dataType).alias(f.name) for f in schema.fields)
    )


def _aggregate(merge: Merge) -> str:
    column = _quoted(merge.columns[0])
    if merge.function == "moments":
        n, mean, m2 = (_quoted(c) for c in merge.columns)
        return _MOMENTS.format(n=n, mean=mean, m2=m2)
    if merge.function in ("last_by", "first_by"):
        function = "max" if merge.function == "last_by" else "min"
        return f"{function}(named_struct('by', {_quoted(merge.by)}, 'value', {column}))"
    return f"{merge.function}({column})"


def _parts(merge: Merge, name: str) -> list[str]:
    """The final columns of a merge, from the aggregate called `name`."""
    if merge.function == "moments":
        empty = f"{name}.n = 0"
        return [f"{name}.n", *(f"if({empty}, null, {name}.{part})" for part in ("mean", "m2"))]
    return [f"{name}.value"] if merge.by else [name]


def _check_columns(found: list[str], table: TableSpec) -> None:
    path, expected = f"tables.{table.name}", columns_of(table)
    have = {c.lower() for c in found}
    for column in expected:
        if column.lower() not in have:
            raise JobError(
                f"{path}.sql", f"yields no column {column!r}", f"it yields {', '.join(found)}"
            )
    for column in found:
        if column.lower() not in {c.lower() for c in expected}:
            raise JobError(
                f"{path}.merge", f"has no entry for column {column!r}", "add it there or to keys"
            )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
