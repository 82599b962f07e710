"""Expressions, function by function and refusal by refusal, against DuckDB."""

from __future__ import annotations

import pyarrow as pa
import pytest

from edged.data.columns import Batch
from edged.data.schema import TYPES, Field, Schema
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
    "parts of texts": """
        left(s, 1); left(s, i8); left(s, -1); right(s, 1); right(s,i8); right(w, k)
        right(s, -1); left(w, i64); right(w, i64); substring(s, 2); substring(s, -2)
        substring(s, i8); substring(s, i8, k); substring(w, k, i8); substring(s, i64, i64)
        substring(s, 0, 2); substring(s, -2, -1); substring(s, 2, -1); strpos(s, w)
        strpos(s, 'a'); instr(s, ''); position('本' in s); split_part(s, 'b', 1)
        split_part(s, w, i8); split_part(s, '', k); split_part(s, 'a', -1)
    """,
    "made texts": """
        trim(s, 'a'); ltrim(s, w); rtrim(s, 'b '); trim(s, 'é日'); trim(w, s); trim(s); upper(s)
        lower(s); replace(s, 'a', 'xy'); replace(s, w, 'x'); replace('banana', 'an', s)
        lpad(s, 5, 'xy'); rpad(s, 5, w); lpad(w, i8, s); rpad(s, -1, 'x'); lpad('a', 3, s)
        md5(s); sha256(s); md5(upper(s) || w); sha256('abc'); md5('a'::BLOB)
    """,
    "patterns": """
        concat(s, w); concat(s); concat(s, NULL, s); concat_ws('-', s, w, s); concat_ws(s, w, w)
        concat_ws(NULL, s, w); s || k; f64 || w; concat(s, s || s)
    """,
    "bit counts": """
        s ILIKE 'A%'; s NOT ILIKE '%É'; s ILIKE 'AB'; s LIKE 'a!%b' ESCAPE '!'
        s LIKE '%!%%' ESCAPE '!'; s NOT LIKE '!_' ESCAPE '!'; s ILIKE 'A!%B' ESCAPE '!'
        s LIKE 'a' ESCAPE ''; s ILIKE NULL; s LIKE 'a' ESCAPE NULL
    """,
    "nested texts": """
        bit_count(i8); bit_count(u8); bit_count(i16); bit_count(u16); bit_count(i32)
        bit_count(u32); bit_count(i64); bit_count(u64); bit_count(-1); bit_count(NULL)
    """,
    "texts of numbers": """
        upper(CASE WHEN b THEN s ELSE w END); upper(left(s, 2)); lpad(k::VARCHAR, 12, '0')
        length(lpad(s, 4, 'x')); upper(coalesce(s, 'none')); left(upper(s) || lower(w), 3)
        upper('abc'); upper(NULL); CASE WHEN b THEN upper(s) ELSE lpad(w, 3, s) END
        upper(lpad(s, 4, w)); concat(100 // k, s); lpad(s, 3, w) = 'abc'; TRY(lpad(s, 3, w))
        coalesce(lpad(s, 3, w), 'q')
    """,
    "numbers of texts": """
        i8::VARCHAR; i64::VARCHAR; u64::VARCHAR; f64::VARCHAR; x::VARCHAR; b::VARCHAR
        k::VARCHAR; CAST(NULL AS VARCHAR); 5::VARCHAR; TRUE::VARCHAR; (f64 / 3)::VARCHAR
        1e0::VARCHAR; (x*1e-3)::VARCHAR
    """,
    "regular expressions": """
        regexp_matches(s, 'a'); regexp_matches(w, '^[a-b]+$'); regexp_matches(s, 'A', 'i')
        regexp_matches(s, 'a.b', 's'); s ~ 'a'; regexp_matches(s, '%', 'l')
        regexp_matches(s, NULL); regexp_full_match(s, 'a|ab'); regexp_full_match(w, '(?i)A.*')
        regexp_matches(upper(s), '[A-C]'); regexp_extract(s, 'b')
        regexp_extract(s, '(a)(b)?', 2); regexp_extract(w, '(?P<x>.)(.)', 1)
        regexp_extract(w, '([[:alpha:]])[)(]?(.)', 2); regexp_extract(s, '(A)B', 0, 'i')
        regexp_extract(s, 'a|(b)', 1); regexp_extract(s, '', 0); regexp_replace(s, 'a', 'x')
        regexp_replace(s, '(a)(b)?', '<\\2\\1\\0>'); regexp_replace(s, 'b', '-', 'g')
        regexp_replace(s, '\\Bb', '!'); regexp_replace(s, 'x*', '-', 'g')
        regexp_replace(s, 'x*', '-'); regexp_replace(s, '(.)', '\\1\\1', 'g')
        regexp_replace(s, '.$', '\\\\', 'g'); regexp_replace(w, '(?i)A', '')
        regexp_replace(s, '[^a]', ''); regexp_replace(coalesce(s, 'none'), 'n', 'm', 'g')
        regexp_replace('abc', 'b', '-')
    """,
    "dates": """
        ts >= DATE '2020-01-01'; DATE '2020-01-01' + INTERVAL '1 day' < ts
        ts::DATE = DATE '2020-02-29'; ts::DATE::TIMESTAMP; (ts::DATE - t::DATE)
        epoch_us((t::DATE + 1)::TIMESTAMP); year(ts::DATE); ts::DATE::VARCHAR
        coalesce(ts::DATE, t); date_trunc('month', ts::DATE); strftime(ts::DATE, '%x')
        CASE WHEN b THEN DATE '2020-01-01' ELSE DATE '2021-01-01' END < t; epoch(ts::DATE)
        (ts::DATE + k)::TIMESTAMP; ts::DATE IN (DATE '2020-02-29', DATE '1970-01-01')
        ts::DATE - INTERVAL '1 month'; ts::DATE IS NULL; greatest(ts::DATE, t::DATE)::VARCHAR
    """,
    "differences of times": """
        date_diff('microsecond', ts, t); date_diff('millisecond', ts, t)
        date_diff('second', ts, t); date_diff('minute', t, ts); date_diff('hour', ts, t)
        date_diff('day', ts, t); date_diff('week', ts, t); date_diff('month', ts, t)
        date_diff('quarter', ts, t); date_diff('year', ts, t)
        datediff('days', ts, TIMESTAMP '2020-01-01'); date_diff('day', ts, NULL)
        date_diff('day', ts, '2020-01-01'); date_diff('day', ts::DATE, t)
    """,
    "lengths of time": """
        ts + to_seconds(i8); epoch_us(to_seconds(x)); epoch_us(to_seconds(f64))
        t - to_seconds(1.5); ts + to_minutes(i16); t + to_hours(k); t + to_days(i8)
        to_seconds(i32) > INTERVAL '5 s'; epoch_us(to_seconds(f32))
    """,
    "buckets with an origin": """
        time_bucket(INTERVAL '7 minutes', ts, TIMESTAMP '2020-01-01 00:01:00')
        time_bucket(INTERVAL '7 days', ts, t)
        time_bucket(INTERVAL '7 minutes', ts, INTERVAL '-1 minute')
        time_bucket(INTERVAL '1.5 hours', t, DATE '1999-12-31')
        time_bucket(INTERVAL '90 s', t, ts)
    """,
    "instants": """
        to_timestamp(k); to_timestamp(x); to_timestamp(f64); to_timestamp(i8) AT TIME ZONE 'UTC'
        epoch_us(to_timestamp(f32)); to_timestamp(k) > to_timestamp(i8); to_timestamp(NULL)
        epoch_ms(to_timestamp(x))
    """,
    "time zones": """
        ts AT TIME ZONE 'Europe/Berlin'; ts AT TIME ZONE 'UTC' AT TIME ZONE 'America/New_York'
        hour(t AT TIME ZONE 'UTC' AT TIME ZONE 'Asia/Kolkata'); t AT TIME ZONE 'asia/tokyo'
        date_trunc('day', ts AT TIME ZONE 'UTC' AT TIME ZONE 'Australia/Lord_Howe')
        epoch(ts AT TIME ZONE 'America/St_Johns')
        coalesce(ts AT TIME ZONE 'UTC', to_timestamp(0))
        strftime(t AT TIME ZONE 'UTC' AT TIME ZONE 'Europe/Berlin', '%H:%M')
    """,
    "times as texts": """
        strftime(ts, '%a %A %w %d %-d %b %B %m %-m %y %-y %Y')
        strftime(ts, '%H %-H %I %-I %p %M %-M %S %-S %f %g')
        strftime(t, '%z|%Z|%j|%-j|%U|%W|%V|%G|%u'); strftime(t, '%c %x %X %%')
        strftime('%Y é', ts); ts::VARCHAR; t::VARCHAR; concat(ts, ' ', t); strftime(NULL, '%Y')
        strftime(ts, NULL); (t + INTERVAL '500 ms')::VARCHAR
        strftime(t + to_seconds(i32), '%G-%V %U %W %j'); upper(strftime(ts, '%b'))
    """,
    "texts as times": """
        strptime(strftime(ts, '%Y-%m-%d %H:%M:%S.%f'), '%Y-%m-%d %H:%M:%S.%f')
        strptime(strftime(t, '%d %b %y %I:%M %p'), '%d %b %y %I:%M %p'); strptime(s, '%Y')
        try_strptime(w, '%Y'); strptime(strftime(ts, '%A, %B %-d %Y'), '%A, %B %d %Y')
        strptime(ts::VARCHAR, '%Y-%m-%d %H:%M:%S'); try_strptime(strftime(t, '%H-%M'), '%H-%M')
        strptime('2020-01-02', '%Y-%m-%d'); try_strptime(i32::VARCHAR, '%m%d%H')
        strptime(strftime(ts, '%x %X'), '%c')
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
