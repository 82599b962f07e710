"""A collector, a daemon on a simulated board, its API and a Prometheus that scrapes it."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pyarrow as pa
import pyarrow.parquet

from edged.client import Producer
from edged.control.door import ask
from edged.platform.processes import ChildProcess, free_port
from edged.uplink import telemetry
from tests.central.support import EPOCH, Device
from tests.spark.conftest import QUICK_SPARK

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DEVICE = "turbine-7"
STORE_BYTES = 48 << 20
_COLUMNS = {"key": "int64", "time": "timestamp", "value": "float64"}

TABLES = """
[streams]
pairs = "pairs"
[tables.total]
from = "pairs"
sql = "SELECT key, count(*) AS n FROM pairs GROUP BY key"
keys = ["key"]
merge = { n = "count" }
"""

SENT = pa.schema(
    [
        pa.field("key", pa.int64(), False),
        pa.field("time", pa.timestamp("us", "UTC"), False),
        pa.field("value", pa.float64(), False),
    ]
)


def rows(count, hours=0):
    """Rows of the stream `sent`, some hours from now."""
    when = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=hours)
    values = [random.random() for _ in range(count)]
    columns = [pa.array(range(count)), pa.array([when] * count, SENT[1].type), pa.array(values)]
    return pa.record_batch(columns, SENT)


def generated(seed):
    source = {"type": "generator", "rate": 500, "key": "key", "key_max": 100, "seed": seed}
    return {"source": source, "columns": _COLUMNS, "time": "time", "silent_after": "1min"}


def document(port, directory):
    """A job with something of every kind that there are metrics of."""
    keys = directory / "keys.parquet"
    if not keys.exists():
        pyarrow.parquet.write_table(pa.table({"key": pa.array(range(9), pa.int64())}), keys)
    tcp = {"type": "tcp", "listen": f"127.0.0.1:{port}"}
    return {
        "name": "watched",
        "promises": {"latency": "500ms", "memory": "4MiB"},
        "streams": {
            "left": generated(0), "right": generated(1),
            "sent": {"source": tcp, "columns": _COLUMNS, "time": "time", "idle_after": "1s"},
        },
        "tables": {
            "keys": {"source": {"type": "file", "path": str(keys)}, "columns": {"key": "int64"}}
        },
        "operators": {
            "known": {"type": "enrich", "input": "left", "table": "keys", "on": ["key"]},
            "joined": {"type": "interval_join", "left": "left", "right": "right", "on": ["key"],
                       "before": "1s", "after": "1s"},
            "counted": {"type": "window", "input": "sent", "keys": ["key"], "size": "10s",
                        "aggregates": {"n": "count(*)"}},
        },
        "sinks": {
            "pairs": {"type": "pages", "input": "joined", "page": "16KiB"},
            "counts": {"type": "pages", "input": "counted", "page": "16KiB"},
            "known_rows": {"type": "pages", "input": "known", "page": "16KiB"},
            "copies": {"type": "pages", "input": "sent", "page": "64KiB"},
            "next": {"type": "edge", "input": "sent", "to": ["127.0.0.1:9"], "high": "1GiB"},
        },
    }  # fmt: skip


def hasty():
    """A job that promises what no disk keeps."""
    return {
        "name": "hasty",
        "promises": {"latency": "1us", "memory": "1MiB"},
        "streams": {"made": generated(2)},
        "sinks": {"all": {"type": "pages", "input": "made", "page": "16KiB"}},
    }


def wide(streams=80):
    """A job of more streams than the metrics have room for."""
    source, names = {"type": "http"}, [f"s{n}" for n in range(streams)]
    return {
        "name": "wide",
        "promises": {"memory": "8MiB"},
        "streams": {n: {"source": source, "columns": _COLUMNS, "time": "time"} for n in names},
        "operators": {"every": {"type": "union", "inputs": names}},
        "sinks": {"all": {"type": "pages", "input": "every", "page": "16KiB"}},
    }


def erring():
    """A job whose expression fails on every row but those of key 0 and 1."""
    return {
        "name": "erring",
        "promises": {"memory": "1MiB"},
        "streams": {"made": generated(3)},
        "operators": {"scaled": {"type": "filter", "input": "made",
                                 "where": "key * 9223372036854775807 >= 0"}},
        "sinks": {"all": {"type": "pages", "input": "scaled", "page": "16KiB"}},
    }  # fmt: skip


def listening(port, latency="1s", **options):
    """A job that needs this port; options for its stream."""
    tcp = {"type": "tcp", "listen": f"127.0.0.1:{port}"}
    return {
        "name": "listening",
        "promises": {"memory": "1MiB", "latency": latency},
        "streams": {"heard": {"source": tcp, "columns": _COLUMNS, "time": "time", **options}},
        "sinks": {"all": {"type": "pages", "input": "heard", "page": "16KiB"}},
    }


class Plant:
    """All of them, in one directory; they end with the `with`."""

    def __init__(self, path):
        self.path, self.store = path, path / "store"
        self.door = self.store / "door"
        self.metrics, self.prometheus, self.central = free_port(), free_port(), free_port()
        self.targets, self.full = [], threading.Event()
        self.collector, self.producers = f"127.0.0.1:{free_port()}", free_port()
        self.landing = path / "landing"
        self.parts, self._over = {}, contextlib.ExitStack()
        self.http = self._over.enter_context(httpx.Client(timeout=60, trust_env=False))

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for part in reversed(self.parts.values()):
            part.stop(10)
        self._over.close()

    def _start(self):
        self.collect()
        job = self.path / "job.json"
        job.write_text(json.dumps(document(self.producers, self.path)))
        config = self.path / "edged.toml"
        config.write_text(
            f'[run]\ndoor = "{self.door}"\n[store]\ndirectory = "{self.store}"\n'
            f'[api]\nsocket = "{self.path / "api.sock"}"\ngroup = ""\n'
            f'[metrics]\nlisten = "127.0.0.1:{self.metrics}"\n'
            "[telemetry]\ninterval_s = 1\n"
        )
        self.part("daemon", "edged", "run", str(job), "--config", str(config), "--json",
                  "--store", str(self.store), "--workers", "1", "--device", DEVICE,
                  "--board", "simulated:orin-nano", "--store-max", str(STORE_BYTES),
                  "--uplink", f"http://{self.collector}",
                  "--policy", "energy_budget", "--governor", "joules_per_day=1e9")  # fmt: skip
        self.part("api", "api", "--config", str(config), "--json").ready()
        self.parts["daemon"].ready(300)
        self._scrape()

    def collect(self):
        """Start the collector of the landing."""
        self.part("collector", "edged", "central", "collect", "--landing",
                  str(self.landing), "--listen", self.collector, "--json",
                  "--metrics", f"127.0.0.1:{self.central}").ready()  # fmt: skip

    def aggregate(self):
        """Start the aggregation, which takes its time; it tells its metrics at `tables`."""
        self.until(lambda: list(self.landing.glob("schemas/pairs@*")))
        self.tables, spec = free_port(), self.path / "tables.toml"
        spec.write_text(TABLES)
        conf = [word for k, v in QUICK_SPARK.items() for word in ("--conf", f"{k}={v}")]
        self.part("aggregate", "edged", "central", "aggregate", str(spec),
                  "--landing", str(self.landing), "--output", str(self.path / "out"),
                  "--checkpoint", str(self.path / "checkpoint"), "--master", "local[1]",
                  "--trigger", "60s", "--metrics", f"127.0.0.1:{self.tables}", *conf)  # fmt: skip

    def part(self, name, *words):
        self.parts[name] = ChildProcess(name, words, self.path)
        return self.parts[name]

    def producer(self, name, **options):
        """A sender to the stream `sent`."""
        return Producer(f"127.0.0.1:{self.producers}", "sent", SENT, producer=name, **options)

    def _scrape(self):
        """Prometheus with the repository's rules, their times made short."""
        for rules in PROMETHEUS.glob("*.rules.yml"):
            (self.path / rules.name).write_text(hurried(rules.read_text()))
        scrapes = (
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            "rule_files: [recording.rules.yml, alerts.rules.yml]\n"
            "scrape_configs:\n"
        )
        for job in ("edged", "edged-collector", "edged-aggregate"):
            scrapes += f"  - job_name: {job}\n    file_sd_configs: [{{files: [{job}.json]}}]\n"
            self._targets(job)
        self.scrape("edged", self.metrics, device=DEVICE)
        self.scrape("edged-collector", self.central)
        (self.path / "prometheus.yml").write_text(scrapes)
        log = self._over.enter_context((self.path / "prometheus.log").open("wb"))
        process = subprocess.Popen(
            [shutil.which("prometheus"), f"--config.file={self.path / 'prometheus.yml'}",
             f"--storage.tsdb.path={self.path / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{self.prometheus}"],
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._over.callback(process.wait, 20)
        self._over.callback(process.terminate)

    def remote(self, name):
        """A device that speaks to the collector only."""
        return Device(SimpleNamespace(url=f"http://{self.collector}"), name)

    def report(self, name, count, **told):
        """The report number `count` of a remote device: the daemon's, with changed fields."""
        row = telemetry.row(self.ask("status"), 3600.0, {"version": 0, "applied": 0, "problem": ""})
        names = [column for column, _, _ in telemetry.COLUMNS]
        row = list((dict(zip(names, row, strict=True)) | told).values())
        with self.remote(name) as device:
            device.register(telemetry.STREAM, telemetry.VERSION, telemetry.SCHEMA)
            page = telemetry.page(name, EPOCH, telemetry.number(1, count), row)
            assert device.send(page).status_code == 200

    def scrape(self, job, port, **labels):
        """Have Prometheus scrape one more."""
        self.targets.append((job, {"targets": [f"127.0.0.1:{port}"], "labels": labels}))
        self._targets(job)

    def _targets(self, job):
        file = self.path / f"{job}.json"
        file.with_suffix(".new").write_text(json.dumps([t for j, t in self.targets if j == job]))
        file.with_suffix(".new").rename(file)

    def exposed(self):
        """The metrics as text."""
        return self.http.get(f"http://127.0.0.1:{self.metrics}/metrics").text

    def ask(self, cmd, **arguments):
        return ask(self.door, cmd, **arguments)

    def get(self, path, **parameters):
        """What Prometheus' API answers."""
        answer = self.http.get(
            f"http://127.0.0.1:{self.prometheus}/api/v1/{path}", params=parameters
        ).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        return self.get("query", query=expression)["result"]

    def firing(self, name="", **labels):
        """The alerts that fire, of a name and with labels where they are given."""
        wanted = labels | ({"alertname": name} if name else {})
        return [a for a in self.get("alerts")["alerts"]
                if a["state"] == "firing" and wanted.items() <= a["labels"].items()]  # fmt: skip

    def fired(self, name, seconds, **labels):
        """The same of those that have fired within so many seconds, without their annotations."""
        wanted = {"alertname": name, "alertstate": "firing", **labels}
        asked = ",".join(f'{key}="{value}"' for key, value in wanted.items())
        found = self.query(f"last_over_time(ALERTS{{{asked}}}[{max(1, int(seconds))}s])")
        return [{"labels": series["metric"], "annotations": {}} for series in found]

    def until(self, condition, seconds=180.0, step_s=0.25):
        """Wait until `condition()` gives something; that."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx.TransportError, json.JSONDecodeError):
                if found := condition():
                    return found
            assert time.monotonic() < deadline, self.told()
            time.sleep(step_s)

    def told(self):
        with contextlib.suppress(Exception):
            daemon = (self.path / "daemon.log").read_text()[-4000:]
            return f"{[a['labels'] for a in self.firing()]}\n{self.exposed()}\n{daemon}"
        return (self.path / "prometheus.log").read_text()[-2000:]


def hurried(rules):
    """Rules for a test: what takes minutes takes seconds, what takes an hour five minutes or, where
    it is about growth, seconds too; a page or a table is a page or a table is old after a
    second, a store nearly full when half of it is taken."""
    rules = re.sub(r"for: \d+m", "for: 1s", rules)
    rules = re.sub(r"(restarts_total\"}\[)1h\]", r"\g<1>5m]", rules)
    rules = re.sub(r"(?<!restarts_total\"})\[\d+[mh]\]", "[8s]", rules)
    rules = re.sub(r"(_age_seconds(:max)?) > 900", r"\1 > 1", rules)
    rules = rules.replace("_fill_ratio > 0.95", "_fill_ratio > 0.5")
    return re.sub(r"(_seconds\)) > 3600", r"\1 > 1", rules).replace("< 3 * edged", "< 0 * edged")
