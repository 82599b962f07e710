"""Expressions, function by function and refusal by refusal, against DuckDB."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from edged.data.columns import Batch
from edged.data.schema import TYPES, Field, Schema
from edged.data.workers import Workers
from edged.errors import ExpressionError, JobError, KernelError
from edged.expressions import arrow, functions
from edged.expressions.program import Predicate, Projection
from tests.job import expressions_duckdb as duck
from tests.job.expressions_supported import SUPPORTED
from tests.sources.test_lists import CALLS


def split(text):
    """The expressions of a block."""
    return [e.strip() for line in text.splitlines() for e in line.split(";") if e.strip()]


@pytest.fixture(scope="module")
def rows():
    batch = duck.rows(4, 400)
    with duck.connect(batch) as connection:
        yield batch, connection


@duck.needs_duckdb_2
@pytest.mark.parametrize("group", SUPPORTED)
def test_what_is_supported_gives_what_duckdb_gives(group, rows):
    duck.compare(*rows, split(SUPPORTED[group]))


def test_every_function_of_the_table_is_compared_with_duckdb():
    text = " ".join([*SUPPORTED.values(), *CALLS.values()]).lower()
    named = {"||": "||", "dow": "dayofweek", "doy": "dayofyear"}
    missing = [f for f in functions.FUNCTIONS if named.get(f, f + "(") not in text]
    assert missing == []


NUMBERS = """
    12;  12 ;+5;-5;+-5;--5;-;+;;.;5.;.5;-.5;1.5;2.5;-2.5;1.49;0.5;-0.5;127.5;-128.5;255.4;-0;-0.4
    1e3;1E3;1e+2;1e-1;5e-1;5e-2;15e-1;149e-2;9.9e-1;0.05e1;1e;1e+;e5;.e5;1e1.5;1e400;1e-400;0e1000
    1_000;1__0;_1;1_;1_.5;1.5_5;0x1F;0X1f;0b11;0x;0xG;-0x1F;1 2;12a;0012;32768;-32769;1.10;1.100
    9223372036854775807;9223372036854775808;-9223372036854775808;9223372036854775807.4;1e18;1e19
    922337203685477580.7e1;0.000000000000000000000000000005e30;99999999999999999999.9;1e99999
    inf;-inf;+inf;Infinity;nan;-nan;NaN;nan(x);infinit;infx;2.2250738585072011e-308;1.7976931348623157e308
    9007199254740993;0.1;123456789.123456789e-5;4.9e-324;2.4703282292062327e-324;3.5e38;16777217
    t;T;f;true;TRUE;tRuE;false;y;n;yes;no;Yes;on;off;1;0;2; true;truex;\t7\n;\x0b7; 7
"""


@duck.needs_duckdb_2
def test_numbers_and_booleans_are_read_from_texts_as_duckdb_reads_them():
    words = [w for line in NUMBERS.split("\n")[1:-1] for w in line[4:].split(";")]
    schema = Schema.of([Field("s", TYPES["string"], True)])
    arrow = pa.RecordBatch.from_pydict({"s": [*words, None]}, schema=schema.to_arrow())
    batch = Batch.from_arrow(arrow, schema)
    kinds = ["TINYINT", "UTINYINT", "SMALLINT", "USMALLINT", "INTEGER", "UINTEGER", "BIGINT"]
    casts = [f"{c}(s AS {k})" for c in ("CAST", "TRY_CAST") for k in [*kinds, "BOOLEAN"]]
    casts += ["s::DOUBLE", "s::FLOAT", "TRY_CAST(s AS DOUBLE)", "s::DOUBLE::VARCHAR"]
    with duck.connect(batch) as connection:
        duck.compare(batch, connection, casts)


def test_the_page_names_every_function():
    page = (Path(__file__).parents[2] / "docs" / "expressions.md").read_text()
    words = set(re.findall(r"[a-z_0-9]+", page)) | {"||"}
    assert set(functions.FUNCTIONS) - words == set()


REFUSED = {
    "i64 + u64": "128-bit integer",
    "u64 * -1": "128-bit integer",
    "COALESCE(i64, u64)": "no type that a column can have",
    "CASE WHEN b THEN i8 ELSE u64 END": "128-bit integer",
    "round(u64)": "128-bit integer",
    "9223372036854775808": "type HUGEINT",
    "99999999999999999999": "64 bits",
    "NULL": "CAST(NULL AS its type)",
    "CASE WHEN b THEN NULL END": "has no type",
    "t - ts": "epoch_us",
    "INTERVAL '1 day'": "type INTERVAL",
    "CAST(i8 AS DECIMAL(10, 2))": "not a supported type",
    "ts::DATE": "CAST it to TIMESTAMP or VARCHAR",
    "i8::HUGEINT": "not a supported type",
    "i64::TIMESTAMP": "make_timestamp",
    "ts::BIGINT": "epoch_us",
    "s::BLOB": "not supported",
    "b + 1": "a number is expected",
    "b = 1": "have no common type",
    "s = 5": "have no common type",
    "s + 'a'": "a number is expected",
    "i8 = 'x'": "not a TINYINT",
    "ts > 'foo'": "not a timestamp",
    "ts > 5": "have no common type",
    "ts + 5": "cannot be combined",
    "ts * 2": "cannot be combined",
    "s AND b": "a condition is expected",
    "i32 & f64": "an integer is expected",
    "f64 << 1": "an integer is expected",
    "IF(b, 1)": "two values",
    "sha1(s)": "there are abs, ",
    "f32::VARCHAR": "CAST it to DOUBLE first",
    "(k * 0.5)::VARCHAR": "CAST it to DOUBLE first",
    "concat(s, 1.5)": "CAST it to DOUBLE first",
    "s::UBIGINT": "CAST it to BIGINT",
    "s::TIMESTAMP": "strptime",
    "s || NULL": "type NULL",
    "concat(s, 'a'::BLOB)": "BLOB",
    "s ILIKE w": "string literal",
    "s LIKE 'a!' ESCAPE '!'": "ends with its escape",
    "s LIKE 'a' ESCAPE '!!'": "one ASCII character",
    "left(s, f64)": "CAST it to BIGINT",
    "left(s, u64)": "CAST it to BIGINT",
    "lpad(s, i64, 'x')": "CAST it to INTEGER",
    "lpad(s, 100000, 'x')": "pad to less",
    "lpad(s, 3)": "takes 3 arguments",
    "upper(i8)": "CAST it to VARCHAR",
    "bit_count(f64)": "takes integers",
    "regexp_matches(s, w)": "a string literal",
    "regexp_matches(s, '(')": "missing )",
    "regexp_matches(s, 'a', 'g')": "no option",
    "regexp_matches(s, '\\pL')": "write ranges",
    "regexp_matches(s, 'é', 'i')": "lower() on both",
    "regexp_extract(s, 'a', 1)": "0 groups",
    "regexp_replace(s, 'a', '\\1')": "names group 1 of 0",
    "regexp_replace(s, 'a', '\\x')": "followed by a digit",
    "DATE '2020-01-01 10:00'": "not a date",
    "s::DATE": "strptime",
    "time_bucket(INTERVAL '1 day', ts::DATE)": "CAST it to TIMESTAMP",
    "time_bucket(INTERVAL '1 day', ts, INTERVAL '1 month')": "without months",
    "date_diff('century', ts, t)": "not a part of a time",
    "date_diff(k, ts, t)": "not a part of a time",
    "to_timestamp(s)": "a number of seconds",
    "to_minutes(x)": "takes an integer",
    "hour(to_timestamp(k))": "AT TIME ZONE 'UTC'",
    "to_timestamp(k)::TIMESTAMP": "AT TIME ZONE 'UTC'",
    "to_timestamp(k) > ts": "no common type",
    "to_timestamp(k) + INTERVAL '1 day'": "cannot be combined",
    "ts AT TIME ZONE 'Europe/Nowhere'": "there is no time zone",
    "ts AT TIME ZONE s": "a string literal",
    "DATE '2020-01-01' AT TIME ZONE 'UTC'": "CAST it to TIMESTAMP",
    "strftime(ts, s)": "a string literal",
    "strftime(ts, '%n')": "the specifier %n is not supported",
    "strftime(ts, '%Q')": "the specifier %Q is not supported",
    "strftime(ts, '')": "the format is empty",
    "strptime(s, '%j')": "the specifier %j is not supported",
    "strptime(s, '%z')": "the specifier %z is not supported",
    "strptime(s, '%I')": "%I and %p stand together",
    "strptime(s, '%Y %y')": "stand for the same",
    "strptime(s, '%d %d')": "stands twice",
    "sum(i8)": "one row's columns",
    "row_number() OVER ()": "one row's columns",
    "(SELECT 1)": "not supported",
    "i8 IN (SELECT 1)": "a list",
    "now()": "now()",
    "random()": "not supported",
    "s LIKE w": "string literal",
    "s[1]": "not supported",
    "nope": "is not there (the input has i8",
    "t.i8": "not a column of the input",
    "1 < k < 3": "chained comparisons",
    "~k + 1": "parentheses",
    "!b": "no operator !",
    "i8 <=> k": "no operator <=>",
    "i8 AS y": "names its result",
    "i8; i16": "one expression",
    "i8,": "not a SQL expression",
    "i8 +": "not a SQL expression",
    "": "not empty",
    "abs()": "not a SQL expression",
    "abs(i8, i8)": "not a SQL expression",
    "sqrt(s)": "takes numbers",
    "length(i8)": "takes VARCHAR",
    "hour(i8)": "takes a TIMESTAMP",
    "date_trunc(hour, ts)": "a unit in quotes",
    "date_trunc('fortnight', ts)": "not a part of a time",
    "extract(century FROM ts)": "not a part of a time",
    "time_bucket(INTERVAL '1 month', ts)": "without months",
    "time_bucket(INTERVAL '0 s', ts)": "more than zero",
    "INTERVAL '1.5 months' + ts": "not a fixed time",
    "INTERVAL '1 fortnight' + ts": "not a part of a time",
    "INTERVAL (k) MINUTE + ts": "a constant",
    "TIMESTAMP '2020-02-30'": "not a timestamp",
    "TIMESTAMP '2020-01-01 00:00:00+02:00'": "not a timestamp",
    "round(f64, i64)": "an INTEGER",
    "f64 BETWEEN SYMMETRIC 1 AND 2": "SYMMETRIC",
    "$1": "not supported",
    "{'a': 1}": "not supported",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_not_supported_is_refused_with_the_reason(sql):
    with pytest.raises(ExpressionError) as caught:
        Projection.of("operators.m.columns", {"c": sql}, duck.SCHEMA)
    assert caught.value.path == "operators.m.columns.c"
    assert REFUSED[sql] in str(caught.value)


@pytest.mark.parametrize("sql", [5, None, ["k"], "k" * 70_000, "k\0", "s", "ts"])
def test_a_condition_that_is_none_is_refused(sql):
    with pytest.raises(ExpressionError):
        Predicate.of("operators.f.where", sql, duck.SCHEMA)


def test_nesting_without_end_is_refused_and_long_chains_are_not():
    for deep in ("(" * 5_000 + "k" + ")" * 5_000, "-(" * 100 + "k" + ")" * 100):
        with pytest.raises(ExpressionError, match="nested"):
            Projection.of("c", {"c": deep}, duck.SCHEMA)
    with pytest.raises(ExpressionError, match="parts"):
        Projection.of("c", {"c": "k IN (" + ", ".join(map(str, range(5_000))) + ")"}, duck.SCHEMA)
    Predicate.of("c", " AND ".join(f"k <> {i}" for i in range(500)), duck.SCHEMA)


@duck.needs_duckdb_2
def test_an_error_in_any_part_of_a_conjunction_is_an_error_as_in_a_projection_of_duckdb(rows):
    duck.compare(*rows, ["b AND 100 // k > 1", "k = 0 OR 100 // k > 1", "k IN (1, 1 // k)"])


def test_rows_in_error_are_left_out_and_counted_and_the_first_message_is_kept():
    batch = duck.rows(5, 300)
    columns = {"c": "100 // k", "s": "s", "up": "upper(w)", "pick": "CASE WHEN b THEN s ELSE w END"}
    run = Projection.of("m.columns", columns, duck.SCHEMA).build(child=False)
    done = run.project(batch, Workers(1)).to_arrow().to_pylist()
    source = batch.to_arrow().to_pylist()
    good = [row for row in source if row["k"] != 0]
    assert [row["s"] for row in done] == [row["s"] for row in good]
    assert [row["up"] for row in done] == [row["w"].upper() for row in good]
    assert [row["pick"] for row in done] == [row["s"] if row["b"] else row["w"] for row in good]
    assert run.errors == len(source) - len(good) > 0
    assert run.first_error == "division by zero, or overflow of INTEGER, in 100 // k"


def test_a_result_of_pyarrow_with_another_length_type_or_null_is_an_error():
    texts = pa.array(["a", None], pa.large_string())
    valid = np.array([1, 0], np.uint8)
    assert len(arrow.compute("utf8_length", [texts], pa.int64(), valid)) == 2
    for array, kind, rows in [
        (texts, pa.int64(), 3),
        (texts, pa.int32(), 2),
        (texts[:1], pa.int64(), 2),
    ]:
        with pytest.raises(KernelError, match=r"are expected"):
            arrow.compute("utf8_length", [array], kind, np.ones(rows, np.uint8))
    with pytest.raises(KernelError, match="are expected"):
        arrow.compute("utf8_length", [texts], pa.int64(), np.ones(2, np.uint8))
    with pytest.raises(KernelError, match=r"pyarrow\.compute\.match_substring_regex"):
        options = pc.MatchSubstringOptions("(")
        arrow.compute("match_substring_regex", [texts], pa.bool_(), valid, options)


def test_reverse_of_characters_of_several_code_points_is_an_error_and_of_others_is_duckdbs():
    schema = Schema.of([Field("s", TYPES["string"], True)])
    texts = ["abc", "日本", "e\u0301x", "👨\u200d👩", "🇩🇪", None, "é\u200aa", "a\r\nb"]
    arrays = pa.RecordBatch.from_pydict({"s": texts}, schema=schema.to_arrow())
    run = Projection.of("c", {"r": "reverse(s)"}, schema).build(child=False)
    made = run.project(Batch.from_arrow(arrays, schema), Workers(1)).to_arrow().to_pylist()
    assert [row["r"] for row in made] == ["cba", "本日", None, "a\u200aé", "b\n\ra"]
    assert (run.errors, run.first_error) == (3, "characters of several code points in REVERSE(s)")


def test_a_slice_with_offsets_that_do_not_start_at_zero_gives_the_same_rows():
    batch = duck.rows(6, 200)
    columns = {
        "a": "length(s)",
        "b": "s || '!'",
        "c": "CASE WHEN b THEN s ELSE 'none' END",
        "d": "i8 = 1",
    }
    run = Projection.of("c", columns, duck.SCHEMA).build(child=False)
    whole = run.project(batch, Workers(1)).to_arrow().slice(70, 60).to_pylist()
    assert run.project(batch.slice(70, 130), Workers(1)).to_arrow().to_pylist() == whole


def test_results_do_not_depend_on_the_number_of_workers():
    small = duck.rows(7, 500).to_arrow()
    table = pa.Table.from_batches([small] * 80).combine_chunks().to_batches()[0]
    batch = Batch.from_arrow(table, duck.SCHEMA)
    where = Predicate.of("c", "100 // k > 3 AND f64 > x", duck.SCHEMA).build(child=False)
    columns = {"a": "100 // k", "b": "CASE WHEN b THEN s ELSE w END", "t": "t"}
    compute = Projection.of("c", columns, duck.SCHEMA).build(child=False)
    seen = []
    for count in (1, 2, 4):
        workers = Workers(count)
        where.errors = compute.errors = 0
        kept = where.select(batch, workers).tolist()
        made = compute.project(batch, workers).to_arrow()
        seen.append((kept, made, where.errors, compute.errors))
        workers.close()
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][2] > 0


def test_names_are_matched_exactly_first_and_then_without_case():
    schema = Schema.of(
        [*duck.SCHEMA.fields[:1], *Schema.from_json('[{"name":"I8","type":"bool"}]')]
    )
    assert Projection.of("c", {"c": "I8"}, schema).output.field("c").dtype.name == "bool"
    assert Projection.of("c", {"c": "i8"}, schema).output.field("c").dtype.name == "int8"
    three = Schema.of([*schema, *Schema.from_json('[{"name":"kW","type":"bool"}]')])
    assert Projection.of("c", {"c": "KW"}, three).passed() == {"c": "kW"}


def test_nullability_follows_from_the_expression():
    columns = {
        "a": "k + 1",
        "b": "i8 + 1",
        "c": "COALESCE(i8, 0)",
        "d": "TRY(1 // k)",
        "e": "i8 IS NULL",
    }
    columns |= {"f": "CASE WHEN k > 1 THEN w END", "g": "NULLIF(k, 1)", "h": "greatest(i8, k)"}
    output = Projection.of("c", columns, duck.SCHEMA).output
    assert [f.name for f in output if f.nullable] == ["b", "d", "f", "g"]


ANYTHING = [
    "NULL", "1", "1.5", "1e0", "'a'", "TRUE", "i8", "u64", "f32", "b", "s", "ts", "ts - t",
    "DATE '2020-01-01'", "INTERVAL '1 day'", "INTERVAL '1 month'", "to_timestamp(k)", "'a'::BLOB",
    "12345678901234567890", "TIMESTAMP '2020-01-01'", "nope", "*", "(1, 2)", "(SELECT 1)",
]  # fmt: skip


def test_no_argument_of_any_function_is_answered_with_anything_but_a_refusal():
    rng, accepted = random.Random(1), 0
    for name in (name for name in functions.FUNCTIONS.load() if name != "||"):
        several = (rng.choices(ANYTHING, k=rng.randint(2, 4)) for _ in range(3))
        for arguments in [[], *([a] for a in ANYTHING), *several]:
            sql = f"{name}({', '.join(arguments)})"
            try:
                accepted += Projection.of("c", {"c": sql}, duck.SCHEMA) is not None
            except JobError:
                continue
            except Exception as problem:
                pytest.fail(f"{sql}: {problem!r}")
    assert accepted > 250
