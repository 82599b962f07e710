"""Expressions of every function and form that edged has, by group."""

from __future__ import annotations

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
        concat(s, w); concat(s); concat(s, NULL, s); concat(s, TRY_CAST('a' AS DOUBLE), w)
        concat_ws('-', NULLIF('a', 'a'), s)
        concat_ws('-', s, w, s); concat_ws(s, w, w)
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
