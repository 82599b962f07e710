"""What a job promises for a full store (`when_full`), with a real daemon and a real collector."""

from __future__ import annotations

import contextlib
import random

import pyarrow as pa
import pytest

from api.ingest.media_types import ARROW as ARROW_STREAM
from edged.data.schema import Schema
from edged.errors import PeerError
from edged.job.plan import parse_job
from edged.pages.read import read_page
from tests.api.support import Api, until
from tests.beat.loop import batch
from tests.beat.support import ARROW, Daemon, changed, copy_job
from tests.central.support import by_partition, collecting

STORE_BYTES, MESSAGE, MESSAGES = 8 << 20, 10_000, 60


def job(when_full, **more):
    """Rows that leave as pages, with little memory."""
    promises = {"latency": "20ms", "memory": "2MiB", "when_full": when_full}
    return changed(copy_job(), promises=promises, **more)


def messages():
    """Values that no compression makes smaller."""
    rng = random.Random(1)
    return [[rng.getrandbits(62) for _ in range(MESSAGE)] for _ in range(3 * MESSAGES)]


def schema_of(document):
    """The schema of the job's pages."""
    ((_, _, text),) = parse_job(document).sinks["rows"].schemas()
    return Schema.from_json(text)


def values(landing, document):
    """All values that have landed, page by page in order."""
    ((_, pages),) = [
        (key, pages) for key, pages in by_partition(landing).items() if key[1] == "rows"
    ]
    schema = schema_of(document)
    return {seq: read_page(page, schema).column("value").to_pylist() for seq, page in pages.items()}


def test_senders_are_refused_while_the_store_is_full_and_taken_when_it_has_room(tmp_path):
    """Nothing that was acknowledged is lost; a job that blocks waits beside it."""
    document, given = job("reject"), messages()
    landing = tmp_path / "landing"
    with collecting(landing) as collector:
        collector.kill()
        arguments = ("--store-max", str(STORE_BYTES), "--uplink", collector.url)
        with Daemon(tmp_path, document, *arguments) as daemon:
            sent, acked = 0, 0
            with (
                pytest.raises(PeerError, match="the store is full, and the job rejects rows"),
                contextlib.closing(daemon.producer()) as producer,
            ):
                while sent < len(given):
                    producer.send(batch(given[sent]))
                    sent += 1
                    producer.flush(60)
                    acked = sent
            assert 0 < acked < len(given)
            with pytest.raises(PeerError, match="the store is full"):
                daemon.producer(id="late").connect()
            assert daemon.status()["sources"][0]["refused"] >= 2
            with collecting(landing, port=collector.port):
                daemon.until(lambda s: not s["store"]["full"])
                with daemon.producer(timeout_s=300) as producer:
                    acked = producer.connect()  # what was refused unacknowledged may be in
                    producer.send(batch([-1]))
                    producer.flush()
                daemon.until(lambda s: s["store"]["backlog_pages"] == 0)
            assert gaps(daemon) == []
    found = [value for _, page in sorted(values(landing, document).items()) for value in page]
    assert found == [value for some in given[:acked] for value in some] + [-1]


def test_requests_over_http_are_refused_while_the_store_is_full_and_none_is_lost(tmp_path):
    document, given = job("reject"), messages()
    landing = tmp_path / "landing"
    with collecting(landing) as collector:
        collector.kill()
        arguments = ("--store-max", str(STORE_BYTES), "--uplink", collector.url)
        with (
            Daemon(tmp_path, document, *arguments) as daemon,
            Api(tmp_path, daemon.door) as api,
            api.client(timeout=120) as client,
        ):

            def post(body, number):
                headers = {"Content-Type": ARROW_STREAM, "Idempotency-Key": f"k{number}"}
                return client.post("/v1/streams/r/tuples", content=body, headers=headers)

            told = []
            while not told or told[-1].status_code == 202:
                body = arrow(given[len(told)])
                told.append(post(body, len(told)))
                assert len(told) < len(given)
            refused, last = told[-1], len(told) - 1
            if refused.status_code == 504:  # it was sent before the store was full
                refused = post(body, last)
            assert refused.status_code == 429, refused.text
            assert int(refused.headers["retry-after"]) > 0 and "store is full" in refused.text
            with collecting(landing, port=collector.port):
                daemon.until(lambda s: not s["store"]["full"])
                again = until(lambda: (a := post(body, last)).status_code == 202 and a)
                assert again.json()["rows"] == MESSAGE
                daemon.until(lambda s: s["store"]["backlog_pages"] == 0)
    found = [value for _, page in sorted(values(landing, document).items()) for value in page]
    assert found == [value for some in given[: len(told)] for value in some]


def arrow(values):
    """The body of a request: the rows as an Arrow stream."""
    rows = pa.record_batch(list(batch(values).values()), ARROW)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ARROW) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


def gaps(daemon):
    """The gaps of dropped pages that the status reports."""
    return [g for g in daemon.status()["store"]["gaps"]["newest"] if g["reason"] == "dropped"]


def test_the_oldest_pages_make_room_and_the_centre_has_all_but_the_gaps(tmp_path):
    """The centre is away until the store has overflown; a part of the pages has landed before."""
    document, given = job("drop_oldest"), messages()
    landing = tmp_path / "landing"
    with collecting(landing) as collector:
        url, port = collector.url, collector.port
        arguments = ("--store-max", str(STORE_BYTES), "--uplink", url)
        daemon = Daemon(tmp_path, document, *arguments)
        with daemon, contextlib.closing(daemon.producer(timeout_s=300)) as producer:
            producer.send(batch(given[0]))
            producer.flush()
            daemon.until(lambda s: s["store"]["backlog_pages"] == 0)
            collector.kill()
            sent = 1
            while not gaps(daemon) or sent < MESSAGES:  # acknowledged although the store is full
                producer.send(batch(given[sent]))
                producer.flush()
                sent += 1
            assert producer.acked == producer.sent
            assert daemon.status()["store"]["bytes"] <= STORE_BYTES
            daemon.kill()
            daemon.restart()
            daemon.ready()
            assert gaps(daemon)
            with collecting(landing, port=port):
                producer.send(batch([-1]))
                producer.flush()
                daemon.until(lambda s: s["store"]["backlog_pages"] == 0)
            lost = gaps(daemon)
            assert "store.gap" in daemon.log.read_text() or "lost: rows" in daemon.log.read_text()
    landed = values(landing, document)
    assert set(landed) & {n for g in lost for n in range(g["first"], g["last"] + 1)} == set()
    missing = set(range(1, max(landed) + 1)) - set(landed)
    assert missing == {n for g in lost for n in range(g["first"], g["last"] + 1)}
    found = [value for seq in sorted(landed) for value in landed[seq]]
    assert len(found) + sum(g["rows"] for g in lost) == sent * MESSAGE + 1
    assert len(set(found)) == len(found) and set(given[0]) | {-1} <= set(found)
    assert set(found) <= {value for some in given for value in some} | {-1}
    assert {(g["stream"], g["job"], g["partition"]) for g in lost} == {("rows", "copying", 0)}
    assert all(g["first_us"] <= g["last_us"] for g in lost)
