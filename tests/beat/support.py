"""One job driven by the test, beat by beat, as the heart does it; and a daemon as a process.

`Live` decides, races and commits with clocks that the test sets.  What `Live` writes into a store
is what the heart writes, so that recovery can be tested against it.
"""

from __future__ import annotations

import copy
import json
import time
from collections import Counter

import pyarrow as pa

from edged.beat.jobs import JobRegistry
from edged.beat.record import BeatFacts, buffers
from edged.beat.runtime import JobRuntime, logged_inputs
from edged.client import Producer
from edged.control.door import ask
from edged.data.columns import Batch
from edged.data.flow import BeatContext
from edged.data.schema import Schema
from edged.data.workers import Workers
from edged.events.log import Events, LineLog
from edged.events.publisher import EventPublisher
from edged.job.plan import parse_job
from edged.pages.read import read_page
from edged.platform.clock import SystemClock
from edged.platform.processes import ChildProcess, free_port
from edged.sinks.base import Flush, SinkContext
from edged.store import BeatRecord, Store

SECOND = 1_000_000
T0 = 1_750_000_000_000_000
"""Some time in 2025, microseconds UTC: where the wall clock and the rows of the tests begin."""
MANY = 1 << 40
COMPILED_S = 300
"""Time limit of a first beat, which may compile kernels: half a minute on a busy machine."""
ARROW = pa.schema(
    [
        pa.field("key", pa.int64()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("value", pa.int64()),
    ]
)
"""What `stream()` takes, as producers send it."""
SOURCE = {"type": "tcp", "listen": "127.0.0.1:0"}


def stream(columns=None, **more):
    """A stream's table: key, time and value by default."""
    columns = columns or {"key": "int64", "time": "timestamp", "value": "int64"}
    return {"source": dict(SOURCE), "columns": columns, "time": "time", **more}


def join_job(before=100, after=100, **options):
    """Two streams `r` and `s` joined on `key`, their pairs as pages; options for both streams."""
    return {
        "name": "joining",
        "streams": {"r": stream(**options), "s": stream(**options)},
        "operators": {
            "joined": {
                "type": "interval_join", "left": "r", "right": "s", "on": ["key"],
                "before": before, "after": after,
            }
        },
        "sinks": {"pairs": {"type": "pages", "input": "joined", "page": "4KiB"}},
    }  # fmt: skip


def copy_job(**options):
    """One stream `r` whose rows leave as pages."""
    sinks = {"rows": {"type": "pages", "input": "r", "page": "4KiB"}}
    if options.get("late") == "dead_letter":
        sinks["dead"] = {"type": "pages", "input": "r.late", "page": "4KiB"}
    return {"name": "copying", "streams": {"r": stream(**options)}, "sinks": sinks}


def changed(document, **parts):
    """A copy of a job document with sections updated: `changed(d, promises={...})`."""
    new = copy.deepcopy(document)
    for section, values in parts.items():
        new.setdefault(section, {}).update(values)
    return new


class HandClock:
    """A clock that stands still until the test moves it."""

    def __init__(self, wall_us=T0):
        self.now, self.wall = SECOND, wall_us

    def monotonic_us(self):
        return self.now

    def wall_us(self):
        return self.wall

    def advance(self, us):
        self.now += us
        self.wall += us


def event_log():
    """An event log that writes no lines."""
    return Events(SystemClock(), LineLog(lambda *_: None))


def publisher(events=None):
    """A publisher into `events`, or into a log that nothing reads."""
    return EventPublisher(events or event_log())


def plain(batch):
    """A record batch's rows as tuples, timestamps as integers."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
    return list(zip(*[c.to_pylist() for c in columns], strict=True))


def batch_of(schema, rows):
    """Rows as tuples, times as integers, as a batch of `schema`."""
    arrays = [
        pa.array([row[i] for row in rows], f.dtype.arrow if f.dtype.name != "timestamp" else "i8")
        for i, f in enumerate(schema)
    ]
    arrays = [a.cast(f.dtype.arrow) for a, f in zip(arrays, schema, strict=True)]
    return Batch.from_arrow(pa.record_batch(arrays, names=list(schema.names)), schema)


def rows_of(plan, pages, stream):
    """All rows in the pages of one stream, in order."""
    texts = {s: text for sink in plan.sinks.values() for s, _, text in sink.schemas()}
    schema = Schema.from_json(texts[stream])
    found = []
    for page in pages:
        if page.key.stream == stream:
            found += plain(read_page(page.data, schema))
    return found


class Live:
    """A job and its beats; `pages` and `facts` hold what came out of each."""

    def __init__(self, document, path=None, workers=1, disk=None, **store_options):
        self.plan = parse_job(document)
        self.clock = HandClock()
        self.workers = Workers(workers)
        self.store = Store.open(path, disk, **store_options) if path else None
        epoch = self.store.device_epoch if self.store else 7
        self.context = SinkContext("device", epoch, "/nonexistent", self.workers)
        self.job = JobRuntime(self.plan, self.context)
        self.beats, self.pages, self.facts, self.arrived = 0, [], [], Counter()
        if self.store:
            self.snapshot()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.workers.close()
        if self.store:
            self.store.close()

    def send(self, stream, rows, producer="p"):
        """One message arrives and is staged; returns how many rows were accepted."""
        s = self.job.streams[stream]
        producers = s.staging.producers
        number = producers.number(producer)
        producers.seen_us[number] = self.clock.now
        producers.seq[number] += 1
        producers.ended[number] = 0
        self.arrived[stream] += len(rows)
        return s.staging.append(batch_of(s.plan.schema, rows), number, self.clock.wall)

    def connect(self, stream, producer):
        """A producer is there, and has sent nothing yet."""
        producers = self.job.streams[stream].staging.producers
        number = producers.number(producer)
        producers.seen_us[number] = self.clock.now

    def end(self, stream, producer="p"):
        """A producer sends end of stream."""
        self.connect(stream, producer)
        producers = self.job.streams[stream].staging.producers
        number = producers.number(producer)
        producers.ended[number] = 1

    def beat(self, race=True, flush=False, rows_max=MANY):
        """Decide, race, commit; returns the facts."""
        self.beats += 1
        facts = self.job.decide(self.clock.now, self.clock.wall, rows_max, race)
        facts.flush = Flush.ALL if race and flush else Flush.NO
        logged = buffers({self.plan.name: logged_inputs(self.job, facts)})
        if self.plan.promises.durability != "exactly_once":
            logged = []
        context = BeatContext(self.beats, self.clock.wall, self.workers)
        pages = self.job.step(context, facts)
        for s in self.job.streams.values():
            s.staging.mark_logged()
        if self.store:
            whole = BeatFacts(self.clock.wall, {self.plan.name: facts})
            self.before_commit(whole)
            encoded = whole.encode()
            sync = self.plan.promises.durability != "none"
            self.store.commit(BeatRecord(self.beats, encoded, logged, pages), sync)
        self.pages.append(pages)
        self.facts.append(facts)
        return facts

    def before_commit(self, facts):
        """What is done before a beat's record is written."""

    def drain(self, ends=True):
        """Say end of stream for every producer, beat until all is taken, and flush."""
        if ends:
            for name, s in self.job.streams.items():
                for producer in s.staging.producers.ids[1:]:
                    self.end(name, producer)
        for _ in range(10_000):
            if not self.job.staged() and not self.job.waiting():
                break
            self.beat()
        assert self.job.staged() == self.job.waiting() == 0
        self.beat(flush=True)

    def save(self):
        """Facts and arrays of a snapshot, as the heart makes them."""
        name = self.plan.name
        arrays = {f"{name}/{key}": value for key, value in self.job.save().items()}
        return json.dumps(JobRegistry([self.job]).facts()).encode(), arrays

    def snapshot(self):
        """Take a snapshot after the last beat."""
        return self.store.snapshot(self.beats, *self.save())

    def all_pages(self):
        """Every sealed page so far."""
        return [page for beat in self.pages for page in beat]

    def rows(self, stream):
        """Every row that left in pages of `stream`."""
        return rows_of(self.plan, self.all_pages(), stream)

    def late(self, stream):
        """Late rows counted."""
        return self.job.streams[stream].late

    def watermark(self, stream):
        """The stream's watermark after the last beat."""
        return self.job.streams[stream].time.watermark_us


class Daemon(ChildProcess):
    """`edged run` as a process, with its control door."""

    def __init__(self, path, document, *arguments, module="edged"):
        self.path, self.port = path, free_port()
        self.job_file = path / "job.json"
        self.write(document)
        self.store = path / "store"
        self.door = path / "door"
        words = [module, "run", str(self.job_file), "--store", str(self.store), "--json"]
        words += ["--door", str(self.door), "--device", "dev", "--workers", "1", *arguments]
        super().__init__("daemon", words, path)

    def __enter__(self):
        self.ready(300)
        return self

    def __exit__(self, *_):
        self.stop()

    def write(self, document):
        """The document that the next start reads."""
        self.job_file.write_text(json.dumps(self.here(document)))

    def here(self, document):
        """The document with its listeners at this daemon's port."""
        new = copy.deepcopy(document)
        for table in new["streams"].values():
            table["source"]["listen"] = f"127.0.0.1:{self.port}"
        return new

    def producer(self, stream="r", id="p", **options):
        """A producer of key, time and value."""
        options = {"timeout_s": COMPILED_S, **options}
        return Producer(f"127.0.0.1:{self.port}", stream, ARROW, id, **options)

    def status(self):
        return ask(self.door, "status")

    def stream(self, job, name):
        return self.status()["jobs"][job]["streams"][name]

    def until(self, condition, seconds=120.0):
        """Wait until `condition(status)` holds; returns that status."""
        deadline = time.monotonic() + seconds
        while not condition(status := self.status()):
            assert time.monotonic() < deadline, status
            self.check()
            time.sleep(0.05)
        return status

    def proc(self, name):
        """A field of /proc/PID/status, in its own unit (kB for memory)."""
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith(name + ":"))
