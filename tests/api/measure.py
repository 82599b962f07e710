"""`python -m tests.api.measure`: the speed of the API, and its cost to the daemon.

Prints one JSON object: requests a second, tuples a second of HTTP ingest, and the stages of a beat
(median, 99th percentile, µs) beside a steady producer while

    alone, alone_again   no client
    asked                four clients ask this daemon's API without a pause
    elsewhere            the same, of an API in front of a process that shows a recorded snapshot:
                         all the same work on the same two cores, none of it the daemon's
    burned               two processes burn as much CPU time as API and clients did, no API
    paced                the clients ask the daemon's API 50 times a second each
    door                 one process asks the daemon's door as often as the API does, no API

What `asked` has and `elsewhere` has not is the daemon's own; what `burned` has is the cores'.
`waited_us` is how long the beat's thread waited for a core, on average for each beat, and `cpu_us`
how long it ran (/proc/PID/task/TID/schedstat, Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import select
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pyarrow as pa

from edged.client import Producer
from edged.control.door import Door, ask
from edged.platform.processes import free_port
from tests.api.support import READINGS, Api, both
from tests.api.test_ingest import ARROW, CSV, NDJSON, SCHEMA, arrow, in_csv, ndjson

SECONDS = 5.0
ROWS = 20_000
CLIENTS = 4
PACED_HZ = 50
DOOR_HZ = 4
BURST_S = 0.0005
SPAWN = multiprocessing.get_context("spawn")


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
    body, counts = write(rows), [0] * CLIENTS
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

    threads = [threading.Thread(target=run, args=(k,)) for k in range(CLIENTS)]
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


# What goes on beside a beat: each in a process of its own, until `over` ---------------------------


def ask_the_api(over, count, path, pause_s):
    """Four clients of the API at `path`."""

    def run():
        transport = httpx.HTTPTransport(uds=path, verify=False)
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as client:
            while not over.wait(pause_s) if pause_s else not over.is_set():
                client.get("/v1/device")
                with count.get_lock():
                    count.value += 1

    threads = [threading.Thread(target=run) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ask_the_door(over, count, path):
    """As often as the API asks it at most."""
    while not over.wait(1 / DOOR_HZ):
        ask(path, "status")
        count.value += 1


def burn(over, _, share, niceness):
    """So much of a core, in bursts as short as a request."""
    os.nice(niceness)
    while not over.is_set():
        began = time.thread_time()
        while time.thread_time() - began < BURST_S:
            pass
        time.sleep(BURST_S * (1 / min(1.0, share) - 1))


def show(over, _, path, snapshot):
    """A control door that shows one recorded snapshot."""
    door = Door(Path(path), lambda _: snapshot)
    while not over.is_set():
        select.select([door], [], [], 0.5)
        door.serve()
    door.close()


@contextmanager
def beside(target, *arguments):
    """`target` in a process of its own; (the process, how often it has asked)."""
    over, count = SPAWN.Event(), SPAWN.Value("l", 0)
    process = SPAWN.Process(target=target, args=(over, count, *arguments))
    process.start()
    try:
        yield process, count
    finally:
        over.set()
        process.join()


@contextmanager
def produced(port):
    """A steady producer of 200 000 tuples/s."""
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
    try:
        yield
    finally:
        over.set()
        thread.join()


def cpu_s(pid):
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def scheduled_us(pid):
    """How long a process's first thread has run, and has waited for a core, so far."""
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran) / 1e3, int(waited) / 1e3


class Watch:
    """Spans of the trace's wall clock, and what the beat's thread did in them."""

    def __init__(self, daemon):
        self.pid, self.spans = daemon.process.pid, {}

    def look(self, name, count=None, pids=()):
        """Watch for a while; returns the CPU shares of `pids`."""
        time.sleep(1)
        asked = count.value if count is not None else 0
        before, used = scheduled_us(self.pid), [cpu_s(pid) for pid in pids]
        began = time.time_ns() // 1000
        time.sleep(2 * SECONDS)
        span, after = (began, time.time_ns() // 1000), scheduled_us(self.pid)
        seconds = (span[1] - span[0]) / 1e6
        ran, waited = (b - a for a, b in zip(before, after, strict=True))
        shares = [(cpu_s(pid) - was) / seconds for pid, was in zip(pids, used, strict=True)]
        told = {"asked_per_s": round((count.value - asked) / seconds)} if count is not None else {}
        if pids:
            told["cpu_shares"] = [round(share, 2) for share in shares]
        self.spans[name] = (span, ran, waited, told)
        return shares

    def told(self, trace):
        """What was seen, with the stages of the beats that the trace tells."""
        rows = [json.loads(line) for line in trace.read_text().splitlines()]
        return {name: {**told, **stages(rows, span, ran, waited)}
                for name, (span, ran, waited, told) in self.spans.items()}  # fmt: skip


def stages(rows, span, ran, waited):
    """p50 and p99 of the stages of the beats with rows within a span of the wall clock, µs."""
    beats = [r for r in rows if span[0] <= r["durable_wall_us"] <= span[1] and r["rows_taken"]]
    told = {"beats": len(beats), "cpu_us": round(ran / len(beats)),
            "waited_us": round(waited / len(beats))}  # fmt: skip
    for stage in ("ingest", "race", "commit"):
        values = sorted(beat["stages"][stage] for beat in beats)
        told[f"{stage}_us"] = [round(values[int(q * (len(values) - 1))]) for q in (0.5, 0.99)]
    return told


def compare(daemon, api, path):
    """Watch the beat beside everything that the module's docstring names."""
    watch, socket = Watch(daemon), str(api.socket)
    watch.look("alone")
    with beside(ask_the_api, socket, 0) as (clients, count):
        burnt = watch.look("asked", count, (api.process.pid, clients.pid))
    snapshot = ask(daemon.door, "status")
    twin = path / "twin"
    twin.mkdir()
    with (
        beside(show, str(twin / "door"), snapshot),
        Api(twin, twin / "door") as other,
        beside(ask_the_api, str(other.socket), 0) as (clients, count),
    ):
        watch.look("elsewhere", count, (other.process.pid, clients.pid))
    with ExitStack() as stack:
        for share, niceness in zip(burnt, (10, 0), strict=True):
            stack.enter_context(beside(burn, share, niceness))
        watch.look("burned")
    with beside(ask_the_api, socket, 1 / PACED_HZ) as (clients, count):
        watch.look("paced", count, (api.process.pid, clients.pid))
    with beside(ask_the_door, str(daemon.door)) as (_, count):
        watch.look("door", count)
    watch.look("alone_again")
    return watch


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
            with produced(port):
                watch = compare(daemon, api, path)
            api.stop()
            daemon.stop()
            told["beat"] = watch.told(path / "trace")
    print(json.dumps(told, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
