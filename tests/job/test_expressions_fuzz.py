"""Random expressions over random rows mean the same to edged and to DuckDB."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from edged.data.columns import empty_batch
from edged.data.workers import Workers
from edged.expressions import cache, functions
from edged.expressions.program import Projection
from tests.job import expression_forms
from tests.job import expressions_duckdb as duck
from tests.sources import test_lists

NUMBERS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "k", "x"]
LITERALS = ["0", "1", "-1", "2", "7", "100", "300", "-40000", "3000000000", "9223372036854775807"]
LITERALS += ["1e0", "-2.5e0", "1e300", "0.5e0", "NULL"]
INTEGERS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "k"]
TYPES = ["TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"]
TYPES += ["FLOAT", "DOUBLE"]
TEXTS = ["'a'", "'ab'", "''", "'é'", "'日本'", "'_'", "'''; DROP'"]
PATTERNS = ["'a%'", "'%a'", "'%a%'", "'a_'", "'_'", "'%_%'", "'é%'", "'%本%'", "'a%b'", "''", "'%'"]
TIMES = ["TIMESTAMP '2020-01-01'", "TIMESTAMP '1969-12-31 12:00:00.5'", "'2021-03-04 05:06:07'"]
INTERVALS = ["'5 minutes'", "'1 day'", "'-1 month'", "'1 year 2 days'", "'1.5 hours'", "'90 s'"]
UNITS = ["microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month"]
UNITS += ["quarter", "year"]
PARTS = [*UNITS, "dow", "isodow", "doy", "epoch"]


def one_of(*options):
    return st.one_of(*options)


def pick(values):
    return st.sampled_from(values)


def f(pattern, *parts):
    """The pattern with SQL put in for its braces."""
    return st.tuples(*parts).map(lambda given: pattern.format(*given))


def numbers(depth):
    leaf = one_of(pick(NUMBERS), pick(NUMBERS), pick(LITERALS))
    if depth == 0:
        return leaf
    n, b = numbers(depth - 1), conditions(depth - 1)
    whole = one_of(pick(INTEGERS), pick(["0", "1", "3", "7", "12"]))
    return one_of(
        leaf,
        f("({} {} {})", n, pick(["+", "-", "*", "/", "//", "%"]), n),
        f("({} {} {})", n, pick(["+", "-", "*"]), n),
        f("(- {})", n),
        f("({} {} {})", whole, pick(["&", "|", "<<", ">>"]), whole),
        f("{}({})", pick(["abs", "floor", "ceil", "round", "trunc", "sign"]), n),
        f("{}({}, {})", pick(["round", "trunc"]), n, pick(["0", "1", "2", "-1", "-3", "i8"])),
        f("{}({})", pick(["sqrt", "exp", "ln", "log10", "log2", "sin", "atan", "degrees"]), n),
        f("{}({}, {})", pick(["pow", "atan2"]), n, n),
        f("{}({}, {}, {})", pick(["greatest", "least", "coalesce"]), n, n, n),
        f("nullif({}, {})", n, n),
        f("CASE WHEN {} THEN {} ELSE {} END", b, n, n),
        f("CASE {} WHEN {} THEN {} END", n, n, n),
        f("CAST({} AS {})", one_of(n, b), pick(TYPES)),
        f("TRY_CAST({} AS {})", n, pick(TYPES)),
        f("{}({})", pick(["length", "strlen"]), texts(depth - 1)),
        f("extract({} FROM {})", pick(PARTS), pick(["ts", "t"])),
        f("{}({})", pick(["epoch", "epoch_ms", "epoch_us"]), moments(depth - 1)),
        f("epoch_us({} - {})", pick(["ts", "t"]), pick(["ts", "t", TIMES[0]])),
    )


def conditions(depth):
    leaf = one_of(pick(["b", "TRUE", "FALSE", "(NULL = 1)", "k > 1", "x > 0", "f64 <= 1"]))
    if depth == 0:
        return leaf
    n, b, s, m = (part(depth - 1) for part in (numbers, conditions, texts, moments))
    compare = pick(["=", "<>", "<", "<=", ">", ">="])
    distinct = pick(["IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
    return one_of(
        f("({} {} {})", n, one_of(compare, distinct), n),
        f("({} {} {})", s, one_of(compare, distinct), s),
        f("({} {} {})", pick(["ts", "t"]), one_of(compare, distinct), m),
        f(
            "(({} - {}) {} INTERVAL {})",
            pick(["ts", "t"]),
            pick(["ts", "t"]),
            compare,
            pick(INTERVALS),
        ),
        f("({} {} {})", b, pick(["AND", "OR"]), b),
        f("({} AND {} AND {})", b, b, b),
        f("(NOT {})", b),
        f("({} IS {})", b, pick(["NULL", "NOT NULL", "TRUE", "NOT FALSE"])),
        f("({} IS NULL)", one_of(n, s)),
        f("({} BETWEEN {} AND {})", n, n, n),
        f("({} {} ({}, {}))", n, pick(["IN", "NOT IN"]), n, n),
        f("({} IN ({}, {}))", s, s, s),
        f("({} {} {})", s, pick(["LIKE", "NOT LIKE"]), pick(PATTERNS)),
        f("{}({}, {})", pick(["starts_with", "ends_with", "contains"]), s, s),
        f("{}({})", pick(["isnan", "isinf", "isfinite"]), n),
        f("CAST({} AS BOOLEAN)", n),
        f("coalesce({}, {})", b, b),
    )


def texts(depth):
    leaf = one_of(pick(["s", "w"]), pick(TEXTS))
    if depth == 0:
        return leaf
    s, b, c = texts(depth - 1), conditions(depth - 1), pick(["s", "w"])
    return one_of(
        leaf,
        f("CASE WHEN {} THEN {} ELSE {} END", b, s, s),
        f("{}({}, {})", pick(["coalesce", "greatest", "least", "nullif"]), s, s),
        f("{}({})", pick(["upper", "lower", "trim", "ltrim", "rtrim"]), c),
        f("({} || {})", c, one_of(c, pick(TEXTS))),
        f("substring({}, {}, {})", c, pick(["1", "2", "5"]), pick(["0", "1", "3"])),
    )


def moments(depth):
    leaf = pick(["ts", "t", TIMES[0], TIMES[1]])
    if depth == 0:
        return leaf
    m, b = moments(depth - 1), conditions(depth - 1)
    column = pick(["ts", "t"])
    return one_of(
        leaf,
        f("({} {} INTERVAL {})", column, pick(["+", "-"]), pick(INTERVALS)),
        f("date_trunc('{}', {})", pick(UNITS), m),
        f("time_bucket(INTERVAL {}, {})", pick(["'5 minutes'", "'7 days'", "'1.5 hours'"]), m),
        f("CASE WHEN {} THEN {} ELSE {} END", b, m, m),
        f("coalesce({}, {})", column, m),
    )


def understood_by_both(connection, sql):
    """Whether both accept it; DuckDB must accept everything that edged accepts.

    DuckDB evaluates constant parts when it binds; its errors there do not count as refusals.
    """
    if duck.bind(sql) is None:
        return False
    try:
        duck.duckdb_type(connection, f"TRY({sql})")
    except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException):
        return False
    return True


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Kernels of these tests go to a cache of their own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("EDGED_CACHE", str(tmp_path_factory.mktemp("expr")))
    cache.cache_directory.cache_clear()
    yield
    patch.undo()
    cache.cache_directory.cache_clear()


SETTINGS = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
"""No shrinking: every try compiles, and a failure names its expression and row anyway.

The expressions are the same on every run.  DuckDB skips the second operand, and its error, where it
detects that the first is NULL in a whole vector; random trees can differ for that reason.
"""


@st.composite
def expressions_of(draw, kind):
    """A dozen random expressions of a kind."""
    return [draw(kind(2)) for _ in range(10)]


@duck.needs_duckdb_2
@pytest.mark.parametrize("kind", [numbers, conditions, texts, moments])
def test_random_expressions_give_what_duckdb_gives_row_by_row(kind):
    kept = []

    @SETTINGS
    @given(expressions_of(kind))
    def check(expressions):
        usable = [e for e in expressions if understood_by_both(connection, e)]
        kept.append(len(usable) / len(expressions))
        if usable:
            duck.compare(batch, connection, usable)

    batch = duck.rows(sum(map(ord, kind.__name__)), 200)
    with duck.connect(batch) as connection:
        check()
    assert sum(kept) / len(kept) > 0.4, "the generator makes too much that edged refuses"


@duck.needs_duckdb_2
def test_functions_with_every_form_of_argument_give_what_duckdb_gives():
    forms, compared, found = expression_forms.differences(seed=7, count=1_000)
    assert found == []
    assert compared > 950
    assert len(forms) > 1_000


def test_every_function_is_compared_with_duckdb():
    renamed = {"dow": "dayofweek(", "doy": "dayofyear(", "||": "||"}
    text = " ".join([*expression_forms.PATTERNS, *test_lists.CALLS.values()])
    known = list(functions.FUNCTIONS.load())
    missing = [name for name in known if renamed.get(name, f"{name}(") not in text]
    assert missing == []


def test_a_batch_of_no_rows_gives_no_rows():
    columns = {"a": "i8 + 1", "b": "upper(s) || 'x'", "c": "CASE WHEN b THEN s ELSE w END"}
    plan = Projection.of("c", columns, duck.SCHEMA)
    done = plan.build(child=False).project(empty_batch(duck.SCHEMA), Workers(1))
    assert done.rows == 0
    assert done.to_arrow().schema.names == ["a", "b", "c"]
