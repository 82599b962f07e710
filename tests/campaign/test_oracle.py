"""The oracle sees each way to break the promise, and the seeded slice of the campaign holds it."""

import numpy as np
import pyarrow as pa
import pytest

from tests.campaign import oracle
from tests.campaign.oracle import Landed

ACKED = {("a", 1): 3, ("a", 2): 2, ("b", 1): 3, ("b", 2): 1}


def rows(*batches):
    """Landed rows of these (producer, batch)."""
    return pa.Table.from_batches([oracle.batch(*b) for b in batches], oracle.SCHEMA)


WHOLE = rows((1, 1), (2, 1), (1, 2), (2, 2), (1, 3))
PAIRS = rows((1, 1), (1, 2), (1, 3), (2, 1))


@pytest.fixture
def judged(monkeypatch):
    """The verdict over a landing with these rows and pairs."""

    def judge(landed, pairs=PAIRS, corrupt_pages=0, lost=None):
        tables = {"rows": landed, "pairs": pairs.append_column("other", pairs.column("id"))}
        empty = pa.table({"id": pa.array([], pa.int64())})
        monkeypatch.setattr(
            oracle,
            "read",
            lambda _, stream: Landed(
                tables.get(stream, empty), corrupt_pages if stream == "rows" else 0
            ),
        )
        v = oracle.judge("", ACKED, lost)
        return v.missing, v.duplicates, v.corrupted, v.reordered, v.gaps

    return judge


def test_a_whole_landing_is_right_with_rows_that_were_sent_and_not_acknowledged(judged):
    assert judged(WHOLE) == (0, 0, 0, 0, 0)
    assert judged(pa.concat_tables([WHOLE, rows((1, 4))])) == (0, 0, 0, 0, 0)


def test_each_way_to_break_the_promise_is_counted(judged):
    assert judged(WHOLE.slice(3)) == (3, 0, 0, 0, 0)
    assert judged(WHOLE, rows((1, 1), (1, 2), (1, 3))) == (20, 0, 0, 0, 0)
    twice = pa.concat_tables([WHOLE, rows((1, 3))])
    assert judged(twice)[1] == 20
    assert judged(rows((1, 2), (2, 1), (1, 1), (2, 2), (1, 3))) == (0, 0, 0, 20, 0)
    assert judged(pa.concat_tables([WHOLE, rows((7, 1))])) == (0, 0, 20, 0, 0)
    assert judged(WHOLE, corrupt_pages=1) == (0, 0, 1, 0, 0)


@pytest.mark.parametrize(("column", "value"), [("check", 1), ("note", "x")])
def test_a_row_with_another_content_is_corrupted(judged, column, value):
    values = WHOLE.column(column).to_pylist()
    values[7] = value
    at = WHOLE.column_names.index(column)
    changed = WHOLE.set_column(at, column, pa.array(values, WHOLE.schema.field(column).type))
    assert judged(changed) == (0, 0, 1, 0, 0)


def test_what_is_reported_lost_is_not_missing(judged):
    lost = {"rows": oracle.ids(1, 1, 1)}
    assert judged(WHOLE.slice(20), lost=lost) == (0, 0, 0, 0, 20)
    assert judged(WHOLE.slice(21), lost=lost) == (1, 0, 0, 0, 20)


def test_ids_name_their_producer_batch_and_place_and_checks_differ():
    found = oracle.ids(5, 1, 1000)
    assert len(np.unique(found)) == len(np.unique(oracle.check_of(found))) == 20_000
    assert set(found >> 48) == {5}
