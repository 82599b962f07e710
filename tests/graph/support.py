"""Graphs of tests, and the daemons and APIs that they run on."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager

from edged.platform.processes import ChildProcess
from tests.api.support import Api

SPAN = 20
"""Ports of each daemon."""
READINGS = {
    "source": {"type": "http"},
    "columns": {"turbine": "string", "time": "timestamp", "kw": "float64"},
    "time": "time",
    "max_ahead": "36500d",
    "place": "gate",
}
MEAN = {
    "type": "window",
    "input": "producing",
    "keys": ["turbine"],
    "size": "1min",
    "aggregates": {"kw": "sum(kw)", "n": "count(*)"},
    "place": ["site-a", "site-b"],
}


def daemons(names=("gate", "site-a", "site-b"), first_port=9100):
    """The section of daemons that are not there."""
    return {
        name: {
            "api": f"/nowhere/{name}.sock",
            "ports": f"{first_port + i * SPAN}-{first_port + i * SPAN + SPAN - 1}",
        }
        for i, name in enumerate(names)
    }


def farm(**changes):
    """Readings at the gate, their means by turbine on two sites."""
    document = {
        "name": "farm",
        "promises": {"latency": "50ms", "memory": "8MiB"},
        "daemons": daemons(),
        "streams": {"readings": dict(READINGS)},
        "operators": {
            "producing": {"type": "filter", "input": "readings", "where": "kw > 0"},
            "mean": dict(MEAN),
        },
        "links": {"by-turbine": {"from": "producing", "to": "mean", "by": ["turbine"]}},
        "sinks": {"means": {"type": "pages", "input": "mean", "page": "4KiB"}},
    }
    return document | changes


def lonely(**changes):
    """A graph without links: a stage on each of two daemons."""
    stream = {**READINGS, "place": ["gate", "site-a"]}
    sinks = {"all": {"type": "pages", "input": "readings", "page": "4KiB"}}
    document = {
        "name": "lonely",
        "promises": {"latency": "50ms", "memory": "8MiB"},
        "daemons": daemons(("gate", "site-a")),
        "streams": {"readings": stream},
        "sinks": sinks,
    }
    return document | changes


class GraphDaemon(ChildProcess):
    """`edged run` without a job, which may be asked for any."""

    def __init__(self, path, words=()):
        self.path, self.store = path, path / "store"
        self.door = self.store / "door"
        config = path / "daemon.toml"
        config.write_text(f'[run]\nremote_connect = ["127.0.0.1:*"]\nfiles = "{path}"\n')
        command = ["edged", "run", "--config", str(config), "--store", str(self.store), "--json"]
        command += ["--workers", "1", "--device", path.name, *words]
        super().__init__("daemon", command, path)

    def __enter__(self):
        self.ready(300)
        return self

    def __exit__(self, *_):
        self.stop()


@contextmanager
def fleet(path, names):
    """Daemons and APIs of these names: {name: (daemon, api)}."""
    with ExitStack() as stack:
        started = {}
        for name in names:
            (path / name).mkdir()
            daemon = GraphDaemon(path / name)
            started[name] = daemon, Api(path / name, daemon.door)
        for daemon, api in started.values():
            stack.enter_context(daemon)
            stack.enter_context(api)
        yield started


def at(document, running):
    """The document with the addresses of running daemons."""
    named = {
        name: {**table, "api": str(running[name][1].socket)}
        for name, table in document["daemons"].items()
    }
    return {**document, "daemons": named}


def written(path, document):
    """The document as a file."""
    file = path / f"{document['name']}.json"
    file.write_text(json.dumps(document))
    return file
