"""Merging of partial rows: for every merge function one Spark SQL expression over a key's rows.

`sum`, `min` and `max` are Spark's.  `last_by = "t"` is the value at the largest t, ties broken by
the larger value, so that the order of rows does not matter; rows without t do not count.
`quantiles` and `distinct` merge sketches (`edged.data.sketches`), `comoments` the moments of pairs
(`edged.central.pair_moments`).  `moments` (n, mean, m2) follows Chan,
Golub and LeVeque (1979): for two groups with means a and b, and d = b - a,

    n = n_a + n_b        mean = a + d * n_b / n        m2 = m2_a + m2_b + d² * n_a * n_b / n

applied to the rows in sorted order, so that a repetition gives the same bits.  Groups of n = 0 are
ignored; if all are, mean and m2 are null.  m2 / (n - 1) is the sample variance.

In a table with a weight, counts may be negative: such a part takes rows back, by the same formula.
A part of n = 0 that is not empty is written (0, Σx, Σx²), as windows on the device do, and the
state holds it so until its counterpart comes.  The largest part comes first, so that n passes
through 0 only where all rows were taken back.  `left` drops what has come to nothing from the
state, and `published` shows the keys that have a weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.central import pair_moments
from edged.central.spec import SKETCHES, Merge, TableSpec
from edged.data.schema import WEIGHT_COLUMN
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

_RETRACTABLE_MOMENTS = """
aggregate(
  reverse(array_sort(
    collect_list(named_struct(
      'n', coalesce(cast({n} as bigint), 0L), 'mean', coalesce(cast({mean} as double), 0.0D),
      'm2', coalesce(cast({m2} as double), 0.0D))))),
  named_struct('n', 0L, 'mean', 0.0D, 'm2', 0.0D),
  (a, b) -> case
    when a.n + b.n = 0 then named_struct(
      'n', 0L,
      'mean', if(a.n = 0, a.mean, a.n * a.mean) + if(b.n = 0, b.mean, b.n * b.mean),
      'm2', a.m2 + a.n * a.mean * a.mean + b.m2 + b.n * b.mean * b.mean)
    when b.n = 0 then named_struct(
      'n', a.n,
      'mean', a.mean + b.mean / a.n,
      'm2', a.m2 + b.m2 - b.mean * (2 * a.mean + b.mean / a.n))
    when a.n = 0 then named_struct(
      'n', b.n,
      'mean', b.mean + a.mean / b.n,
      'm2', b.m2 + a.m2 - a.mean * (2 * b.mean + a.mean / b.n))
    else named_struct(
      'n', a.n + b.n,
      'mean', a.mean + (b.mean - a.mean) * (cast(b.n as double) / (a.n + b.n)),
      'm2', a.m2 + b.m2
            + (b.mean - a.mean) * (b.mean - a.mean) * (cast(a.n as double) * b.n / (a.n + b.n)))
  end)
"""


def merged(rows: DataFrame, table: TableSpec) -> DataFrame:
    """`rows` merged to one row per key, with the columns of `columns_of(table)` in order."""
    from pyspark.sql.functions import expr

    whole = rows.groupBy(*(_quoted(k) for k in table.keys)).agg(
        *(expr(_aggregate(m, table)).alias(f"_{i}") for i, m in enumerate(table.merge))
    )
    columns = [expr(_quoted(k)).alias(k) for k in table.keys]
    for i, m in enumerate(table.merge):
        parts = _parts(m, f"_{i}", raw=bool(table.weight))
        columns += [expr(e).alias(c) for e, c in zip(parts, m.columns, strict=True)]
    return whole.select(*columns)


def left(state: DataFrame, table: TableSpec) -> DataFrame:
    """The merged rows without those of a table with a weight in which every sum is 0 or null."""
    if not table.weight:
        return state
    sums = [_quoted(c) for m in table.merge for c in m.columns]
    return state.where(" or ".join(f"coalesce({c}, 0) != 0" for c in sums))


def published(state: DataFrame, table: TableSpec) -> DataFrame:
    """The merged rows as the view sees them: of a table with a weight those of a weight other
    than 0, with null moments where their count is 0."""
    from pyspark.sql.functions import expr

    if not table.weight:
        return state
    count = {c: m.columns[0] for m in table.merge for c in m.columns[1:]}
    columns = [
        expr(f"if({_quoted(count[c])} = 0, null, {_quoted(c)})" if c in count else _quoted(c))
        for c in state.columns
    ]
    names = state.columns
    rows = state.where(f"{_quoted(table.weight)} != 0")
    return rows.select(*(e.alias(n) for e, n in zip(columns, names, strict=True)))


def changes(before: DataFrame | None, after: DataFrame) -> DataFrame:
    """What makes `after` of `before`: rows with WEIGHT_COLUMN, 1 for one that came into the
    published table and -1 for one that left it."""
    from pyspark.sql.functions import expr, lit

    names = [expr(_quoted(c)) for c in after.columns]
    rows = after.withColumn(WEIGHT_COLUMN, lit(1))
    if before is not None:
        rows = rows.unionByName(before.withColumn(WEIGHT_COLUMN, lit(-1)))
    weight = expr(f"cast(sum({WEIGHT_COLUMN}) as int)").alias(WEIGHT_COLUMN)
    return rows.groupBy(*names).agg(weight).where(f"{WEIGHT_COLUMN} != 0")


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


def _aggregate(merge: Merge, table: TableSpec) -> str:
    column = _quoted(merge.columns[0])
    if merge.function == "moments":
        n, mean, m2 = (_quoted(c) for c in merge.columns)
        moments = _RETRACTABLE_MOMENTS if table.weight else _MOMENTS
        return moments.format(n=n, mean=mean, m2=m2)
    if merge.function == "comoments":
        return pair_moments.aggregate([_quoted(c) for c in merge.columns], bool(table.weight))
    if merge.function in SKETCHES:
        return f"edged_merged_{merge.function}(collect_list({column}))"
    if merge.function in ("last_by", "first_by"):
        function = "max" if merge.function == "last_by" else "min"
        by = _quoted(merge.by)
        row = f"named_struct('by', {by}, 'value', {column})"
        return f"{function}(if({by} is null, null, {row}))"
    return f"{merge.function}({column})"


def _parts(merge: Merge, name: str, raw: bool) -> list[str]:
    """The final columns of a merge, from the aggregate called `name`; `raw` keeps moments of a
    count of 0."""
    if merge.function in ("moments", "comoments"):
        fields = pair_moments.FIELDS if merge.function == "comoments" else ("n", "mean", "m2")
        if raw:
            return [f"{name}.{part}" for part in fields]
        return [f"{name}.n", *(f"if({name}.n = 0, null, {name}.{part})" for part in fields[1:])]
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
