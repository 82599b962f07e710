"""Expressions, function by function and refusal by refusal, against DuckDB."""

from __future__ import annotations

import pytest

from edged.data.schema import Schema
from edged.data.workers import Workers
from edged.errors import ExpressionError
from edged.expressions import functions
from edged.expressions.program import Predicate, Projection
from tests.job import expressions_duckdb as duck

SUPPORTED = {
    "arithmetic": """
        i8 + u8; i16 - u8; i32 * i32; i64 * i64; u64 + u64; u64 - 1; u32 * u32; i8 // i16
        i64 // k; i8 % i8; u64 % u64; u64 // 7; k // 0; k % 0; f64 / x; f32 + f32; f32 * i64
        f32 / 2; k / 0; f64 // x; f64 % x; f32 % 3; -i8; -u8; -i64; -f32; - -k; i8 + 1; i8 + 300
        u16 + -1; i64 - 1; u64 * 2; 1.5 * k; 1.5 + f32; 1.5 / 2; 5.5 % 2; k % 2.5; 2 ** 3 ** 2
        -k ** 2; f64 ^ 2; i8 + NULL; NULL + 1; 7 // 2 * 2.0; 1 / 2 + f32; i8 * 1.5 + f32
        i64 // -1; i8 % -7; @ k - 5
    """,
    "bits": """
        i32 & 5; i8 & u8; u64 | 1; xor(i16, 3); xor(u64, u64); ~i32; ~u8; ~u64; i32 << 1
        i8 << 6; u8 << 8; u64 << 63; i64 << i8; i32 >> 1; i32 >> 40; i32 >> -1; u64 >> 3
        1 | 2 & 4; (~k) + 1; 1 + 2 << 3; ~5 & 3
    """,
    "comparisons": """
        i8 = u8; i64 < u64; u64 >= i64; u64 = -1; u64 > i8; i32 = 3000000000
        u64 = 9223372036854775808; f32 = f64; f64 > x; f64 <= f64; f32 > 1.1; i64 = 2.5; s < w
        s = 'a'; s >= 'é'; b > FALSE; ts < t; ts = '2020-02-29 12:34:56.789012'
        ts > TIMESTAMP '2020-01-01'; i32 = '5'; f64 > '1.5'; b = 'true'; i8 IS DISTINCT FROM i16
        s IS NOT DISTINCT FROM w; f64 IS DISTINCT FROM f64; b IS DISTINCT FROM NULL
        i8 BETWEEN 0 AND 10; u64 BETWEEN -1 AND i64; i8 BETWEEN 1 AND NULL
        i32 NOT BETWEEN 1 AND 2.5; i8 IN (1, 2, 300); i8 IN (1, NULL); i8 NOT IN (1, NULL)
        s IN ('a', 'é', w); u64 IN (i64, 1); ts BETWEEN '2020-01-01' AND '2021-01-01'
        ts IN ('1970-01-01', t); NULL = 1; f64 = 'nan'::DOUBLE
    """,
    "logic": """
        b AND k > 1; b OR NULL; NOT b; NULL AND b; b IS NULL; b IS NOT NULL; b IS TRUE
        b IS NOT FALSE; b IS UNKNOWN; k AND b; NOT f64; b AND k > 1 AND s = 'a' OR x > 1
        NOT b IS NULL; i8 ISNULL; s NOTNULL; not k between 0 and 2
    """,
    "choices": """
        CASE WHEN b THEN i8 ELSE u8 END; CASE WHEN b THEN s END
        CASE k WHEN 1 THEN 'a' WHEN 2 THEN w END; CASE WHEN b THEN 1 ELSE 1.5 END
        CASE WHEN b THEN f32 ELSE 1.5 END; CASE WHEN k THEN ts ELSE t END; COALESCE(i8, 1)
        COALESCE(i8, i16, 300); COALESCE(s, 'none'); COALESCE(NULL, f32, 1.5); IFNULL(b, TRUE)
        COALESCE(ts, '2020-01-01'); NULLIF(i8, 1); NULLIF(i8, 1.5); NULLIF(s, ''); IF(b, 1, 2)
        IF(b, w, s); COALESCE(i32, k // 0); CASE WHEN k = 0 THEN 0 ELSE 100 // k END
        greatest(i8, u8, 5); least(f64, x, 'nan'::DOUBLE); greatest(s, w, 'b'); least(ts, t)
        greatest(b, TRUE); least(i8, NULL); TRY(i8 + i8); TRY(100 // k)
    """,
    "casts": """
        f64::TINYINT; f64::BIGINT; f64::UBIGINT; f32::INTEGER; f64::UTINYINT; f64::FLOAT
        f32::DOUBLE; i64::TINYINT; i64::UBIGINT; u64::BIGINT; u64::INTEGER; i16::UTINYINT
        i64::FLOAT; u64::DOUBLE; u64::FLOAT; b::INTEGER; b::DOUBLE; k::BOOLEAN; f64::BOOLEAN
        u64::BOOLEAN; 2.5::INTEGER; (-2.5)::INTEGER; (k * 0.5)::INTEGER; 1.1::FLOAT
        '12'::INTEGER; ' 1.5 '::DOUBLE; 'inf'::FLOAT; 't'::BOOLEAN; '2020-01-01'::TIMESTAMP
        NULL::INTEGER; TRY_CAST(f64 AS SMALLINT); 'a'::BLOB; TRY_CAST(i64 AS UINTEGER)
        TRY_CAST('x' AS INTEGER); i8::int8; i8::REAL; i8::int1; TRY_CAST(300 AS TINYINT)
    """,
    "numbers": """
        abs(i8); abs(i64); abs(u64); abs(f32); abs(-1.5); sqrt(x); exp(k); ln(x); log10(x)
        log2(k); log(x); log(2, k); log(3, x); pow(x, 2); power(k, 3); floor(f32); floor(f64)
        floor(k); ceil(x); ceiling(1.5); round(f64); round(f32); round(i8); round(u8)
        round(f64, 1); round(x, -1); round(f32, 1); round(f64, i8); round(i8, -1)
        round(i64, -2); round(i64, i8); round(u16, -1); round(k, 2); trunc(f64); trunc(f32, 1)
        trunc(i64, -2); trunc(u64, -1); trunc(u64, -19); round(1.55, 1); sign(f64); sign(u64)
        sign(i8); sin(x); cos(x); tan(x); asin(x); acos(x); atan(x); atan2(x, k); sinh(k)
        cosh(k); tanh(x); asinh(x); acosh(x); atanh(x); degrees(x); radians(x); pi(); isnan(f64)
        isinf(f32); isfinite(f64); isnan(k); mod(k, 3); round(2.5e0); round(-0.5e0)
        round(0.49999999999999994e0)
    """,
    "texts": """
        length(s); strlen(s); len(w); octet_length('ab'::BLOB); starts_with(s, w); s ^@ 'a'
        ends_with(s, 'b'); suffix(s, w); prefix(w, 'é'); contains(s, 'b'); contains(s, w)
        s LIKE 'a%'; s LIKE '%b'; s LIKE '%b%'; s LIKE '_'; s LIKE 'a_%'; s NOT LIKE '%本_'
        s LIKE ''; s LIKE '%'; s LIKE 'ab'; s LIKE '%a%b%'; upper(s); lower(s); trim(s)
        ltrim(w); rtrim(w); s || w; s || '!'; '<' || w || '>'; reverse(s); concat(s, '-', w)
        substring(s, 2); substring(w, 1, 1); replace(s, 'a', 'xy'); upper(s) = 'AB'
        length(s || w); lower(trim(s)) || upper(w); s LIKE NULL
    """,
    "times": """
        ts + INTERVAL '5 minutes'; ts - INTERVAL 1 DAY; INTERVAL '1.5 hours' + ts
        t + INTERVAL '1 month'; ts - INTERVAL '1 year 2 days 3 hours'
        t + INTERVAL '1 hour 30 minutes'; t - INTERVAL '-1 month'; t + INTERVAL '1 day' * 2
        t - (INTERVAL '1 day' - INTERVAL '1 hour'); epoch_us(ts - t); epoch(t - ts)
        epoch_ms(ts - t); ts - t > INTERVAL '1 month'; ts - t = INTERVAL '0 s'; ts + (t - ts)
        ts - t IS NULL; epoch(ts); epoch_ms(ts); epoch_us(ts); epoch_ms(k); make_timestamp(k)
        make_timestamp(i32); extract(year FROM ts); extract('hour' FROM ts)
        date_part('week', ts); date_part('epoch', ts); year(t); quarter(t); month(t); week(t)
        day(t); hour(t); minute(t); second(t); millisecond(t); microsecond(t); dayofweek(t)
        isodow(t); weekday(t); dayofyear(t); weekofyear(t); dayofmonth(t)
        date_trunc('microsecond', ts); date_trunc('millisecond', ts); date_trunc('second', ts)
        date_trunc('minute', ts); date_trunc('hour', ts); date_trunc('day', ts)
        date_trunc('week', ts); date_trunc('month', ts); date_trunc('quarter', ts)
        date_trunc('year', ts); date_trunc('HOURS', t); time_bucket(INTERVAL '5 minutes', ts)
        time_bucket(INTERVAL '7 days', t); TIMESTAMP '2020-01-01T10:11:12Z'
        TIMESTAMP '2020-01-01 10:11'; TIMESTAMP 'epoch'
    """,
    "names and literals": """
        I8; "i8" + "K"; 1_000; .5; 1e5; 'it''s'; TRUE; 9223372036854775807; -9223372036854775808
        -2147483648; -(-128); i8 + -(-1); (i8); +i8; '!'; 12345678901234567890.5; 1e400
        'a -- b'; x /* a comment */
    """,
}  # fmt: skip


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
    text = " ".join(SUPPORTED.values()).lower()
    named = {"||": "||", "dow": "dayofweek", "doy": "dayofyear"}
    missing = [f for f in functions.FUNCTIONS if named.get(f, f + "(") not in text]
    assert missing == []


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
    "ts::DATE": "not a supported type",
    "i8::HUGEINT": "not a supported type",
    "i8::VARCHAR": "not supported",
    "s::INTEGER": "not supported",
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
    "regexp_matches(s, 'a')": "function regexp_matches() is not supported",
    "IF(b, 1)": "two values",
    "md5(s)": "there are abs, ",
    "sum(i8)": "one row's columns",
    "row_number() OVER ()": "one row's columns",
    "(SELECT 1)": "not supported",
    "i8 IN (SELECT 1)": "a list",
    "now()": "now()",
    "random()": "not supported",
    "s ILIKE 'a'": "LIKE without ESCAPE",
    "s LIKE 'a!%' ESCAPE '!'": "LIKE without ESCAPE",
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
    "upper(CASE WHEN b THEN s END)": "literals and functions of those only",
    "upper('a')": "no column",
    "substring(s, 0)": "from 1 on",
    "s || 1": "takes strings",
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
    import pyarrow as pa

    from edged.data.columns import Batch

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
