"""Devices, a gateway and a centre, as daemons and a collector of their own."""

from __future__ import annotations

from tests.beat.support import Daemon, stream
from tests.links.chain import LATENCY

CARRIED = {
    "at": "timestamp", "device": "string", "session": "string", "token": "string",
    "page": "binary",
}  # fmt: skip


def forward_job(memory="64MiB", **options):
    """All pages of devices go on to the centre; options of the source."""
    taken = {"columns": CARRIED, "time": "at", "late": "process"}
    source = {"type": "pages", "listen": "", "forward": True, **options}
    return {
        "name": "onward", "streams": {"pages": {"source": source, **taken}},
        "sinks": {"centre": {"type": "forward", "input": "pages"}},
        "promises": {**LATENCY, "durability": "results", "memory": memory},
    }  # fmt: skip


def device_job(**options):
    """Rows of `r` leave as pages of two partitions."""
    sink = {"type": "pages", "input": "r", "page": "4KiB", "partitions": 2, "partition_by": ["key"]}
    return {
        "name": "copying", "streams": {"r": stream(**options)}, "sinks": {"rows": sink},
        "promises": dict(LATENCY),
    }  # fmt: skip


def decode_job(out):
    """Rows of the devices' stream `rows` are written to files below `out`."""
    source = {"type": "pages", "listen": "", "stream": "rows"}
    sink = {"type": "file", "input": "r", "path": str(out), "every": "10ms"}
    return {
        "name": "decoding", "streams": {"r": {**stream(late="process"), "source": source}},
        "sinks": {"out": sink}, "promises": dict(LATENCY),
    }  # fmt: skip


class Part(Daemon):
    """A daemon of the site in a directory of its own, with `name` as its device."""

    def __init__(self, path, name, document, *arguments):
        (path / name).mkdir()
        super().__init__(path / name, document, "--device", name, *arguments)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"
