"""All functions with every form of argument, compared with DuckDB.

    python -m tests.job.expression_forms --count 20000 --seed 1

An argument is a literal, a column, a nullable column, or an expression nested one or two deep.
Kernels are interpreted (`tests.job.interpreted`); an expression that differs is compared once more,
compiled, and counts if it differs again.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import warnings
from collections.abc import Iterator

import duckdb

from edged.data.columns import Batch
from tests.job import expressions_duckdb as duck
from tests.job.interpreted import interpreted

FORMS = ("literal", "column", "nullable", "nested one deep", "nested two deep")
LEAVES = {
    "S": (["'a'", "'日本é'", "''", "' ab '"], ["w"], ["s"]),
    "N": (["0", "2", "-1"], ["k"], ["i8", "greatest(i16, -9) % 7"]),
    "L": (["3", "0", "-2"], ["(k % 9)"], ["i8"]),
    "W": (["1", "7", "-1", "300", "3000000000"], ["k"], ["i8", "i16", "i32", "i64", "u8", "u32"]),
    "T": (["TIMESTAMP '2020-02-29 12:34:56.5'", "TIMESTAMP '1969-12-31'"], ["t"], ["ts"]),
    "E": (["1.5e0", "-0.25e0", "1e300"], ["x"], ["f64", "f32"]),
    "B": (["TRUE", "FALSE"], ["(k > 1)"], ["b"]),
}
"""Literals, columns and nullable columns of each kind: strings, positions, lengths, whole numbers,
times, doubles, conditions.  Functions of the C library ("D" in MADE) are no arguments, since what
is made of them, a text for instance, shows the last place, which may differ."""
_DOUBLES = (
    "exp", "ln", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "degrees", "radians",
)  # fmt: skip
_PARTS = (
    "year", "quarter", "month", "week", "day", "hour", "minute", "second",
    "millisecond", "microsecond", "dayofweek", "isodow", "dayofyear",
)  # fmt: skip
_UNITS = (
    "microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month",
    "quarter", "year",
)  # fmt: skip
MADE = {
    "S": [
        "upper({S})", "lower({S})", "trim({S})", "ltrim({S}, {S})", "rtrim({S}, {S})",
        "trim({S}, {S})", "ltrim({S})", "rtrim({S})", "concat_ws({S}, {S}, {N}, {B})",
        "left({S}, {N})", "right({S}, {N})", "substring({S}, {N})", "substring({S}, {N}, {N})",
        "split_part({S}, {S}, {N})", "replace({S}, {S}, {S})", "lpad({S}, {L}, {S})",
        "rpad({S}, {L}, {S})", "concat({S}, {S})", "concat({S}, {N}, {B}, {E}, {T})",
        "concat_ws({S}, {S}, {S})", "({S} || {S})", "md5({S})", "sha256({S})", "reverse({S})",
        "CASE WHEN {B} THEN {S} ELSE {S} END", "coalesce({S}, {S})", "nullif({S}, {S})",
        "greatest({S}, {S})", "least({S}, {S}, {S})", "IF({B}, {S}, {S})", "TRY({S})",
        "CAST({N} AS VARCHAR)", "CAST({E} AS VARCHAR)", "CAST({T} AS VARCHAR)",
        "CAST({B} AS VARCHAR)", "CAST(CAST({T} AS DATE) AS VARCHAR)", "md5(CAST('a' AS BLOB))",
        "strftime({T}, '%a %d.%m.%y %H-%M %j')", "regexp_extract({S}, '(.)b?', 1)",
        "regexp_replace({S}, '[a-z]', '<\\0>')", "regexp_replace({S}, 'a|b', '', 'g')",
    ],
    "N": [
        "strpos({S}, {S})", "length({S})", "strlen({S})", "bit_count({W})",
        *(f"date_diff('{unit}', {{T}}, {{T}})" for unit in _UNITS),
        "CAST({S} AS INTEGER)", "TRY_CAST({S} AS BIGINT)", "CAST({B} AS TINYINT)",
        *(f"{part}({{T}})" for part in _PARTS), "extract(hour FROM {T})",
        "date_part('week', {T})", "octet_length(CAST('ab' AS BLOB))",
    ],
    "L": ["strpos({S}, {S})", "length({S})"],
    "W": [
        *(f"({{W}} {op} {{W}})" for op in ("+", "-", "*", "//", "%", "&", "|", "<<", ">>")),
        "(- {W})", "(~ {W})", "abs({W})", "sign({W})", "mod({W}, {W})", "xor({W}, {W})",
        "round({W}, {N})", "trunc({W}, {N})", "greatest({W}, {W})", "least({W}, {W})",
        "CASE WHEN {B} THEN {W} ELSE {W} END", "CASE {W} WHEN {W} THEN {W} END",
        "coalesce({W}, {W})", "nullif({W}, {W})", "CAST({W} AS SMALLINT)", "CAST({E} AS BIGINT)",
        "TRY_CAST({E} AS UTINYINT)", "epoch_ms({T})", "epoch_us({T})", "epoch_us({T} - {T})",
        "epoch_us(to_minutes({N}))", "epoch_us(to_timestamp({N}))", "epoch_ms(to_hours({N}))",
        "sign({E})",
    ],
    "T": [
        "({T} + to_seconds({L}))", "time_bucket(INTERVAL '7 minutes', {T}, TIMESTAMP '2001-01-01')",
        "({T} AT TIME ZONE 'UTC' AT TIME ZONE 'America/New_York')", "coalesce({T}, {T})",
        *(f"date_trunc('{unit}', {{T}})" for unit in _UNITS), "time_bucket(INTERVAL 1 DAY, {T})",
        "({T} - INTERVAL '1 month 2 days')", "({T} + to_days({L}))", "greatest({T}, {T})",
        "CASE WHEN {B} THEN {T} ELSE {T} END", "CAST(CAST({T} AS DATE) AS TIMESTAMP)",
        "make_timestamp({N})", "epoch_ms({N})", "time_bucket(INTERVAL '7 days', {T}, {T})",
        "strptime(strftime({T}, '%c'), '%c')", "try_strptime(nullif(w, {S}), '%Y')",
    ],
    "D": [
        *(f"{name}({{E}})" for name in _DOUBLES), "pow({E}, {N})", "log({E}, {E})",
        "atan2({E}, {E})",
    ],
    "E": [
        "(pi() * {E})", "floor({E})", "ceil({E})", "round({E})", "trunc({E})", "sqrt({E})",
        "round({E}, {L})", "trunc({E}, {L})", "({E} + {E})", "({E} - {W})", "({E} * {E})",
        "({E} / {E})", "({E} % {E})", "({W} / {W})", "abs({E})", "(- {E})", "greatest({E}, {E})",
        "least({E}, {W})", "coalesce({E}, {E})", "CAST({S} AS DOUBLE)", "TRY_CAST({S} AS DOUBLE)",
        "CAST({W} AS FLOAT)", "CAST({E} AS FLOAT)", "CAST({B} AS DOUBLE)", "epoch({T})",
        "epoch(to_seconds({E}))", "CASE WHEN {B} THEN {E} ELSE {E} END",
    ],
    "B": [
        "({S} ILIKE 'A%')", "({S} LIKE '%!_' ESCAPE '!')", "({S} = {S})", "({S} NOT LIKE 'a_%b')",
        "regexp_matches({S}, '^[ab]')", "regexp_full_match({S}, 'a.?')", "contains({S}, {S})",
        "starts_with({S}, {S})", "ends_with({S}, {S})", "({T} >= DATE '2020-01-01')",
        "TRY_CAST({S} AS BOOLEAN)", "isnan({E})", "isinf({E})", "isfinite({E})", "({W} < {W})",
        "({E} >= {E})", "({W} IS DISTINCT FROM {W})", "({S} IS NULL)", "({W} IN ({W}, {W}))",
        "({S} NOT IN ({S}, 'ab'))", "({E} BETWEEN {E} AND {E})", "({B} AND {B})", "({B} OR {B})",
        "(NOT {B})", "({B} IS TRUE)", "(({T} - {T}) < INTERVAL '1 day')", "({T} = {T})",
        "CAST({W} AS BOOLEAN)", "(to_timestamp({N}) > to_timestamp({L}))",
    ],
}  # fmt: skip
PATTERNS = [pattern for made in MADE.values() for pattern in made]
_HOLE = re.compile(r"\{(\w)\}")
_OF_DATA = (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException)
"""DuckDB evaluates constant parts when it binds; these are their errors, and no refusals."""


def argument(rng: random.Random, kind: str, form: int) -> str:
    """A random argument of a kind, in a form."""
    if form < 3:
        return rng.choice(LEAVES[kind][form])
    pattern = rng.choice(MADE[kind])
    return filled(rng, pattern, [form - 1 if form == 4 and not i else -1 for i in range(9)])


def filled(rng: random.Random, pattern: str, forms: list[int]) -> str:
    """The pattern with arguments of these forms, a random leaf where the form is negative."""
    chosen = iter(forms)

    def put(hole: re.Match[str]) -> str:
        form = next(chosen)
        return argument(rng, hole[1], rng.randrange(3) if form < 0 else form)

    return _HOLE.sub(put, pattern)


def expressions(seed: int, count: int) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    """`count` expressions, each with the (pattern, position, form) of its arguments.

    Patterns take turns, and in each pattern the forms of each argument do.
    """
    rng = random.Random(seed)
    for i in range(count):
        turn, at = divmod(i + seed, len(PATTERNS))
        pattern = PATTERNS[at]
        holes = len(_HOLE.findall(pattern))
        forms = [(turn // len(FORMS) ** k + k) % len(FORMS) for k in range(holes)]
        yield filled(rng, pattern, forms), [(pattern, k, form) for k, form in enumerate(forms)]


def differences(
    seed: int, count: int, rows: int = 40, together: int = 100
) -> tuple[set[tuple[str, int, int]], int, list[str]]:
    """(forms that both understand, expressions compared, those that differ and how)."""
    forms, compared, found = set(), 0, []
    made = list(expressions(seed, count))
    for at in range(0, count, together):
        batch = duck.rows(seed * 1_000 + at, rows)
        with duck.connect(batch) as connection, interpreted(), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            part = made[at : at + together]
            wanted = answers(connection, [sql for sql, _ in part])
            given = [duck.evaluated(batch, sql) for sql, _ in part]
        for (sql, places), want, mine in zip(part, wanted, given, strict=True):
            if want is None or mine is None:
                continue
            compared += 1
            forms.update(places)
            if (problem := duck.difference(batch, sql, mine, want)) is not None:
                found += confirmed(batch, sql, problem)
    return forms, compared, found


def confirmed(batch: Batch, sql: str, problem: str) -> list[str]:
    """The problem, if the compiled kernel has one, too."""
    with duck.connect(batch) as connection:
        try:
            return duck.differences(batch, connection, [sql])
        except duckdb.Error:
            return [problem]


def answers(connection: duckdb.DuckDBPyConnection, made: list[str]) -> list[duck.Answer | None]:
    """DuckDB's types and values; None for an expression whose constants are in error.

    An expression that DuckDB refuses has the refusal for its type.
    """
    try:
        return duck.answered(connection, made)
    except duckdb.Error as problem:
        if len(made) > 1:
            half = len(made) // 2
            return answers(connection, made[:half]) + answers(connection, made[half:])
        return [None if isinstance(problem, _OF_DATA) else (f"refused: {problem}", [])]


def main() -> None:
    """Compare, print the differences, and fail where there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    forms, compared, found = differences(given.seed, given.count, rows=60)
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.stdout.write(
        f"{compared} of {given.count} compared, {len(forms)} forms, {len(found)} differ\n"
    )
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
