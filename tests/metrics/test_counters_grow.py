"""No counter of a daemon falls while its process lives, whatever happens to jobs and sources."""

import contextlib
import copy
import datetime
import os
import signal
import socket

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.metrics import exposition_of
from edged.beat import lasting_counts
from edged.beat.lasting_counts import LastingCounts, growing
from edged.beat.stats import WAIT_US, BucketCounts
from edged.client import Producer
from edged.control.door import ask
from edged.platform.processes import free_port
from tests.api.support import Daemon, small, until
from tests.beat.support import COMPILED_S
from tests.metrics.plant import SENT

GROW = ("counter", "histogram")


class Scrapes:
    """Scrapes of one daemon: each series is at least what it ever was."""

    def __init__(self, door):
        self.door, self.seen, self.status = door, {}, {}

    def __call__(self):
        """The series of one more scrape."""
        self.status = ask(self.door, "status")
        text, _ = exposition_of(self.status).encode()
        found = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples if family.type in GROW else ():
                if not sample.name.endswith("_created"):
                    found[(sample.name, *sorted(sample.labels.items()))] = sample.value
        fallen = {key: (self.seen[key], v) for key, v in found.items() if v < self.seen.get(key, v)}
        assert not fallen
        self.seen |= found
        return found

    def total(self, name, **labels):
        """The sum of a metric's series with these labels."""
        wanted = set(labels.items())
        return sum(v for key, v in self().items() if key[0] == name and wanted <= {*key[1:]})


class Plant:
    """A daemon with a listening job `fed`, to be changed, and its scrapes."""

    def __init__(self, path):
        self.ports = [free_port(), free_port()]
        self.daemon = Daemon(path, small("calm"), "--uplink", "http://127.0.0.1:9")
        self.scrapes = Scrapes(self.daemon.door)

    def __enter__(self):
        self.daemon.__enter__()
        return self

    def __exit__(self, *_):
        self.daemon.__exit__()

    def ask(self, cmd, **arguments):
        answer = ask(self.daemon.door, cmd, **arguments)
        self.scrapes()
        return answer

    def put(self, latency="1s", streams="ab", where="key * 9223372036854775807 >= 0", **more):
        """Put the job with these streams; each has a filter that errs and one sink, two a join."""
        document = {"name": "fed", "promises": {"memory": "8MiB", "latency": latency, **more},
                    "streams": {}, "operators": {}, "sinks": {}}  # fmt: skip
        for name, port in zip(streams, self.ports, strict=False):
            document["streams"][name] = {
                "source": {"type": "tcp", "listen": f"127.0.0.1:{port}"}, "time": "time",
                "columns": {"key": "int64", "time": "timestamp", "value": "float64"},
            }  # fmt: skip
            document["operators"][f"sane_{name}"] = {"type": "filter", "input": name,
                                                     "where": where}  # fmt: skip
            document["sinks"][f"sink_{name}"] = {"type": "pages", "input": f"sane_{name}"}
        if len(streams) > 1:
            document["operators"]["joined"] = {
                "type": "interval_join", "left": "a", "right": "b", "on": ["key"],
                "before": "1h", "after": "1h",
            }  # fmt: skip
            document["sinks"]["pairs"] = {"type": "pages", "input": "joined"}
        self.ask("job.put", document=document)

    def feed(self, streams="ab"):
        """Rows on time, late, and too far ahead; one connection that is refused."""
        before, received = self.received(), self.scrapes.total("edged_source_rows_total")
        refused = self.scrapes.total("edged_source_refused_total")
        for name, port in zip(streams, self.ports, strict=False):
            with Producer(f"127.0.0.1:{port}", name, SENT, "p", timeout_s=COMPILED_S) as producer:
                for minutes in (0, -600, 10_000):
                    producer.send(rows(minutes))
                    producer.flush()
            with contextlib.closing(socket.create_connection(("127.0.0.1", port))) as stranger:
                stranger.sendall(b"nonsense\r\n\r\n" * 9)
                until(lambda at=stranger: at.recv(999) == b"", 120)
        new = 8 * len(streams)  # the rows ahead are refused
        until(lambda: self.received() - before == new, 120)
        assert self.scrapes.total("edged_source_rows_total") - received == new
        now = self.scrapes.total("edged_source_refused_total") - refused
        assert now == len(streams)

    def received(self):
        return self.scrapes.total("edged_stream_rows_total", job_name="fed")


def rows(minutes):
    """Four rows, so many minutes from now; the filter errs on those of key 2 and 3."""
    when = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=minutes)
    return pa.record_batch([pa.array(range(4)), pa.array([when] * 4, SENT[1].type),
                            pa.array([1.0] * 4)], SENT)  # fmt: skip


def test_no_series_falls_while_jobs_are_replaced_deleted_and_put_again(tmp_path):
    with Plant(tmp_path) as plant:
        total = plant.scrapes.total
        plant.put()
        plant.feed()
        drops = total("edged_rows_dropped_total", reason="late")
        assert drops > 0 and total("edged_rows_dropped_total", reason="refused_ahead") == 8
        errors = total("edged_operator_error_rows_total")
        assert errors > 0 and total("edged_operator_matches_total") > 0
        plant.put(latency="30ms", memory="12MiB")  # other bounds, stagings, sources and filters
        plant.feed()
        assert total("edged_operator_error_rows_total") > errors
        plant.put(streams="a", where="key * 9223372036854775807 >= 1")
        plant.feed("a")
        plant.put(latency="30ms")
        plant.feed()
        ended = {name: total(name) for name in ("edged_rows_dropped_total", "edged_rows_total",
                                                "edged_source_bytes_total")}  # fmt: skip
        plant.ask("job.delete", name="fed")
        until(lambda: "fed" not in plant.scrapes.status["jobs"] or plant.scrapes() is None, 120)
        assert total("edged_rows_dropped_total") >= ended["edged_rows_dropped_total"]
        assert total("edged_rows_total") == ended["edged_rows_total"]
        plant.put()
        assert plant.received() == 7 * 8, "a job of its name goes on"
        plant.feed()
        assert total("edged_rows_dropped_total") > ended["edged_rows_dropped_total"]
        assert total("edged_source_bytes_total") > ended["edged_source_bytes_total"]
        assert plant.scrapes.status["drops"]["refused_ahead"] == 9 * 4


def test_counters_of_the_uplink_outlive_its_process(tmp_path):
    with Plant(tmp_path) as plant:
        total = plant.scrapes.total
        plant.put(streams="a")
        plant.feed("a")
        until(lambda: total("edged_uplink_retries_total") > 0, 120)
        before = total("edged_uplink_retries_total")
        os.kill(plant.scrapes.status["uplink"]["pid"], signal.SIGKILL)
        until(lambda: total("edged_uplink_starts_total") > 1, 120)
        until(lambda: total("edged_uplink_retries_total") > before, 120)


def test_the_counts_of_ended_parts_are_bounded_and_those_of_running_ones_are_kept(monkeypatch):
    monkeypatch.setattr(lasting_counts, "ENDED_MAX", 3)
    counts = LastingCounts()
    counts.move({"runs": {"n": 7}}, {"runs": {"n": 0}})
    for part in range(10):
        counts.move({part: {"n": part + 1}}, {"runs": {"n": 0}})
    assert counts.shown("runs", {"n": 1, "name": "x"}) == {"n": 8, "name": "x"}
    assert [counts.ahead(n).get("n", 0) for n in range(10)] == [0] * 7 + [8, 9, 10]
    counts.move({}, {9: {"n": 0}})
    assert counts.shown(9, {"n": 5}) == {"n": 15}


def test_what_a_part_takes_over_is_counted_once():
    counts = LastingCounts()
    counts.move({"s": {"rows": 10}}, {"s": {"rows": 10}})
    assert counts.shown("s", {"rows": 11}) == {"rows": 11}
    counts.move({"s": {"rows": 11}}, {"s": {"rows": 4}})
    assert counts.shown("s", {"rows": 5}) == {"rows": 12}
    assert growing({"n": 1, "live": 2, "kernel": "k"}, {"live"}) == {"n": 1}


@pytest.mark.parametrize("promises", [(30_000, 70_000, 30_000), (10**9, 5, 10**9), (1, 2, 3)])
def test_no_bucket_of_a_latency_falls_with_another_promise(promises):
    seen, counts = {}, BucketCounts(WAIT_US)
    for promise_us in promises:
        counts = counts.rebound(sorted({*WAIT_US, promise_us}))
        for step in range(2):
            below = 0
            for bound, n in zip([*counts.bounds, "inf"], counts.counts, strict=True):
                below += n
                assert below >= seen.get(bound, 0)
                seen[bound] = below
            if not step:
                before = copy.copy(counts.sum)
                for us in (1, 3, 29_000, 31_000, 69_000, 71_000, 10**8, 10**10):
                    counts.add(us)
                assert counts.sum > before
    assert below == 8 * len(promises)
