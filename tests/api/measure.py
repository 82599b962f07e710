"""`python -m tests.api.measure`: what the API takes, and what it takes from the daemon.

Prints one JSON object: requests a second, tuples a second of HTTP ingest, and the beat's stages
(median, 99th percentile) with and without clients that ask all the time.
"""

from __future__ import annotations

import datetime
import json
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from edged.client import Producer
from edged.processes import free_port
from tests.api.support import READINGS, both
from tests.api.test_ingest import ARROW, CSV, NDJSON, SCHEMA, arrow, in_csv, ndjson

SECONDS = 5.0
ROWS = 20_000


def get_rate(api):
    """Requests a second of one client that keeps its connection."""
    with api.client() as client:
        client.get("/v1/device")
        times, started = [], time.monotonic()
        while time.monotonic() - started < SECONDS:
            before = time.monotonic()
            assert client.get("/v1/device").status_code == 200
            times.append(time.monotonic() - before)
    times.sort()
    return {
        "requests_per_s": round(len(times) / SECONDS),
        "ms_p50": round(1e3 * statistics.median(times), 2),
        "ms_p99": round(1e3 * times[int(0.99 * len(times))], 2),
    }


def ingest_rate(api, write, kind):
    """Tuples a second of four clients, each request with a key of its own."""
    start = datetime.datetime(2026, 11, 21, 9, tzinfo=datetime.timezone.utc)
    rows = [{"id": i, "time": start, "kw": i / 7, "text": f"sensor-{i % 50}"} for i in range(ROWS)]
    body, counts = write(rows), [0] * 4
    over = time.monotonic() + SECONDS

    def run(k):
        with api.client() as client:
            while time.monotonic() < over:
                headers = {"Content-Type": kind, "Idempotency-Key": f"{kind}-{k}-{counts[k]}"}
                answer = client.post("/v1/streams/power/tuples", content=body, headers=headers)
                if answer.status_code == 429:
                    time.sleep(0.05)
                    continue
                assert answer.status_code == 202, answer.text
                counts[k] += 1

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - started
    return {
        "tuples_per_s": round(ROWS * sum(counts) / seconds),
        "bytes_per_row": round(len(body) / ROWS, 1),
    }


@contextmanager
def asked_all_the_time(api):
    """Four clients that ask without a pause."""
    over = threading.Event()
    count = [0]

    def run():
        with api.client() as client:
            while not over.is_set():
                client.get("/v1/device")
                count[0] += 1

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield count
    finally:
        over.set()
        for thread in threads:
            thread.join()


def beside(daemon, api, port):
    """A steady producer, first with nobody asking, then with clients asking, then with nobody.

    Returns the wall-clock spans of the three, µs, and requests a second.
    """
    schema = SCHEMA.remove(3).remove(2)
    start = datetime.datetime(2026, 11, 21, 9, tzinfo=datetime.timezone.utc)
    times = pa.array([start] * 2000, schema[1].type)
    batch = pa.record_batch([pa.array(range(2000)), times], schema)
    over = threading.Event()

    def produce():
        with Producer(f"127.0.0.1:{port}", "ticks", schema, producer="steady") as producer:
            while not over.wait(0.01):
                producer.send(batch)

    thread = threading.Thread(target=produce)
    thread.start()
    spans, asked = {}, 0
    try:
        time.sleep(2)
        for name in ("alone", "asked", "alone_again"):
            began_us = time.time_ns() // 1000
            if name == "asked":
                with asked_all_the_time(api) as count:
                    time.sleep(2 * SECONDS)
                asked = round(count[0] / (2 * SECONDS))
            else:
                time.sleep(2 * SECONDS)
            spans[name] = began_us, time.time_ns() // 1000
    finally:
        over.set()
        thread.join()
    return spans, asked


def stages(trace, span):
    """p50 and p99 of the stages of the beats with rows within a span of the wall clock, µs."""
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    beats = [r for r in rows if span[0] <= r["durable_wall_us"] <= span[1] and r["rows_taken"]]
    told = {"beats": len(beats)}
    for stage in ("ingest", "race", "commit"):
        values = sorted(beat["stages"][stage] for beat in beats)
        told[f"{stage}_us"] = [round(values[int(q * (len(values) - 1))]) for q in (0.5, 0.99)]
    return told


def main():
    """Measure, print."""
    port = free_port()
    ticks = {
        "source": {"type": "tcp", "listen": f"127.0.0.1:{port}"},
        "columns": {"id": "int64", "time": "timestamp"}, "time": "time",
    }  # fmt: skip
    document = {
        **READINGS,
        "streams": {**READINGS["streams"], "ticks": ticks},
        "sinks": {
            "all": {"type": "pages", "input": "power"},
            "late": {"type": "pages", "input": "power.late"},
            "bigs": {"type": "pages", "input": "big"},
            "ticked": {"type": "pages", "input": "ticks"},
        },
    }
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        with both(path, document, trace=path / "trace") as (daemon, api):
            told = {"get": get_rate(api)}
            for name, write, kind in (
                ("arrow", arrow, ARROW), ("ndjson", ndjson, NDJSON), ("csv", in_csv, CSV)
            ):  # fmt: skip
                told[name] = ingest_rate(api, write, kind)
            spans, told["asked_per_s"] = beside(daemon, api, port)
            api.stop()
            daemon.stop()
            told["beat_p50_p99"] = {n: stages(path / "trace", span) for n, span in spans.items()}
    print(json.dumps(told, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
