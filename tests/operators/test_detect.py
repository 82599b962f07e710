"""`detect`: steps in order within a time, equal to a plain search from every row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow, Link
from edged.data.scratch import Scratch
from edged.errors import JobError
from edged.operators.detect import DetectPlan
from tests.naive import detect as naive
from tests.naive.keyed import key_of
from tests.operators.keyed_cases import (
    ON,
    ONE,
    SCHEMA,
    TIME,
    WORKERS,
    N,
    beats,
    feed,
    goes_on,
    plainly,
    run,
    takes_over,
    wide,
)  # fmt: skip
from tests.whole import examples

CONDITIONS = {
    '"on"': lambda row: row[ON] is True,
    'not "on"': lambda row: row[ON] is False,
    "n = 1": lambda row: row[N] == 1,
}
conditions = st.sampled_from(list(CONDITIONS))


@st.composite
def documents(draw):
    steps = [{"name": f"s{i}", "where": draw(conditions)} for i in range(draw(st.integers(2, 4)))]
    for step in steps[1:]:
        if draw(st.booleans()):
            step["unless"] = draw(conditions)
    last = steps[-1]["name"]
    columns = {"k": f"{last}.k", "time": f"{last}.time"}
    for step in steps[:-1]:
        columns |= {
            f"{step['name']}_at": f"{step['name']}.time",
            f"{step['name']}_s": f"{step['name']}.s",
        }
    return {
        "keys": draw(st.sampled_from([["k"], ["x"], ["k", "n"]])), "steps": steps,
        "within": draw(st.integers(1, 60)), "columns": columns,
        "after": draw(st.sampled_from(["last_row", "next_row"])),
    }  # fmt: skip


def plan(**document):
    return DetectPlan.parse("operators.d", "d", document, [Link(SCHEMA, "time")])


def expected(p, document, rows):
    """All matches, by last row and then first row."""
    ordered = sorted((row for beat in rows for row in beat), key=lambda row: row[TIME])
    keyed = {}
    for place, row in enumerate(ordered):
        keyed.setdefault(key_of(row, [SCHEMA.index(k) for k in p.by]), []).append(place)
    steps = [
        (CONDITIONS[s["where"]], CONDITIONS.get(s.get("unless", ""))) for s in document["steps"]
    ]
    found = []
    for places in keyed.values():
        mine = [ordered[place] for place in places]
        taken = naive.matches(mine, steps, TIME, p.within_us, p.after == "last_row")
        found += [[places[i] for i in match] for match in taken]
    found.sort(key=lambda match: (match[-1], match[0]))
    return [[ordered[match[c.step]][SCHEMA.index(c.source)] for c in p.columns] for match in found]


@settings(max_examples=examples(400), deadline=None)
@given(documents(), beats(), st.sampled_from([1, 2, 12]))
def test_matches_are_those_of_the_twin(document, case, workers):
    p = plan(**document)
    found = [row for beat in run(p, *case, workers) for row in beat]
    assert plainly(found) == plainly(expected(p, document, case[0]))


@settings(max_examples=examples(150), deadline=None)
@given(
    documents(), beats(on_time=False), st.integers(0, 5),
    st.sampled_from([(1, 2), (12, 1), (2, 12)]),
)  # fmt: skip
def test_a_restored_operator_goes_on_byte_for_byte(document, case, cut, workers):
    goes_on(plan(**document), case, cut, workers)


@settings(max_examples=examples(100), deadline=None)
@given(documents(), beats(), st.integers(0, 5), st.integers(1, 3))
def test_instances_that_take_over_give_the_same_matches(document, case, cut, instances):
    takes_over(plan(**document), case, cut, instances)


PLAIN = [{"name": "a", "where": '"on"'}, {"name": "b", "where": 'not "on"', "unless": "n = 1"}]


def rows_of(*rows):
    return [["k", n, time, on, None, None] for time, on, n in rows]


def test_by_default_the_keys_and_the_time_of_each_step_come_out():
    p = plan(keys=["k"], within="1s", steps=PLAIN)
    assert p.output.time == "b_time"
    operator = p.build(ONE)
    found = feed(operator, rows_of((1, True, 0), (2, True, 0), (3, False, 0), (4, False, 0)), 9)
    assert found == [["k", 1, 3]]
    feed(operator, rows_of((10, True, 0), (11, None, 1), (12, False, 0)), 12)
    counts = {"matches": 1, "attempts": 3, "broken": 1, "keys": 1, "rows_kept": 7}
    assert operator.counters() == {
        **counts, "rows_waiting": 0, "rows_late": 0, "rows_in_error": 0,
    }  # fmt: skip


def test_after_next_row_matches_may_overlap():
    p = plan(keys=["k"], within="1s", steps=PLAIN, after="next_row")
    found = feed(p.build(ONE), rows_of((1, True, 0), (2, True, 0), (3, False, 0)), 9)
    assert found == [["k", 1, 3], ["k", 2, 3]]


@pytest.mark.parametrize(("key", "instances"), [("k", 0), ("k", 1), ("l", 0), ("l", 2)])
def test_a_late_attempt_ends_none_that_began_before_it(key, instances):
    p = plan(keys=["k"], within=50, steps=PLAIN)
    operator = p.build(ONE)
    feed(operator, rows_of((100, True, 0)), 100)
    feed(operator, [[key, *row[1:]] for row in rows_of((10, True, 0), (11, True, 0))], 100)
    states = [operator.save(Scratch())]
    if instances:
        states = p.redistribute(
            [["k"]], states, instances, lambda h: (h % np.uint64(instances)).astype(np.int64)
        )
    found = []
    for state in states:
        operator = p.build(ONE)
        operator.load(state)
        feed(operator, [], 101)
        found += feed(operator, rows_of((120, False, 0)), 120)
    assert ["k", 100, 120] in found


def test_rows_that_are_over_leave_the_memory():
    operator = plan(keys=["k"], within=1000, steps=PLAIN).build(ONE)
    for start in range(0, 200_000, 20_000):
        batch = wide(20_000, start, start)
        operator.run(BeatContext(1, 0, ONE), [Flow(batch, start + 19_999)])
    assert operator.counters()["rows_kept"] < 2_000
    assert operator.counters()["matches"] > 1_000
    assert operator.state_bytes() < 6e6


@pytest.mark.parametrize("after", ["last_row", "next_row"])
def test_workers_share_large_beats(after):
    p = plan(keys=["k"], within=5_000, steps=PLAIN, after=after)
    found = []
    for count in (1, 12):
        operator, rows = p.build(WORKERS[count]), []
        for number in range(3):
            batch = wide(20_000, number, 20_000 * number, 50)
            flow = Flow(batch, 20_000 * number + 19_000)
            rows.append(operator.run(BeatContext(1, 0, WORKERS[count]), [flow]).batch.to_arrow())
        state = operator.save(Scratch())
        found.append((rows, {name: a.tobytes() for name, a in state.items()}))
    assert all(a.equals(b) for a, b in zip(found[0][0], found[1][0], strict=True))
    assert found[0][1] == found[1][1]
    assert sum(batch.num_rows for batch in found[0][0]) > 1_000


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"steps": PLAIN[:1]}, "operators.d.steps"),
        ({"steps": [PLAIN[0], 7]}, "operators.d.steps[1]"),
        ({"steps": [PLAIN[0], PLAIN[0]]}, "operators.d.steps[1].name"),
        ({"steps": [PLAIN[1], PLAIN[0]]}, "operators.d.steps[0].unless"),
        ({"steps": [PLAIN[0], {"name": "b", "where": "y > 1"}]}, "operators.d.steps[1].where"),
        ({"steps": [PLAIN[0], {"name": "b", "wher": "n > 1"}]}, "operators.d.steps[1].wher"),
        ({"within": "0s"}, "operators.d.within"),
        ({"after": "match"}, "operators.d.after"),
        ({"keys": ["kk"]}, "operators.d.keys[0]"),
        ({"columns": {"time": "a.time"}}, "operators.d.columns"),
        ({"columns": {"time": "b.time", "x": "c.x"}}, "operators.d.columns.x"),
        ({"columns": {"time": "b.time", "x": "a.y"}}, "operators.d.columns.x"),
    ],
)
def test_a_wrong_document_is_refused_with_its_path(document, path):
    with pytest.raises(JobError) as refused:
        plan(**{"keys": ["k"], "within": "1s", "steps": PLAIN, **document})
    assert path in str(refused.value)


def test_weighted_rows_are_refused():
    with pytest.raises(JobError, match="weights"):
        DetectPlan.parse(
            "operators.d", "d", {"within": "1s", "steps": PLAIN}, [Link(SCHEMA, "time", weight="n")]
        )


def test_the_end_of_a_stream_gives_nothing_more():
    p = plan(keys=["k"], within="1s", steps=PLAIN)
    operator = p.build(ONE)
    feed(operator, rows_of((1, True, 0)), 1)
    assert feed(operator, [], WATERMARK_MAX_US) == []
