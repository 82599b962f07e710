"""Functions of strings and times with every form of argument, compared with DuckDB.

    python -m tests.job.expression_forms --count 2000 --seed 1

An argument is a literal, a column, a nullable column, or an expression nested one or two deep.
"""

from __future__ import annotations

import argparse
import random

import duckdb

from tests.job import expressions_duckdb as duck

LEAVES = {
    "S": ["'a'", "'日本é'", "''", "w", "s"],
    "N": ["0", "2", "-1", "i8", "greatest(k, -9) % 7"],
    "L": ["3", "0", "i8", "-2"],
    "T": ["TIMESTAMP '2020-02-29 12:34:56.5'", "t", "ts"],
    "D": ["1.5e0", "x", "f64"],
    "B": ["b", "k > 1", "TRUE"],
}
MADE = {
    "S": [
        "upper({S})", "lower({S})", "trim({S})", "ltrim({S}, {S})", "rtrim({S}, {S})",
        "left({S}, {N})", "right({S}, {N})", "substring({S}, {N})", "substring({S}, {N}, {N})",
        "split_part({S}, {S}, {N})", "replace({S}, {S}, {S})", "lpad({S}, {L}, {S})",
        "rpad({S}, {L}, {S})", "concat({S}, {S})", "concat({S}, {N}, {B}, {D}, {T})",
        "concat_ws({S}, {S}, {S})", "({S} || {S})", "md5({S})", "sha256({S})", "reverse({S})",
        "CASE WHEN {B} THEN {S} ELSE {S} END", "coalesce({S}, {S})", "nullif({S}, {S})",
        "CAST({N} AS VARCHAR)", "CAST({D} AS VARCHAR)", "CAST({T} AS VARCHAR)",
        "CAST({B} AS VARCHAR)", "CAST(CAST({T} AS DATE) AS VARCHAR)",
        "strftime({T}, '%a %d.%m.%y %H-%M %j')", "regexp_extract({S}, '(.)b?', 1)",
        "regexp_replace({S}, '[a-z]', '<\\0>')", "regexp_replace({S}, 'a|b', '', 'g')",
    ],
    "N": [
        "strpos({S}, {S})", "length({S})", "date_diff('day', {T}, {T})", "bit_count({N})",
        "date_diff('month', {T}, {T})", "CAST({S} AS INTEGER)", "TRY_CAST({S} AS BIGINT)",
    ],
    "L": ["strpos({S}, {S})", "length({S})"],
    "T": [
        "({T} + to_seconds({L}))", "time_bucket(INTERVAL '7 minutes', {T}, TIMESTAMP '2001-01-01')",
        "({T} AT TIME ZONE 'UTC' AT TIME ZONE 'America/New_York')", "date_trunc('hour', {T})",
        "coalesce({T}, {T})", "CAST(CAST({T} AS DATE) AS TIMESTAMP)",
        "strptime(strftime({T}, '%c'), '%c')", "try_strptime({S}, '%Y')",
    ],
    "D": ["CAST({S} AS DOUBLE)", "TRY_CAST({S} AS DOUBLE)", "epoch({T})"],
    "B": [
        "({S} ILIKE 'A%')", "({S} LIKE '%!_' ESCAPE '!')", "({S} = {S})", "isnan({D})",
        "regexp_matches({S}, '^[ab]')", "regexp_full_match({S}, 'a.?')", "contains({S}, {S})",
        "({T} >= DATE '2020-01-01')", "TRY_CAST({S} AS BOOLEAN)",
    ],
}  # fmt: skip


def expression(rng, kind, depth):
    """A random expression of a kind, nested at most `depth` deep."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(LEAVES[kind])
    return fill(rng, rng.choice(MADE[kind]), depth - 1)


def fill(rng, pattern, depth):
    """The pattern with expressions for its braces."""
    while (at := pattern.find("{")) >= 0:
        kind = pattern[at + 1]
        pattern = pattern[:at] + expression(rng, kind, depth) + pattern[at + 3 :]
    return pattern


def expressions(seed, count):
    """`count` expressions, each pattern in turn at its top."""
    rng = random.Random(seed)
    patterns = [pattern for made in MADE.values() for pattern in made]
    start = rng.randrange(len(patterns))
    return [
        fill(rng, patterns[(start + i) % len(patterns)], rng.randrange(3)) for i in range(count)
    ]


def differences(seed, count, together=60):
    """How many of the expressions both understand, and those that differ."""
    batch = duck.rows(seed, 150)
    made, compared, found = expressions(seed, count), 0, []
    with duck.connect(batch) as connection:
        for at in range(0, count, together):
            usable = [e for e in made[at : at + together] if understood(connection, e)]
            compared += len(usable)
            found += duck.differences(batch, connection, usable)
    return compared, found


def understood(connection, sql):
    """Whether both accept the expression; DuckDB evaluates constant parts when it binds."""
    if duck.bind(sql) is None:
        return False
    try:
        duck.duckdb_type(connection, f"TRY({sql})")
    except duckdb.Error:
        return False
    return True


def main():
    """Compare, print the differences, and fail where there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    _compared, found = differences(given.seed, given.count)
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
