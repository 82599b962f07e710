"""Debezium's events become rows with weights, as a plain reader says; bad ones name their line."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.change_events import with_weight_column
from edged.data.columns import Batch
from edged.data.debezium import DebeziumDecoder, EventError
from edged.data.schema import TYPES, Field, Schema
from edged.data.staging import Staging
from edged.errors import ConfigError, JobError
from edged.job.plan import StreamPlan, faults, parse_job
from edged.sources.file import FileSourcePlan
from edged.sources.reading import Reader
from tests.whole import examples

PLAIN = Schema.of(
    [
        Field("id", TYPES["int64"]),
        Field("name", TYPES["string"], True),
        Field("x", TYPES["float64"], True),
        Field("ok", TYPES["bool"]),
        Field("at", TYPES["timestamp"]),
    ]
)
SCHEMA = with_weight_column("columns", PLAIN)
DECODER = DebeziumDecoder(SCHEMA, {"x": "kw"})
ROW = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(max_size=5),
        "kw": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "ok": st.booleans(),
        "at": st.integers(0, 2**50),
        "more": st.none() | st.lists(st.integers(0, 9), max_size=2),
    }
)
EVENTS = st.lists(
    st.tuples(st.sampled_from("crud"), ROW, ROW, st.sampled_from(["plain", "payload", "null", ""])),
    max_size=15,
)


def envelope(op, before, after, form="plain"):
    event = {"op": op, "source": {"snapshot": "false"}, "ts_ms": 3}
    event |= {"before": before if op in "ud" else None}
    event |= {"after": after} if op in "cru" else {}
    return event if form == "plain" else {"schema": {"type": "struct"}, "payload": event}


def lines(events):
    """The text of events, with tombstones and blank lines where they ask for them."""
    out = []
    for op, before, after, form in events:
        out += {"null": ["null"], "": ["", " \t"]}.get(form, [])
        out.append(json.dumps(envelope(op, before, after, form), ensure_ascii=False))
    return "\n".join(out).encode()


def expected(events):
    rows = []
    for op, before, after, _ in events:
        rows += [(before, -1)] if op in "ud" else []
        rows += [(after, 1)] if op in "cru" else []
    return [(r["id"], r["name"], r["kw"], r["ok"], r["at"], w) for r, w in rows]


def values(batch):
    columns = [batch.column(i) for i in range(batch.num_columns)]
    plain = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in columns]
    return list(zip(*[c.to_pylist() for c in plain], strict=True))


@settings(max_examples=examples(200), deadline=None)
@given(EVENTS)
def test_events_become_the_rows_of_a_plain_reader(events):
    found = DECODER.decode(lines(events))
    assert values(found.rows) == expected(events)
    assert found.rows.schema == SCHEMA.to_arrow()
    assert not found.populated


GOOD = json.dumps(envelope("c", None, {"id": 1, "ok": True, "at": 5}))
BY_KEY = DebeziumDecoder(SCHEMA, {"x": "kw"}, ("id",))
KEYED = st.lists(
    st.tuples(st.sampled_from("crud"), ROW, ROW, st.sampled_from(["none", "key", "whole"])),
    max_size=15,
)


@settings(max_examples=examples(200), deadline=None)
@given(KEYED)
def test_events_by_key_need_no_whole_old_row(events):
    out, wanted = [], []
    for op, before, after, old in events:
        row = {"none": None, "key": {"id": before["id"], "name": None}, "whole": before}[old]
        if op == "d":
            row = row or {"id": before["id"]}
        out.append({"op": op, "before": row if op in "ud" else None})
        out[-1] |= {"after": after} if op in "cru" else {}
        if op == "d" or (op == "u" and row and before["id"] != after["id"]):
            wanted.append((before["id"], -1))
        if op in "cru":
            wanted.append((*[after[k] for k in ("id", "name", "kw", "ok", "at")], 1))
    found = values(BY_KEY.decode("\n".join(map(json.dumps, out)).encode()).rows)
    assert [(r[0], r[-1]) if r[-1] < 0 else r for r in found] == wanted


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ('{"op": "d", "before": {"name": "x"}}', "before has no id"),
        ('{"op": "d", "before": null}', "op d has no before"),
        ('{"op": "u", "before": null}', "op u has no after"),
        ('{"op": "u", "after": {"id": 1, "ok": true}}', "after has no at"),
        ('{"op": "u", "before": {"id": null}, "after": {"id": 1, "ok": true, "at": 5}}',
         "before has no id"),
        ('{"op": "u", "after": {"id": 1, "ok": true', "line 3"),
    ],
)  # fmt: skip
def test_bad_events_by_key_name_their_line(bad, problem):
    text = f"\n{GOOD}\n{bad}"
    with pytest.raises(EventError, match=problem) as fault:
        BY_KEY.decode(text.encode())
    assert fault.value.line == 3


@settings(max_examples=examples(60), deadline=None)
@given(EVENTS, st.data())
def test_a_truncated_event_names_its_line(events, data):
    text = lines([*events, ("u", *[dict.fromkeys(("id", "at"), 1) | {"ok": True}] * 2, "plain")])
    start = text.rfind(b"\n") + 1
    cut = data.draw(st.integers(start + 1, len(text) - 1))
    with pytest.raises(EventError) as fault:
        DECODER.decode(text[:cut])
    assert fault.value.line == text.count(b"\n") + 1


BAD = [
    ('{"op": "t"}', "op t truncates the table"),
    ('{"op": "m", "message": {}}', "op 'm' is none of c, r, u, d"),
    ('{"id": 3}', "has no op"),
    ('{"payload": {"after": {}}}', "has no op"),
    ('{"op": "u", "after": {"id": 1, "ok": true, "at": 5}}', "op u has no before"),
    ('{"op": "d", "before": null}', "op d has no before"),
    ('{"op": "c", "before": {"id": 1}}', "op c has no after"),
    ('{"op": "c", "after": {"id": 1, "ok": true}}', "after has no at"),
    ('{"op": "d", "before": {"id": 1, "ok": null, "at": 5}}', "before has no ok"),
    ('{"op": "c", "after": {"id": 1.5, "ok": true, "at": 5}}', "couldn't parse:1.5"),
    ('{"op": "c", "after": {"id": 99999999999999999999, "ok": true, "at": 5}}', "couldn't parse"),
    ('{"op": "c", "after": {"id": "1", "ok": true, "at": 5}}', "from number to string"),
    ('{"op": "c", "after": {"id": 1, "ok": true, "at": "noon"}}', "from number to string"),
    ('{"op": "c", "op": "d"}', "specified twice"),
    ('{"op": 3}', "from string to number"),
    ("[1]", "is no object"),
    ("3", "is no object"),
    ("nullx", "is no object"),
    (GOOD + " " + GOOD, "one event a line is expected"),
]


@pytest.mark.parametrize(("bad", "problem"), BAD)
@pytest.mark.parametrize("before", [0, 3])
def test_bad_events_name_their_line(bad, problem, before):
    text = "\n".join([GOOD, "null", ""][:before] + [GOOD] * before + [bad] + [GOOD] * 2)
    if not before and "from number to" in problem:
        return  # without a number before it, the first value decides
    with pytest.raises(EventError, match=problem) as fault:
        DECODER.decode(text.encode())
    assert fault.value.line == 2 * before + 1


def test_bytes_that_are_not_utf_8_name_their_line():
    text = GOOD.encode() + b'\n{"op": "c", "after": {"name": "\xff"}}'
    with pytest.raises(EventError, match="line 2: 'utf-8' codec"):
        DECODER.decode(text)


def test_timestamps_are_text_or_microseconds():
    rows = [{"id": 1, "ok": True, "at": t} for t in ("2024-01-01T00:00:00Z", "2024-01-01T01:00Z")]
    text = "\n".join(json.dumps(envelope("u", *rows)) for _ in range(2))
    assert {r[4] for r in values(DECODER.decode(text.encode()).rows)} == {
        1704067200000000,
        1704070800000000,
    }
    wrong = json.dumps(envelope("c", None, {**rows[0], "at": "noon"}))
    with pytest.raises(EventError, match=r"line 3: .*noon"):
        DECODER.decode(f"{text}\n{wrong}".encode())


def test_the_last_event_of_a_snapshot_ends_the_population():
    event = envelope("r", None, {"id": 1, "ok": True, "at": 5, "name": '"snapshot":"last"'})
    assert not DECODER.decode(json.dumps(event).encode()).populated
    event["after"]["snapshot"] = "last"
    assert not DECODER.decode(json.dumps(event).encode()).populated
    event["source"] = {"snapshot": "last"}
    assert DECODER.decode(json.dumps(event).encode()).populated
    assert DECODER.decode(json.dumps({"payload": event}).encode()).populated


def read(path, schema=SCHEMA, **more):
    return Reader([str(path)], schema, {"x": "kw"}, events=True, **more)


def test_files_of_events_are_read_on_from_any_row(tmp_path, monkeypatch):
    monkeypatch.setattr("edged.sources.reading._BLOCK_BYTES", 700)
    rows = [{"id": i, "ok": True, "at": i} for i in range(60)]
    events = [("crud"[i % 4], r, r, "plain") for i, r in enumerate(rows)]
    for name, opened in (("a.ndjson", open), ("b.ndjson.gz", gzip.open)):
        path = tmp_path / name
        with opened(path, "wb") as file:
            file.write(lines([(*e[:3], "plain") for e in events]) + b"\n\nnull\n")
        wanted = [row["id"] for row, op in zip(rows, "crud" * 15, strict=True)
                  for _ in range(1 + (op == "u"))]  # fmt: skip
        for skip in (0, 1, 14, 74, 75):
            batches: list[Batch] = list(read(path).batches(skip))
            assert [v for b in batches for v in b["id"].values.tolist()] == wanted[skip:]
            weights = Counter(v for b in batches for v in b["_weight"].values.tolist())
            assert sum(weights.values()) == 75 - skip


def test_a_bad_event_names_its_file_and_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr("edged.sources.reading._BLOCK_BYTES", 200)
    path = tmp_path / "events.ndjson"
    path.write_text("\n" * 300 + "\n".join([GOOD] * 20) + '\n{"op": "t"}\n')
    with pytest.raises(ConfigError, match=r"events\.ndjson: line 321: op t truncates"):
        list(read(path).batches())
    (tmp_path / "rows.csv").write_text("id\n1\n")
    with pytest.raises(ConfigError, match=r"rows\.csv: events of Debezium are read from NDJSON"):
        read(tmp_path / "rows.csv").check()


def document(**stream):
    table = {
        "source": {"type": "file", "path": "events.ndjson"},
        "columns": {"id": "int64", "at": "timestamp"},
        "time": "at",
        "changes": "debezium",
        **stream,
    }
    sinks = {"out": {"type": "file", "path": "out", "input": "orders"}}
    return {"name": "job", "streams": {"orders": table}, "sinks": sinks}


def test_a_stream_of_events_has_a_weight_column():
    stream = parse_job(document()).streams["orders"]
    assert stream.schema.names == ("id", "at", "_weight")
    assert (stream.weight, stream.events) == ("_weight", True)
    assert parse_job(document()).links["orders"].weight == "_weight"
    assert "lines are events of Debezium" in stream.source.describe()
    assert not parse_job(document(changes="insert")).streams["orders"].events


def test_a_table_of_events_has_a_weight_column():
    given = document()
    table = {**given["streams"].pop("orders"), "key": ["id"]}
    del table["time"]
    given |= {"tables": {"orders": table}, "streams": {"s": document()["streams"]["orders"]}}
    given["sinks"]["out"]["input"] = "s"
    plan = parse_job(given).streams["orders"]
    assert (plan.weight, plan.events, plan.schema.names[-1]) == ("_weight", True, "_weight")


def test_a_delete_by_key_cannot_be_owed():
    given = document()
    table = {**given["streams"].pop("orders"), "key": ["id"], "missing": "owe"}
    del table["time"]
    given |= {"tables": {"orders": table}, "streams": {}}
    assert "tables.orders.missing: a delete by key owes no row" in str(faults(given)[0])


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ({"changes": "debezum"}, r"streams\.orders\.changes: .*debezium"),
        ({"weight": "w"}, r"streams\.orders\.weight: is _weight with events"),
        ({"columns": {"at": "timestamp", "b": "binary"}}, r"orders\.columns\.b: binary data"),
        ({"columns": {"at": "timestamp", "_weight": "int32"}}, r"columns\._weight: is the weight"),
        (
            {"source": {"type": "file", "path": "a", "format": "csv"}},
            r"streams\.orders\.source\.format: csv holds no events",
        ),
    ],
)
def test_what_cannot_hold_events_is_refused(stream, message):
    (fault, *_) = faults(document(**stream))
    with pytest.raises(JobError, match=message):
        raise fault


def test_the_end_of_a_tables_snapshot_ends_its_population(tmp_path, monkeypatch):
    monkeypatch.setattr("edged.sources.reading._BLOCK_BYTES", 400)
    monkeypatch.chdir(tmp_path)
    row = {"id": 1, "ok": True, "at": 5}
    events = [envelope("r", None, row) for _ in range(9)]
    events[4]["source"]["snapshot"] = "last"
    (tmp_path / "events.ndjson").write_text("\n".join(map(json.dumps, events)))
    for time in ("", "at"):
        stream = StreamPlan("t", SCHEMA, time, 0, 1, 2**60, "process", None, events=True)
        p = FileSourcePlan.parse("t", {"path": "events.ndjson"}, stream)
        into = Staging("t", SCHEMA, time, 1 << 20, 2**60)
        source = p.build({"t": into}, {"t": p})
        source.start()
        found = []
        while not source.finished():
            source.ingest(1, 1_800_000_000_000_000)
            found.append(int(into.producers.ended[1]))
        assert source.problem() == ""
        source.close()
        assert found[-1] == 1
        assert into.producers.seq[1] == 9
        lasts = into.producers.lasts
        assert not lasts if time else 5 <= int(lasts[1]) < 9
