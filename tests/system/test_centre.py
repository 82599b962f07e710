"""A daemon and a collector: telemetry to the centre, the desired state back, over any kill.

They are started once; each test leaves them running with every upload window open.
"""

import contextlib
import json
import os
import signal
import time

import httpx
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from edged.client import Producer
from edged.control.door import ask
from edged.data.schema import Schema
from edged.errors import CommandError
from edged.pages.read import read_page
from edged.platform.processes import ChildProcess, free_port
from edged.uplink import telemetry
from tests.central.support import by_partition

DEVICE = "edge-7"
COLUMNS = pa.schema([pa.field("v", pa.int64(), False),
                     pa.field("time", pa.timestamp("us", tz="UTC"), False)])  # fmt: skip


def job(name, address, where="v > 0"):
    source = {"type": "tcp", "listen": address}
    return {
        "name": name,
        "promises": {"latency": "100ms", "memory": "64MiB"},
        "streams": {
            "a": {"source": source, "columns": {"v": "int64", "time": "timestamp"}, "time": "time"}
        },
        "operators": {"kept": {"type": "filter", "input": "a", "where": where}},
        "sinks": {"out": {"type": "pages", "input": "kept", "stream": name}},
    }


class Plant:
    """Collector and daemon in one directory."""

    def __init__(self, directory):
        self.directory, self.landing = directory, directory / "landing"
        self.store, self.logs = directory / "store", directory / "logs"
        self.logs.mkdir()
        self.address, self.second = (f"127.0.0.1:{free_port()}" for _ in range(2))
        listen, self.metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
        file = directory / "own.json"
        file.write_text(json.dumps(job("own", self.address)))
        self.collector = ChildProcess(
            "collector",
            ["edged", "central", "collect", "--landing", str(self.landing), "--listen", listen,
             "--metrics", self.metrics, "--json"],
            self.logs,
        )  # fmt: skip
        self.collector.ready()
        self.daemon = ChildProcess(
            "daemon",
            ["edged", "run", str(file), "--store", str(self.store), "--device", DEVICE,
             "--uplink", f"http://{listen}", "--board", "simulated:orin-nano", "--json"],
            self.logs,
        )  # fmt: skip
        self.daemon.ready(300)
        self.version, self.sessions, self.sent = 0, 1, 0

    def status(self):
        return ask(self.store / "door", "status")

    def until(self, condition, timeout_s=120.0):
        end = time.monotonic() + timeout_s
        while True:
            try:
                if found := condition():
                    return found
            except (CommandError, httpx.HTTPError):
                pass
            assert time.monotonic() < end, (self.logs / "daemon.log").read_text()[-3000:]
            time.sleep(0.05)

    def want(self, document):
        """Publish a document as `edged central desired` does; returns the device's verdict."""
        self.version += 1
        path = self.landing / "desired" / f"{DEVICE}.json"
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({"version": self.version, "document": document}))
        fresh.replace(path)

        def judged():
            verdict = self.desired()
            if verdict.get("version") != self.version:
                return None
            return verdict if verdict["problem"] or verdict["applied"] == self.version else None

        return self.until(judged)

    def desired(self):
        """The device's verdict on the last document; empty where there was none."""
        return self.status()["uplink"]["desired"] or {}

    @contextlib.contextmanager
    def closed(self, **more):
        """Desired state: no upload window now, and `more`; afterwards every window is open."""
        hour = (time.gmtime().tm_hour + 12) % 24
        window = {"from": f"{hour:02}:00", "until": f"{hour:02}:30"}
        try:
            assert self.want({"windows": [window], **more})["applied"] == self.version
            yield
        finally:
            assert self.want({"windows": []})["applied"] == self.version

    def kill(self):
        """Kill and restart the daemon; returns after its first report."""
        self.daemon.kill()
        self.daemon.restart()
        self.daemon.ready(300)
        self.sessions += 1
        self.until(lambda: list(self.reports())[-1] >> 40 == self.sessions)

    def state(self):
        status = self.status()
        jobs = {name: j["document"] for name, j in self.jobs().items()}
        return jobs, status["energy"]["policy"]["policy"]

    def jobs(self):
        return {j["name"]: j for j in ask(self.store / "door", "jobs")["jobs"]}

    def send(self, address=None):
        """Send 100 rows, later than all before, from a new producer."""
        self.sent += 1
        rows = {"v": list(range(1, 101)), "time": [self.sent * 1000] * 100}
        batch = pa.record_batch(rows, COLUMNS)
        producer = f"p{self.sent}"
        with Producer(address or self.address, "a", COLUMNS, producer=producer) as connection:
            connection.send(batch)

    def reports(self):
        """Landed reports by number; a repeated one fails."""
        pages = by_partition(self.landing).get((DEVICE, telemetry.STREAM, 0), {})
        assert list(pages) == sorted(pages), "landed in order"
        schema = Schema.from_json(telemetry.SCHEMA)
        return {seq: read_page(page, schema).to_pylist()[0] for seq, page in pages.items()}

    def report(self):
        """The last landed report."""
        return self.until(lambda: list(self.reports().values()))[-1]

    def own_pages(self):
        """Landed pages of the job `own`."""
        return len(by_partition(self.landing).get((DEVICE, "own", 0), ()))

    def samples(self):
        text = httpx.get(f"http://{self.metrics}/metrics").text
        return {
            s.name: s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
            if s.labels.get("device") == DEVICE
        }


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    os.environ["EDGED_TELEMETRY__INTERVAL_S"] = "1"
    try:
        made = Plant(tmp_path_factory.mktemp("plant"))
        yield made
        made.daemon.stop()
        made.collector.stop()
    finally:
        del os.environ["EDGED_TELEMETRY__INTERVAL_S"]


def test_what_the_daemon_knows_of_itself_is_what_spark_and_prometheus_read(plant):
    before = plant.report()
    plant.send()
    rows = before["rows"] + 100
    plant.until(lambda: plant.samples().get("edged_device_rows_total") == rows)
    last = plant.report()
    reported = last["session"], last["rows"], last["energy_source"]
    assert reported == (plant.sessions, rows, "simulated")
    own = json.loads(before["jobs"])["own"]
    assert json.loads(last["jobs"])["own"] == {**own, "rows": own["rows"] + 100}
    assert (own["state"], own["version"]) == ("running", 1)
    samples = plant.samples()
    assert samples["edged_device_up"] == 1 and samples["edged_device_power_watts"] > 3


def test_a_document_with_anything_wrong_changes_nothing(plant):
    before, first = plant.state(), plant.version + 1
    applied = plant.desired().get("applied", 0)
    good, policy = job("more", plant.second), {"name": "fixed", "settings": {"cpu_mhz": 729.6}}
    bad = [
        {"policy": policy, "jobs": [good, job("worse", plant.second, "nope > 1")]},
        {"policy": policy, "jobs": [{**good, "name": "own"}]},
        {"jobs": [good], "policy": {"name": "turbo"}},
    ]  # fmt: skip
    for document in bad:
        verdict = plant.want(document)
        assert verdict["problem"] and verdict["applied"] == applied, document
        assert plant.state() == before
    refused = [e["facts"]["version"]
               for e in ask(plant.store / "door", "events", limit=1000)["events"]
               if e["kind"] == "desired.refused" and e["facts"]["version"] >= first]  # fmt: skip
    assert refused == list(range(first, plant.version + 1))
    plant.until(lambda: plant.samples()["edged_device_desired_refused"] == 1)


def test_a_good_one_is_applied_through_the_door_and_a_job_not_wanted_any_more_goes(plant):
    wanted = job("more", plant.second)
    policy = {"name": "fixed", "settings": {"cpu_mhz": 729.6}}
    verdict = plant.want({"jobs": [wanted], "policy": policy})
    assert verdict == {"version": plant.version, "applied": plant.version, "problem": ""}
    assert (plant.jobs()["more"]["origin"], plant.state()[1]) == ("centre", "fixed")
    plant.send(plant.second)
    assert plant.want({"jobs": [wanted]})["applied"] == plant.version
    assert plant.jobs()["more"]["version"] == 1, "the same document is no change"
    assert plant.want({"jobs": []})["applied"] == plant.version
    plant.until(lambda: set(plant.jobs()) == {"own"})
    plant.until(lambda: (DEVICE, "more", 0) in by_partition(plant.landing))


def test_outside_of_the_windows_pages_wait_and_reports_go(plant):
    with plant.closed():
        pages, reports = plant.own_pages(), len(plant.reports())
        plant.send()
        plant.until(lambda: plant.samples()["edged_device_backlog_bytes"] > 0)
        plant.until(lambda: len(plant.reports()) > reports)
        assert plant.own_pages() == pages
        plant.until(lambda: json.loads((plant.store / "desired.json").read_text())["windows"])
    plant.until(lambda: plant.own_pages() > pages)


@pytest.mark.whole
def test_over_kill_9_of_all_three_processes_reports_go_on_and_the_desired_state_stays(plant):
    with plant.closed(policy={"name": "fixed", "settings": {"cpu_mhz": 729.6}}):
        wanted = plant.desired()
        plant.send()
        os.kill(plant.status()["uplink"]["pid"], signal.SIGKILL)
        count = len(plant.reports())
        plant.until(lambda: len(plant.reports()) > count)
        plant.kill()
        assert plant.desired() == wanted
        assert plant.state()[1] == "fixed", "the policy that the centre wanted"
        assert plant.status()["store"]["backlog_pages"] > 0, "and its windows"
        plant.collector.kill()
        plant.collector.restart()
        count = len(plant.reports())
        plant.until(lambda: len(plant.reports()) > count)
        reports = plant.reports()
        assert sorted({seq >> 40 for seq in reports}) == list(range(1, plant.sessions + 1))
        assert all(seq >> 40 == row["session"] for seq, row in reports.items())
    plant.until(lambda: plant.status()["store"]["backlog_pages"] == 0)
