"""`enrich` as of event time: a row meets the version of its time, as in DuckDB's ASOF join."""

from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.flow import Link
from edged.data.table_terms import TableTerms
from edged.errors import JobError
from edged.operators.enrich import HOW, EnrichPlan
from tests.operators.naive_state import batch_of
from tests.operators.table_programs import MEMBERS, Running, asked, fields
from tests.whole import examples

STREAM = fields(t="timestamp", k="string?", n="int64", i="int64")
TABLE = fields(k="string", n="int64", since="timestamp", x="float64", name="string?", w="int32")
COLUMNS = {"t": "input.t", "i": "input.i", "since": "table.since", "x": "table.x",
           "name": "table.name"}  # fmt: skip
SQL = """
    SELECT epoch_us(s.t), s.i, epoch_us(r.since), r.x, r.name
    FROM s ASOF {how} JOIN r ON s.k = r.k AND s.n = r.n AND s.t >= r.since ORDER BY s.i
"""
KEEP = 20
keys, numbers = st.sampled_from(["a", "b", "long enough to be no inline string"]), st.integers(0, 1)
times = st.integers(0, 60)
versions = st.tuples(
    keys, numbers, times, st.sampled_from([0.0, 1.5]), st.none() | st.just("x"),
    st.sampled_from([1, 1, 1, 1, 1, -1]),
)  # fmt: skip
rows = st.tuples(times, st.none() | keys, numbers)
programs = st.lists(
    st.tuples(st.lists(rows, max_size=8), st.lists(versions, max_size=6), st.integers(0, 15)),
    max_size=8,
)


def plan(how="left", changes="debezium", on=("k", "n"), key=("n", "k"), stream=None, **more):
    document = {"on": list(on), "how": how, "columns": COLUMNS, "as_of": "since", "keep": KEEP}
    weight = "w" if changes == "debezium" else ""
    table = Link(TABLE, "", 0, weight, TableTerms(key, changes, missing="count"))
    links = [stream or Link(STREAM, "t", 7), table]
    return EnrichPlan.parse("operators.e", "e", document | more, links)


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def plain(rows):
    """Rows with times as microseconds."""
    return [
        tuple(
            (v - EPOCH) // timedelta(microseconds=1) if isinstance(v, datetime) else v for v in row
        )
        for row in rows
    ]


class History:
    """All versions that there ever were, of keys that were not deleted."""

    def __init__(self, by_key):
        self.by_key, self.rows, self.refused = by_key, {}, 0

    def apply(self, changed):
        for k, n, since, x, name, w in changed:
            if w == 1 or not self.by_key:
                self.rows[k, n, since] = (x, name)
                continue
            gone = [at for at in self.rows if at[:2] == (k, n)]
            self.refused += not gone
            for at in gone:
                del self.rows[at]

    def arrow(self):
        found = [(*at, *row, 1) for at, row in self.rows.items()]
        return batch_of(TABLE, found).to_arrow()


@pytest.mark.parametrize("member", MEMBERS)
@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(HOW), st.sampled_from(["debezium", "upsert"]), programs,
       st.sampled_from([1, 12]))  # fmt: skip
def test_every_row_meets_the_version_of_its_time(member, how, changes, program, workers):
    history, horizon, watermark, old = History(changes == "debezium"), 0, 0, 0
    with Running(plan(how, changes), member=member, workers=workers) as enrich:
        for sent, changed, advance in program:
            stream = [(t, k, n, i) for i, (t, k, n) in enumerate(sent)]
            history.apply(changed)
            late = [row for row in stream if row[0] < horizon]
            old += len(late)
            kept = batch_of(STREAM, [row for row in stream if row[0] >= horizon]).to_arrow()
            wanted = asked(SQL.format(how=how.upper()), s=kept, r=history.arrow())
            if how == "left":
                wanted = sorted([*wanted, *((t, i, None, None, None) for t, _, _, i in late)],
                                key=lambda row: row[1])  # fmt: skip
            watermark += advance
            assert plain(enrich.beat(stream, changed, watermark_us=watermark)) == wanted
            horizon = max(horizon, watermark - KEEP)
        counters = enrich.operator.counters()
        assert (counters["too_old"], counters["table_refused"]) == (old, history.refused)


def test_versions_go_when_their_key_changes_and_the_next_one_holds_at_the_horizon():
    with Running(plan(changes="upsert"), member="runs") as enrich:
        for n in range(200):
            enrich.beat([], [("a", 0, n, 0.0, None, 1), ("b", n % 2, n, 0.0, None, 1)],
                        watermark_us=n)  # fmt: skip
        keys = batch_of(fields(k="string", n="int64"), [("a", 0), ("b", 0), ("b", 1)])
        kept = np.bincount(enrich.operator._side.rows.probe(keys).probe)
        assert max(kept) <= KEEP + 2 and min(kept) > 1
        state = enrich.operator.save(None)
        enrich.operator.load(state)
        assert plain(enrich.beat([(185, "a", 0, 1)], [])) == [(185, 1, 185, 0.0, None)]
        assert plain(enrich.beat([(170, "a", 0, 1)], [])) == [(170, 1, None, None, None)]


def test_a_restart_gives_the_same_bytes():
    program = [
        ([(n, "a", 0, n), (max(0, n - 9), "b", 1, n)], [("ab"[n % 2], n % 2, n, 0.5, "x", 1)], n)
        for n in range(30)
    ]
    found = []
    for restart in (False, True):
        with Running(plan(changes="upsert"), member="runs") as enrich:
            out = []
            for sent, changed, watermark in program:
                if restart:
                    enrich.operator.load(enrich.operator.save(None))
                out.append(enrich.beat(sent, changed, watermark_us=watermark))
            found.append(out)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"as_of": "sinc"}, "operators.e.as_of: no column is called sinc (did you mean since?)"),
        ({"as_of": "x"}, "operators.e.as_of: x is float64"),
        ({"changes": "insert", "key": ()}, "operators.e.as_of: the table's rows have no versions"),
        ({"key": ("k",)}, "operators.e.on: versions are those of the table's key"),
        ({"keep": "ever"}, "operators.e.keep"),
    ],
)
def test_what_has_no_versions_is_refused_with_its_path(change, problem):
    with pytest.raises(JobError) as fault:
        plan(**change)
    assert problem in str(fault.value)


def test_keep_needs_versions():
    links = [Link(STREAM, "t"), Link(TABLE, "", 0, "w", TableTerms(("k",), "debezium"))]
    with pytest.raises(JobError, match=r"operators\.e\.keep: keeps versions"):
        EnrichPlan.parse("operators.e", "e", {"on": ["k"], "keep": "1h"}, links)
