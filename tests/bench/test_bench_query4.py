"""Query 4 of TPC-DS over tables that change: each arm gives DuckDB's answer."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from edged.bench import query4
from edged.bench.query4_arms import cells_of, expected
from edged.bench.tpcds import AMOUNTS, CHANNELS, COLUMNS, CUSTOMER, sales_columns

CUSTOMERS, DAYS, FIRST_DAY = 400, 5 * 365, 2_450_000

QUERY = """
with year_total as ({channels})
select s2.id, s2.first, s2.last, s2.flag
from year_total s1, year_total s2, year_total c1, year_total c2, year_total w1, year_total w2
where s1.id = s2.id and c1.id = s1.id and c2.id = s1.id and w1.id = s1.id and w2.id = s1.id
  and s1.kind = 's' and s2.kind = 's' and c1.kind = 'c' and c2.kind = 'c' and w1.kind = 'w'
  and w2.kind = 'w' and s1.y = 2001 and c1.y = 2001 and w1.y = 2001 and s2.y = 2002
  and c2.y = 2002 and w2.y = 2002 and s1.total > 0 and c1.total > 0 and w1.total > 0
  and c2.total / c1.total > s2.total / s1.total and c2.total / c1.total > w2.total / w1.total
"""


def year_totals():
    """The union of the three channels, in the form of TPC-DS."""
    parts = []
    for table, (prefix, customer) in CHANNELS.items():
        listed, wholesale, discount, sales = (f"{prefix}_{name}" for name in AMOUNTS)
        parts.append(
            f"select c_customer_id id, c_first_name first, c_last_name last, "
            f"c_preferred_cust_flag flag, d_year y, '{prefix[0]}' kind, "
            f"sum((({listed} - {wholesale} - {discount}) + {sales}) / 2) total "
            f"from customer, {table}, date_dim "
            f"where c_customer_sk = {customer} and {prefix}_sold_date_sk = d_date_sk group by all"
        )
    return " union all ".join(parts)


def nulled(values, dice, dtype):
    return pa.array(values, dtype, mask=dice.random(len(values)) < 0.03)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A small TPC-DS: a directory as `tpcds.generate` makes it."""
    directory, dice = tmp_path_factory.mktemp("tpcds"), np.random.default_rng(5)
    sk = np.arange(1, CUSTOMERS + 1)
    columns = [pa.array(sk), pa.array([f"C{n:08d}" for n in sk])]
    for name in CUSTOMER[2:]:
        columns.append(nulled([f"{name}{n % 37}" for n in sk], dice, pa.string()))
    found = {"customer": pa.table(columns, names=CUSTOMER)}
    day = np.arange(FIRST_DAY, FIRST_DAY + DAYS)
    found["date_dim"] = pa.table({"d_date_sk": day, "d_year": 1999 + (day - FIRST_DAY) // 365})
    for table, rows in zip(CHANNELS, (9000, 5000, 2500), strict=True):
        columns = [
            nulled(dice.integers(1, CUSTOMERS + 20, rows), dice, pa.int64()),
            nulled(dice.integers(FIRST_DAY - 9, FIRST_DAY + DAYS, rows), dice, pa.int64()),
        ]
        for most in (2_000_000, 500_000, 900_000, 2_000_000):
            cents = [Decimal(int(n)).scaleb(-2) for n in dice.integers(0, most, rows)]
            columns.append(nulled(cents, dice, pa.decimal128(7, 2)))
        found[table] = pa.table(columns, names=sales_columns(table))
    assert {name: tuple(table.column_names) for name, table in found.items()} == COLUMNS
    for name, table in found.items():
        pyarrow.parquet.write_table(table, directory / f"{name}.parquet")
    (directory / "query4.sql").write_text(QUERY.format(channels=year_totals()))
    return str(directory)


@pytest.fixture(scope="module")
def duckdb_says(tables):
    return expected(tables)


@pytest.mark.parametrize("arm", list(query4.ARMS))
def test_each_arm_gives_the_sums_and_rows_of_duckdb_before_and_after_the_changes(
    arm, tables, duckdb_says, tmp_path, monkeypatch
):
    monkeypatch.setattr(query4, "SALES_A_BEAT", 700)
    monkeypatch.setattr(query4, "CUSTOMERS_A_BEAT", 150)
    monkeypatch.setattr(query4, "LATER_BEATS", 3)
    row = query4.run_arm(query4.Arm(tables, "runs", arm, str(tmp_path), 1 << 20, 0, 1))
    assert row["totals"] == [w["totals"] for w in duckdb_says]
    assert row["answers"] == [w["answers"] for w in duckdb_says]
    assert len(row["answers"][0]) > 3
    assert row["answers"][0] != row["answers"][1]
    assert row["counters"]["applied_rows"] > 0


def test_the_grid_has_every_arm_of_runs_and_three_of_rocksdb():
    cells = cells_of(("runs", "rocksdb"))
    assert [a for m, a in cells if m == "runs"] == list(query4.ARMS)
    assert [a for m, a in cells if m == "rocksdb"] == ["always", "seed", "auto"]
