"""A collector, a daemon on a simulated board, its API and a Prometheus that scrapes it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx

from edged.door import ask
from edged.processes import Part, free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DEVICE = "turbine-7"
_COLUMNS = {"key": "int64", "time": "timestamp", "value": "float64"}


def generated(seed):
    source = {"type": "generator", "rate": 500, "key": "key", "key_max": 100, "seed": seed}
    return {"source": source, "columns": _COLUMNS, "time": "time"}


def document(port):
    """A job with something of every kind that there are metrics of."""
    tcp = {"type": "tcp", "listen": f"127.0.0.1:{port}"}
    return {
        "name": "watched",
        "promises": {"latency": "500ms", "memory": "64MiB"},
        "streams": {
            "left": generated(0), "right": generated(1),
            "sent": {"source": tcp, "columns": _COLUMNS, "time": "time", "idle_after": "1s"},
        },
        "operators": {
            "joined": {"type": "interval_join", "left": "left", "right": "right", "on": ["key"],
                       "before": "1s", "after": "1s"},
            "counted": {"type": "window", "input": "sent", "keys": ["key"], "size": "10s",
                        "aggregates": {"n": "count(*)"}},
        },
        "sinks": {
            "pairs": {"type": "pages", "input": "joined", "page": "16KiB"},
            "counts": {"type": "pages", "input": "counted", "page": "16KiB"},
        },
    }  # fmt: skip


def hasty():
    """A job that promises what no disk keeps."""
    return {
        "name": "hasty",
        "promises": {"latency": "1us", "memory": "64MiB"},
        "streams": {"made": generated(2)},
        "sinks": {"all": {"type": "pages", "input": "made", "page": "16KiB"}},
    }


class Plant:
    """All of them, in one directory; they end with the `with`."""

    def __init__(self, path):
        self.path, self.store = path, path / "store"
        self.door = self.store / "door"
        self.metrics, self.prometheus, self.central = free_port(), free_port(), free_port()
        self.collector = f"127.0.0.1:{free_port()}"
        self.parts, self._over = {}, contextlib.ExitStack()
        self.http = self._over.enter_context(httpx.Client(timeout=10, trust_env=False))

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
        self.part("collector", "edged", "central", "collect", "--landing",
                  str(self.path / "landing"), "--listen", self.collector, "--json",
                  "--metrics", f"127.0.0.1:{self.central}").ready()  # fmt: skip
        job = self.path / "job.json"
        job.write_text(json.dumps(document(free_port())))
        config = self.path / "edged.toml"
        config.write_text(
            f'[run]\ndoor = "{self.door}"\n[store]\ndirectory = "{self.store}"\n'
            f'[api]\nsocket = "{self.path / "api.sock"}"\ngroup = ""\n'
            f'[metrics]\nlisten = "127.0.0.1:{self.metrics}"\n'
            "[telemetry]\ninterval_s = 1\n"
        )
        self.part("daemon", "edged", "run", str(job), "--config", str(config), "--json",
                  "--store", str(self.store), "--workers", "1", "--device", DEVICE,
                  "--board", "simulated:orin-nano", "--store-max", "1000000000",
                  "--uplink", f"http://{self.collector}",
                  "--policy", "energy_budget", "--governor", "joules_per_day=1e9")  # fmt: skip
        self.part("api", "api", "--config", str(config), "--json").ready()
        self.parts["daemon"].ready(120)
        self._scrape()

    def part(self, name, *words):
        self.parts[name] = Part(name, words, self.path)
        return self.parts[name]

    def _scrape(self):
        """Prometheus with the repository's rules, their times made short."""
        for rules in PROMETHEUS.glob("*.rules.yml"):
            (self.path / rules.name).write_text(hurried(rules.read_text()))
        (self.path / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            "rule_files: [recording.rules.yml, alerts.rules.yml]\n"
            "scrape_configs:\n"
            "  - job_name: edged\n"
            "    static_configs:\n"
            f'      - targets: ["127.0.0.1:{self.metrics}"]\n'
            f"        labels: {{device: {DEVICE}}}\n"
            "  - job_name: edged-collector\n"
            "    static_configs:\n"
            f'      - targets: ["127.0.0.1:{self.central}"]\n'
        )
        log = self._over.enter_context((self.path / "prometheus.log").open("wb"))
        process = subprocess.Popen(
            [shutil.which("prometheus"), f"--config.file={self.path / 'prometheus.yml'}",
             f"--storage.tsdb.path={self.path / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{self.prometheus}"],
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._over.callback(process.wait, 20)
        self._over.callback(process.terminate)

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

    def firing(self):
        """The alerts that fire, by name."""
        return {a["labels"]["alertname"]: a for a in self.get("alerts")["alerts"]
                if a["state"] == "firing"}  # fmt: skip

    def until(self, condition, seconds=60.0, step_s=0.25):
        """Wait until `condition()` gives something; that."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(httpx.TransportError):
                if found := condition():
                    return found
            assert time.monotonic() < deadline, self.told()
            time.sleep(step_s)

    def told(self):
        with contextlib.suppress(Exception):
            return f"{sorted(self.firing())}\n{self.exposed()}"
        return (self.path / "prometheus.log").read_text()[-2000:]


def hurried(rules):
    """Rules for a test: what takes minutes takes seconds, and a page is old after one."""
    rules = re.sub(r"for: \d+m", "for: 1s", rules)
    rules = re.sub(r"\[\d+[mh]\]", "[8s]", rules)
    return rules.replace("_age_seconds:max > 900", "_age_seconds:max > 1")
