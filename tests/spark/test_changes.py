"""Tables of streams of changes in a real Spark: equal to DuckDB over the rows that are left."""

from __future__ import annotations

import json

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edged.central.export import export
from edged.central.landing_reader import select
from edged.central.merge import left, merged, published
from edged.central.spec import parse_spec
from edged.central.tables import read
from edged.data.schema import Schema
from edged.errors import JobError
from tests.spark.landings import dense_page
from tests.spark.test_aggregate import options, run
from tests.spark.test_spec import GOOD

SCHEMA = Schema.from_json(
    '[{"name":"key","type":"int32"},{"name":"w","type":"int32","role":"weight"},'
    '{"name":"i","type":"int64"},{"name":"x","type":"float64","nullable":true}]'
)
MOMENTS = """SELECT key, n, i, x, m_n, if(m_n = 0, x, x / m_n) AS m_mean,
if(m_n = 0, x2, x2 - x * x / m_n) AS m_m2 FROM (
  SELECT key, sum(w) AS n, sum(w * i) AS i, sum(w * x) AS x, sum(if(x is null, 0, w)) AS m_n,
         sum(w * x * x) AS x2 FROM changes GROUP BY key)"""
BY_KEY = {
    "from": "changes",
    "sql": MOMENTS,
    "keys": ["key"],
    "weight": "n",
    "merge": {"n": "sum", "i": "sum", "x": "sum", "m": {"moments": ["m_n", "m_mean", "m_m2"]}},
}
ROWS = {
    "from": "changes",
    "sql": "SELECT key, i, x, sum(w) AS n FROM changes GROUP BY ALL",
    "keys": ["key", "i", "x"],
    "weight": "n",
    "merge": {"n": "sum"},
    "mode": "changes",
}
TRUTH = """SELECT key, count(*) AS n, sum(i)::BIGINT AS i, sum(x) AS x, count(x) AS m_n,
avg(x) AS m_mean, var_pop(x) * count(x) AS m_m2 FROM t, range(w) GROUP BY key ORDER BY key"""


def changes(seed, n=300):
    """Rows that are inserted, and a later copy of most of them that takes them back."""
    rng = np.random.default_rng(seed)
    key = rng.integers(0, 12, n).astype(np.int32)
    x = np.ma.array(rng.normal(20, 4, n), mask=rng.random(n) < 0.1)
    i = rng.integers(-(2**40), 2**40, n)
    w = rng.integers(1, 4, n).astype(np.int32)
    gone = (rng.random(n) < 0.7) | (key > 8)
    back = np.where(key > 8, w, rng.integers(1, 4, n).clip(max=w)).astype(np.int32)
    left = w - np.where(gone, back, 0)
    inserted = (key, w, i, x)
    taken = (key[gone], -back[gone], i[gone], x[gone])
    order = rng.permutation(int(gone.sum()))
    return inserted, tuple(c[order] for c in taken), (key, left, i, x)


def page(columns, seq):
    return dense_page(SCHEMA, columns, stream="changes", seq=seq)


@pytest.fixture
def landed(landing):
    """Changes in some pages, and the rows that are left of them, as an Arrow table."""
    landing.register("changes", SCHEMA)
    made = [changes(seed) for seed in range(4)]
    order = [(0, 0), (1, 0), (1, 1), (2, 0), (0, 1), (3, 1), (3, 0), (2, 1)]
    pages = [made[number][taken] for number, taken in order]  # 3 is taken back before it comes
    landing.land([page(columns, seq) for seq, columns in enumerate(pages, 1)])
    rest = [pa.table([pa.array(c) for c in columns], names=SCHEMA.names) for *_, columns in made]
    return landing, pa.concat_tables(rest)


def test_a_weighted_table_equals_duckdb_over_the_rows_that_are_left(spark, landed, tmp_path):
    landing, rest = landed
    spec = parse_spec(
        {"streams": {"changes": "changes@1"}, "tables": {"by_key": BY_KEY, "rows": ROWS}}
    )
    run(spark, spec, options(landing, tmp_path, source={"pages_per_trigger": "3"}))
    with duckdb.connect() as duck:
        duck.register("t", rest)
        truth = duck.sql(TRUTH).to_arrow_table().to_pylist()
        rows = duck.sql("SELECT key, i, x, sum(w)::BIGINT n FROM t GROUP BY ALL HAVING n <> 0")
        whole = rows.fetchall()
    table = sorted(read(tmp_path / "output" / "by_key").to_pylist(), key=lambda r: r["key"])
    assert [[r[c] for c in ("key", "n", "i", "m_n")] for r in table] == [
        [r[c] for c in ("key", "n", "i", "m_n")] for r in truth
    ]
    assert len(table) < 12  # keys above 8 were all taken back
    for have, want in zip(table, truth, strict=True):
        for column in ("x", "m_mean", "m_m2"):
            assert have[column] == pytest.approx(want[column], rel=1e-9), column
    # The changes of all batches add up to the table.
    followed = read(tmp_path / "output" / "rows")
    assert set(followed["_weight"].to_pylist()) == {1, -1}
    with duckdb.connect() as duck:
        duck.register("t", followed)
        query = "SELECT key, i, x, n FROM t GROUP BY ALL HAVING sum(_weight) <> 0"
        assert sorted(duck.sql(query).fetchall(), key=repr) == sorted(whole, key=repr)
        query = "SELECT max(s) FROM (SELECT sum(_weight) s FROM t GROUP BY key, i, x)"
        assert duck.sql(query).fetchall() == [(1,)]
    state = read(tmp_path / "output" / "rows", "state")
    assert sorted(map(tuple, (r.values() for r in state.to_pylist())), key=repr) == sorted(
        whole, key=repr
    )


def test_a_table_of_a_stream_with_weights_has_to_use_them(spark, landed, tmp_path):
    landing, _ = landed
    table = {**ROWS, "sql": "SELECT key, i, x, count(*) AS n FROM changes GROUP BY ALL"}
    spec = parse_spec({"streams": {"changes": "changes@1"}, "tables": {"rows": table}})
    with pytest.raises(JobError, match=r"tables\.rows\.sql: leaves out w, the weight of its rows"):
        run(spark, spec, options(landing, tmp_path))


def test_the_data_source_and_exports_show_the_weight_column(spark, landed, tmp_path):
    landing, _ = landed
    frame = spark.read.format("edged").options(landing=str(landing.path), stream="changes").load()
    assert [f.metadata for f in frame.schema.fields] == [{}, {"edged.role": "weight"}, {}, {}]
    source = select(landing.path, "changes")
    assert source.schema.field("w").metadata == {b"edged.role": b"weight"}
    for name in ("rows.parquet", "rows.ndjson"):
        export(source, tmp_path / name, name.partition(".")[2], None, lambda n: None)
    lines = (tmp_path / "rows.ndjson").read_text().splitlines()
    weights = pq.read_table(tmp_path / "rows.parquet")["w"].to_pylist()
    assert [json.loads(line)["w"] for line in lines] == weights
    assert {n < 0 for n in weights} == {True, False}


def test_moments_merge_in_any_order_of_inserts_and_retractions(spark):
    """However the partial rows of a key are split into two batches, the moments are the same."""
    table = parse_spec({"streams": {"changes": "changes"}, "tables": {"t": BY_KEY}}).tables["t"]
    values = [(3.0, 1), (5.0, 1), (5.0, -1), (8.0, 1), (3.0, -1), (9.0, 1)]
    parts = [(w, 0, w * v, w, v, 0.0) for v, w in values]
    parts += [(0, 0, 4.0, 0, 4.0, 13.0**2 - 9.0**2)]  # 9 becomes 13
    columns = "key int, n long, i long, x double, m_n long, m_mean double, m_m2 double"
    batches = [[], []]
    for subset in range(1, 2 ** len(parts)):
        for bit, part in enumerate(parts):
            batches[subset >> bit & 1].append((subset, *part))
    first, second = (spark.createDataFrame(rows, columns) for rows in batches)
    state = left(merged(first, table), table)
    found = published(left(merged(state.unionByName(second), table), table), table).collect()
    assert len(found) == 2 ** len(parts) - 1
    for _, n, _, x, m_n, mean, m2 in found:
        assert (n, x, m_n, mean) == (2, 21.0, 2, pytest.approx(10.5))
        assert m2 == pytest.approx(12.5)


FAULTS = [
    ({"weight": "m"}, r"tables\.power\.weight: m is not merged"),
    ({"weight": "n"}, r"tables\.power\.merge\.lo: min cannot take a row back"),
    ({"mode": "append", "weight": "n"}, r"tables\.power\.keys: unknown key"),
]


@pytest.mark.parametrize(("body", "message"), FAULTS)
def test_a_weight_that_cannot_be_kept_is_refused(body, message):
    tables = {"power": {**GOOD["tables"]["power"], **body}}
    with pytest.raises(JobError, match=message):
        parse_spec({**GOOD, "tables": tables})
