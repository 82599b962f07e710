"""HTTP ingest: bodies against plain Python, and exactly once when any process is killed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import datetime
import gc
import io
import itertools
import json
import random
import threading

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api.ingest import Ingest, StreamVersion
from api.ingest.decode import decode
from api.ingest.media_types import ARROW, CSV, DEBEZIUM, NDJSON
from api.problems import ApiProblem
from edged.data.schema import Schema
from edged.pages.read import read_page
from edged.store import Store
from tests.api.support import READINGS, Api, Daemon, both, until
from tests.whole import examples

UTC = datetime.timezone.utc
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("kw", pa.float64()),
        pa.field("text", pa.string()),
    ]
)
CHANGES = SCHEMA.append(pa.field("_weight", pa.int32(), nullable=False))
MOMENTS = st.datetimes(
    datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.just(UTC)
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "time": MOMENTS,
            "kw": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "text": st.none() | TEXTS,
        }
    ),
    max_size=8,
)


def ndjson(rows):
    """As Python's own json writes it."""
    plain = [{**row, "time": row["time"].isoformat()} for row in rows]
    return "".join(json.dumps(row) + "\n" for row in plain).encode()


def in_csv(rows):
    """As Python's own csv writes it; texts are quoted, nulls are not."""
    out = io.StringIO()
    out.write("time,id,text,kw\n")
    for row in rows:
        text = "" if row["text"] is None else '"' + row["text"].replace('"', '""') + '"'
        kw = "" if row["kw"] is None else repr(row["kw"])
        out.write(f"{row['time'].isoformat()},{row['id']},{text},{kw}\n")
    return out.getvalue().encode()


def arrow(rows, schema=SCHEMA, **options):
    """As pyarrow writes it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema))
    return sink.getvalue().to_pybytes()


# Bodies -----------------------------------------------------------------------------------------


@given(ROWS)
@settings(max_examples=examples(60))
def test_rows_come_in_as_they_were_written(rows):
    for body, kind in ((ndjson(rows), NDJSON), (in_csv(rows), CSV), (arrow(rows), ARROW)):
        batch = decode(body, kind, SCHEMA)
        assert batch.schema == SCHEMA
        assert batch.to_pylist() == rows, kind


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2026-11-21T09:00:00Z", 0), ("2026-11-21T09:00:00", 0),
        ("2026-11-21 09:00:00.25", 250_000),
        ("2026-11-21T10:00:00+01:00", 0), ("2026-11-21T04:30:00.000001-0430", 1),
    ],
)  # fmt: skip
def test_times_with_an_offset_and_without_stand_side_by_side(text, us):
    start = datetime.datetime(2026, 11, 21, 9, tzinfo=UTC)
    rows = [{"id": 1, "time": text}, {"id": 2, "time": "2026-11-21T09:00:00Z"},
            {"id": 3, "time": "2026-11-21T09:00:00"}]  # fmt: skip
    body = "\n".join(json.dumps(row) for row in rows).encode()
    times = decode(body, NDJSON, SCHEMA).column("time").to_pylist()
    assert times == [start + datetime.timedelta(microseconds=us), start, start]


GOOD = '{"id": 1, "time": "2026-11-21T09:00:00Z"}\n'


@pytest.mark.parametrize(
    ("kind", "body", "where"),
    [
        (NDJSON, GOOD + '{"id": 2, "time": "yesterday"}', "row 2, column time"),
        (NDJSON, GOOD * 5 + '{"id": null, "time": "2026-11-21T09:00:00Z"}', "row 6, column id"),
        (NDJSON, GOOD + '{"time": "2026-11-21T09:00:00Z"}', "row 2, column id"),
        (NDJSON, GOOD + '{"id": "x", "time": "2026-11-21T09:00:00Z"}', "row 2, column id"),
        (NDJSON, '{"id": 1, "tim": "2026-11-21T09:00:00Z"}', "column tim"),
        (NDJSON, "{", "row 1"),
        (NDJSON, '{"id": ' + "[" * 100_000, "body"),
        (NDJSON, '{"a": {"b": [' * 50_000, "column a"),
        (CSV, "id,time,kw,text\n1,2026-11-21T09:00:00Z,,\n2,2026-11-21,x,\n", "row 2, column kw"),
        (CSV, "id,time,kw,text\n1,2026-11-21T09:00:00Z,,\n2,never,,\n", "row 2, column time"),
        (CSV, "id,time,kw\n1,2026-11-21T09:00:00Z,\n", "text"),
        (CSV, "id,time,kw,text,id\n", "id"),
        (CSV, "", "row 0"),
        (ARROW, "nonsense", "body"),
        (ARROW, arrow([], pa.schema([("id", pa.dictionary(pa.int8(), pa.string()))])), "id"),
        (ARROW, arrow([{"id": 1, "time": None, "kw": None, "text": "x" * 999}], SCHEMA.set(
            1, pa.field("time", SCHEMA.field("time").type)), compression="lz4"), "body"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(kind, body, where):
    with pytest.raises(ApiProblem) as refusal:
        decode(body if isinstance(body, bytes) else body.encode(), kind, SCHEMA)
    assert refusal.value.kind == "invalid"
    assert refusal.value.errors[0].where == where


@given(ROWS, st.integers(0, 3))
@settings(max_examples=examples(40))
def test_events_of_debezium_come_in_as_rows_with_weights(rows, op):
    op = "crud"[op]
    lines = ndjson(rows).decode().splitlines()
    events = [f'{{"op": "{op}", "before": {line}, "after": {line}}}' for line in lines]
    batch = decode("\n".join(events).encode(), DEBEZIUM, CHANGES)
    weights = {"c": [1], "r": [1], "u": [-1, 1], "d": [-1]}[op]
    assert batch.schema == CHANGES
    assert batch.to_pylist() == [{**row, "_weight": w} for row in rows for w in weights]


@pytest.mark.parametrize(
    ("schema", "body", "where"),
    [
        (SCHEMA, '{"op": "c"}', "body"),
        (CHANGES, '\n{"op": "c"}', "line 2"),
        (CHANGES, "null\nnull\n{", "line 3"),
    ],
)
def test_what_is_wrong_with_events_is_named_with_its_line(schema, body, where):
    with pytest.raises(ApiProblem) as refusal:
        decode(body.encode(), DEBEZIUM, schema)
    assert [fault.where for fault in refusal.value.errors] == [where]


@given(st.binary(max_size=200), st.sampled_from([NDJSON, CSV, ARROW, DEBEZIUM]))
@example(b'{"id": 1e400, "time": "2026-11-21T09:00:00Z"}', NDJSON)
@example(b"\xff\xff\xff\xff\xff\xff\xff\x7f", ARROW)
@example(b"\xff\xff\xff\xff\x10\0\0\0" + b"\xff" * 16, ARROW)
@settings(max_examples=examples(200))
def test_any_bytes_are_rows_or_a_problem(body, kind):
    try:
        schema = CHANGES if kind == DEBEZIUM else SCHEMA
        assert decode(body, kind, schema).schema == schema
    except ApiProblem as problem:
        assert problem.status_code in (413, 415, 422)


@given(ROWS, st.data())
@settings(max_examples=examples(100))
def test_damaged_arrow_is_rows_or_a_problem(rows, data):
    body = bytearray(arrow(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(body), ARROW, SCHEMA).validate(full=True)
    except ApiProblem as problem:
        assert problem.status_code in (413, 415, 422)


def test_rows_that_take_no_bytes_are_bounded():
    wide = pa.schema([pa.field(f"c{i}", pa.float64()) for i in range(1000)])
    with pytest.raises(ApiProblem) as refusal:
        decode(b"{}\n" * 100_000, NDJSON, wide)
    assert refusal.value.kind == "too-large"


def test_a_request_more_than_may_be_pending_is_told_when_to_come_again():
    async def fill():
        ingest = Ingest(None, None)
        with ingest.room(60 << 20), pytest.raises(ApiProblem) as refusal, ingest.room(8 << 20):
            pass
        with ingest.room(60 << 20):
            pass
        await ingest.close()
        return refusal.value

    problem = asyncio.run(fill())
    assert problem.status_code == 429 and 1 <= problem.retry_after_s <= 30


def test_ways_into_jobs_that_are_gone_or_were_changed_are_closed(tmp_path):
    """Creating and deleting jobs without end leaves nothing behind in the API."""
    jobs = {}

    class StubDoor:
        async def ask(self, cmd, name):
            return {"document": READINGS}

        async def snapshot(self):
            streams = [{"job": job, "stream": "power"} for job in jobs]
            source = {"kind": "http", "takes_http": True, "streams": streams}
            return {"jobs": jobs, "sources": [source]}

    async def open_and_list():
        ingest, left = Ingest(StubDoor(), tmp_path / "keys.sqlite"), []
        for made in ({"a": (1, 5)}, {"a": (1, 5), "b": (1, 6)}, {"a": (2, 5), "b": (1, 6)},
                     {"b": (1, 7)}):  # fmt: skip
            jobs.clear()
            jobs.update({n: {"version": v, "created_us": us} for n, (v, us) in made.items()})
            for name, (version, created_us) in made.items():
                await ingest._producer(StreamVersion(name, "power", version, created_us))
            left.append({(t.job, t.version, t.created_us) for t in ingest._producers})
        await ingest.close()
        return left

    assert asyncio.run(open_and_list()) == [
        {("a", 1, 5)}, {("a", 1, 5), ("b", 1, 6)}, {("a", 2, 5), ("b", 1, 6)}, {("b", 1, 7)},
    ]  # fmt: skip


# A running daemon -------------------------------------------------------------------------------


def send(client, body, kind=NDJSON, key=None):
    headers = {"Content-Type": kind} | ({"Idempotency-Key": key} if key else {})
    return client.post("/v1/streams/power/tuples", content=body, headers=headers)


def rows_of(first, count):
    return [
        {
            "id": i,
            "time": datetime.datetime(2026, 11, 21, 9, tzinfo=UTC),
            "kw": 1.5,
            "text": f"t{i}",
        }
        for i in range(first, first + count)
    ]


def landed(daemon, streams=("all", "late")):
    """Ids of all rows in the pages of a store without a running daemon, late ones too."""
    document = json.loads((daemon.path / "job.json").read_text())
    columns = document["streams"]["power"]["columns"]
    fields = [
        {"name": n, "type": t.rstrip("?"), "nullable": t.endswith("?")} for n, t in columns.items()
    ]
    schema, store = Schema.from_json(fields), Store.open(daemon.store)
    try:
        ids = []
        for page in store.pending():
            if page.key.stream in streams:
                with open(page.file, "rb") as file:
                    file.seek(page.offset)
                    data = file.read(page.length)
                ids += read_page(data, schema).column("id").to_pylist()
        return ids
    finally:
        store.close()


def test_the_answer_counts_the_rows_that_are_dropped_by_their_times(tmp_path):
    """To a sender without a producer's connection nothing else reports the loss."""
    document = copy.deepcopy(READINGS)
    document["streams"]["power"] |= {"late": "drop", "max_ahead": "1h"}
    del document["sinks"]["late"]
    now = datetime.datetime.now(UTC)

    def body(*hours):
        times = (now + datetime.timedelta(hours=h) for h in hours)
        return ndjson([{"id": 1, "time": t, "kw": None, "text": None} for t in times])

    with both(tmp_path, document) as (daemon, api), api.client() as client:

        def told(*hours, key=None):
            return send(client, body(*hours), key=key).json()

        assert told(0, 0)["lost"] == 0
        assert told(-1, -1, -2, 0)["lost"] == 3
        assert told(2, 3)["lost"] == 2
        late = told(-1, 0, 2, key="k")
        assert (late["rows"], late["lost"]) == (3, 2)
        assert told(-1, 0, 2, key="k") == {**late, "replayed": True, "lost": None}
        assert told(0)["lost"] == 0
        daemon.stop()
        daemon.restart()
        daemon.ready()
        assert until(lambda: told(-1).get("rows")) == 1
        assert told(-1)["lost"] == 1, "of this request, not of all"


def test_all_three_formats_arrive_and_a_key_brings_its_rows_once(tmp_path):
    with both(tmp_path) as (daemon, api), api.client() as client:
        for number, (write, kind) in enumerate(((ndjson, NDJSON), (in_csv, CSV), (arrow, ARROW))):
            answer = send(client, write(rows_of(10 * number, 10)), kind)
            assert answer.status_code == 202, answer.text
            told = {"stream": "power", "rows": 10, "replayed": False, "lost": 0}
            assert answer.json() == told
        until(lambda: client.get("/v1/streams/power").json()["rows"] == 30)
        assert send(client, b"").json()["rows"] == 0
        assert send(client, b"x", "text/plain").status_code == 415
        assert send(client, b" " * (17 << 20)).status_code == 413
        assert client.post("/v1/streams/nobody/tuples", content=b"",
                           headers={"Content-Type": CSV}).status_code == 404  # fmt: skip
        again = [send(client, ndjson(rows_of(100, 5)), key="k").json() for _ in range(3)]
        assert [one["replayed"] for one in again] == [False, True, True]
        assert send(client, ndjson(rows_of(200, 5)), key="k").status_code == 422
        send_at_once(api, ndjson(rows_of(1000, 50)), "same")
        api.stop()
        daemon.stop()
        assert sorted(landed(daemon)) == [*range(30), *range(100, 105), *range(1000, 1050)]


def send_at_once(api, body, key):
    """Many equal requests at once: one is carried out, the others are refused with Retry-After."""

    def one(_):
        with api.client() as client:
            return send(client, body, key=key).status_code

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(one, range(24)))
    assert set(codes) <= {202, 409} and 202 in codes


class Sender(threading.Thread):
    """Sends its rows in requests with keys, each until it is accepted, whatever is in the way."""

    def __init__(self, api, first, requests, rows):
        super().__init__(daemon=True)
        self.api, self.first, self.requests, self.rows = api, first, requests, rows
        self.accepted = 0
        self.problem = None

    def run(self):
        try:
            for number in range(self.requests):
                first = self.first + number * self.rows
                body = ndjson(rows_of(first, self.rows))
                until(lambda body=body, first=first: self.once(body, f"key-{first}"), 90)
                self.accepted += 1
        except BaseException as problem:
            self.problem = problem

    def once(self, body, key):
        with self.api.client() as client:
            answer = send(client, body, key=key)
        assert answer.status_code in (202, 409, 429, 503, 504), answer.text
        return answer.status_code == 202


# httpcore leaves the socket of a refused connection to the garbage collector
@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_row_comes_in_once_whoever_is_killed(tmp_path):
    """Senders repeat requests with their keys while API and daemon are killed in turn."""
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    with Daemon(tmp_path) as daemon, Api(tmp_path) as api:
        senders = [Sender(api, k * 1_000_000, 40, 7) for k in range(3)]
        for sender in senders:
            sender.start()
        victims = itertools.cycle([api, daemon])
        for _ in range(4):
            marks = [s.accepted for s in senders]
            count = rng.randrange(1, 9)
            until(lambda m=marks, n=count: done(senders) or moved(senders, m, n), step_s=0.005)
            if done(senders):
                break
            victim = next(victims)
            victim.kill()
            victim.restart()
            victim.ready(300)
        for sender in senders:
            sender.join(300)
        assert [s.problem for s in senders] == [None] * 3, seed
        api.stop()
        daemon.stop()
        expected = [s.first + i for s in senders for i in range(s.requests * s.rows)]
        assert sorted(landed(daemon)) == expected, seed
        assert landed(daemon, ("late",)) == [], "the stream's only producer never ended"
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_rows_after_a_restart_are_as_welcome_as_those_before(tmp_path):
    """API, daemon or both begin again: keys are known, and none of the rows is late."""
    with Daemon(tmp_path) as daemon, Api(tmp_path) as api:
        restarts = [(api.stop, api), (api.kill, api), (daemon.kill, daemon),
                    (api.kill, daemon.kill, daemon, api)]  # fmt: skip
        for number, steps in enumerate(restarts):
            first = Sender(api, 10 * number, 1, 10)
            first.run()
            assert first.problem is None
            with api.client() as client:
                assert send(client, ndjson(rows_of(1000 + number, 1))).status_code == 202
            for step in steps:
                if step in (api, daemon):
                    step.restart()
                    step.ready(300)
                else:
                    step()
            for known in range(number + 1):
                body = ndjson(rows_of(10 * known, 10))
                with api.client() as client:
                    told = until(lambda c=client, b=body, k=known: taken(c, b, f"key-{10 * k}"))
                assert told["replayed"]
        last = Sender(api, 500, 1, 10)
        last.run()
        api.stop()
        daemon.stop()
        expected = [*range(40), *range(500, 510), *range(1000, 1004)]
        assert sorted(landed(daemon, ("all",))) == expected
        assert landed(daemon, ("late",)) == []
    gc.collect()


def taken(client, body, key):
    """The answer, once it is one of success."""
    answer = send(client, body, key=key)
    return answer.json() if answer.status_code == 202 else None


def done(senders):
    return not any(sender.is_alive() for sender in senders)


def moved(senders, marks, count):
    """Whether so many requests were accepted since."""
    return sum(s.accepted - m for s, m in zip(senders, marks, strict=True)) >= count


@pytest.fixture
def client(plant):
    with plant[1].client() as client:
        yield client
        for name in ("guarded", "second"):
            client.delete(f"/v1/jobs/{name}?drain=false")


def test_a_stream_with_a_token_takes_no_strangers_rows(client, plant):
    secret = plant[0].store / "files" / "secret"  # where a job over the API may name a file
    secret.parent.mkdir()
    secret.write_text("s")
    source = {"type": "tcp", "listen": "127.0.0.1:0", "token_file": str(secret)}
    sinks = {"all_guarded": {"type": "pages", "input": "secrets"}}
    streams = {"secrets": {**READINGS["streams"]["power"], "source": source}}
    guarded = {"name": "guarded", "streams": streams, "sinks": sinks}
    assert client.put("/v1/jobs/guarded", json=guarded).status_code == 201
    body, headers = ndjson(rows_of(0, 1)), {"Content-Type": NDJSON}
    answer = client.post("/v1/streams/secrets/tuples", content=body, headers=headers)
    assert answer.status_code == 409 and "token" in answer.json()["detail"]


def test_a_job_that_takes_the_name_of_one_that_was_deleted_gets_rows_of_its_own_columns(client):
    power = READINGS["streams"]["power"]
    second = {**READINGS, "name": "second", "operators": {},
              "streams": {"steam": {**power, "columns": {"time": "timestamp", "id": "int64"}}},
              "sinks": {"steams": {"type": "pages", "input": "steam"}}}  # fmt: skip
    other = {"time": "timestamp", "c": "bool"}
    third = {**second, "streams": {"steam": {**power, "columns": other}},
             "sinks": {"steams": {"type": "pages", "input": "steam", "version": 2}}}  # fmt: skip

    def sent(document, row):
        answer = client.put("/v1/jobs/second", json=document)
        assert answer.status_code == 201, answer.text
        body = json.dumps({"time": "2026-11-21T09:00:00Z", **row}).encode()
        headers = {"Content-Type": NDJSON}
        return client.post("/v1/streams/steam/tuples", content=body, headers=headers)

    assert sent(second, {"id": 1}).status_code == 202
    assert client.delete("/v1/jobs/second?drain=false").status_code == 200
    answer = sent(third, {"c": True})
    assert answer.status_code == 202, answer.text
