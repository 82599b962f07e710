"""Three daemons in a row on loopback, source → relay → sink, and what they take."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy.typing as npt
import psutil

from edged.bench.relay_load import PacketLoad, write_load
from edged.bench.relay_packets import STREAM, columns
from edged.bench.relay_tally import Tally
from edged.bench.rig import cpu_s
from edged.control.door import ask
from edged.job.durability import RESULTS, THROUGH, VOLATILE
from edged.platform.processes import ChildProcess, free_port

_IN_MEMORY = "/dev/shm"
PARTS = ("source", "relay", "sink")
SWITCHES = re.compile(r"^(voluntary|nonvoluntary)_ctxt_switches:\s+(\d+)", re.M)


@dataclass(frozen=True)
class Hops:
    """What the jobs of a chain promise and how their links buffer."""

    mode: str = "exactly_once"
    packet_bytes: int = 50
    buffer: int = 64 << 10
    relay_buffer: int | None = None
    """That of the relay's link, where it is another."""
    latency: str = "20ms"
    linger: str = "10ms"
    high: int = 1 << 20
    """Bytes in flight of each link; it takes rows again at this divided by `low_part`."""
    low_part: int = 4
    memory: str = "256MiB"
    compress: str = "never"
    snapshot_bytes: int = 128 << 20
    """Log between two snapshots: files of the log are in use again after two of them."""
    fresh: bool = False
    """Whether the daemons allocate memory of columns for each beat."""
    single: bool = False
    """Whether each message is a beat of its own at the relay."""


@dataclass(frozen=True)
class ChainSample:
    """Counts of a chain at one moment."""

    at_s: float
    rows: int
    latencies: npt.NDArray[Any]
    cpu_s: dict[str, float]
    wire_bytes: int
    """Sent by the relay."""
    voluntary: int
    involuntary: int
    """Context switches of the relay, its sending process included."""
    faults: int
    """Page faults of the relay."""
    gc_ns: int
    rss: dict[str, int]


def packet_stream(address: str, packet_bytes: int) -> dict[str, Any]:
    """A stream that takes packets at an address."""
    return {
        "source": {"type": "tcp", "listen": address}, "columns": columns(packet_bytes),
        "time": "ts", "idle_after": "60s",
    }  # fmt: skip


def edge_sink(
    hops: Hops, input: str, stream: str, to: Sequence[str], buffer: int
) -> dict[str, Any]:
    """A link of these settings."""
    return {
        "type": "edge", "input": input, "stream": stream, "to": list(to), "buffer": buffer,
        "linger": hops.linger, "high": max(hops.high, buffer), "compress": hops.compress,
        "low": max(hops.high, buffer) // hops.low_part,
    }  # fmt: skip


class Chain:
    """The daemons, in a directory."""

    def __init__(self, directory: Path, hops: Hops) -> None:
        self.directory, self.hops = directory, hops
        self.parts: dict[str, ChildProcess] = {}
        self.tallies = {name: Tally.create(directory / f"{name}.tally") for name in PARTS}
        self.address = {name: f"127.0.0.1:{free_port()}" for name in PARTS}
        (directory / "logs").mkdir()

    @property
    def seen(self) -> Tally:
        """The tally of the sink."""
        return self.tallies["sink"]

    def job(self, name: str) -> dict[str, Any]:
        """The job of a part."""
        hops = self.hops
        if name == "sink":
            out = {"type": "packet_tally", "input": STREAM,
                   "file": str(self.directory / "sink.tally")}  # fmt: skip
        else:
            to = self.target(PARTS[PARTS.index(name) + 1])
            own = hops.relay_buffer if name == "relay" else None
            out = edge_sink(hops, STREAM, STREAM, [to], hops.buffer if own is None else own)
        return {
            "name": name,
            "promises": {
                "latency": hops.latency,
                "memory": hops.memory,
                "durability": self.durability(name),
            },
            "streams": {STREAM: packet_stream(self.address[name], hops.packet_bytes)},
            "sinks": {"out": out},
        }

    def durability(self, name: str) -> str:
        """That of a part's job.  A hop without a log takes links only and has a log behind it."""
        ends = {"source": VOLATILE, "sink": RESULTS}
        return ends.get(name, THROUGH) if self.hops.mode == THROUGH else self.hops.mode

    def options(self, name: str) -> list[str]:
        """Options of a part's process beside those of a daemon."""
        found = ["--fresh"] if self.hops.fresh else []
        return found + (["--single"] if self.hops.single and name == "relay" else [])

    def target(self, name: str) -> str:
        """The address at which a part is reached; a shaper may stand between."""
        return self.address[name]

    def jobs(self, name: str) -> list[dict[str, Any]]:
        """The jobs of a part."""
        return [self.job(name)]

    def start(self) -> None:
        """Start all."""
        for name in reversed(PARTS):
            self._start_one(name)
        for part in self.parts.values():
            part.ready()

    def _start_one(self, name: str) -> None:
        paths = []
        for document in self.jobs(name):
            path = self.directory / f"{name}-{document['name']}.json"
            path.write_text(json.dumps(document))
            paths.append(str(path))
        home = self.directory / name
        home.mkdir()
        words = ["edged.bench.relay_daemon", str(self.directory / f"{name}.tally"),
                 *self.options(name), "run", *paths,
                 "--store", str(home / "store"), "--door", str(home / "door"), "--device", name,
                 "--json", "--workers", "1", "--trace", str(home / "trace.jsonl"),
                 "--snapshot-bytes", str(self.hops.snapshot_bytes)]  # fmt: skip
        self.parts[name] = ChildProcess(name, words, self.directory / "logs")

    def load(self, load: PacketLoad, name: str = "load") -> ChildProcess:
        """Start a load, connected."""
        path = self.directory / f"{name}.json"
        write_load(load, path)
        part = ChildProcess(name, ["edged.bench.relay_load", str(path)], self.directory / "logs")
        self.parts[name] = part
        part.ready()
        return part

    def status(self, name: str) -> dict[str, Any]:
        """The status of a daemon."""
        found: dict[str, Any] = ask(self.directory / name / "door", "status")
        return found

    def sample(self) -> ChainSample:
        """Counts now."""
        sinks = self.status("relay")["jobs"]["relay"]["sinks"]
        wire = sum(link["bytes"] for link in sinks["out"].get("links", []))
        cpu, rss = {}, {}
        relay = (0, 0, 0)
        for name, part in self.parts.items():
            own = family(part)
            cpu[name] = sum(cpu_s(process) for process in own)
            rss[name] = sum(process.memory_info().rss for process in own)
            if name == "relay":
                relay = switches_and_faults(own)
        voluntary, involuntary, faults = relay
        return ChainSample(
            time.monotonic(), self.seen.rows, self.seen.latencies(), cpu, wire, voluntary,
            involuntary, faults, self.tallies["relay"].gc_ns, rss,
        )  # fmt: skip

    def drain(self, rows: int, timeout_s: float = 120.0) -> bool:
        """Wait until the sink has so many packets; whether it has."""
        deadline = time.monotonic() + timeout_s
        while self.seen.rows < rows and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.seen.rows >= rows

    def check(self) -> None:
        """Raise ChildProcessFailed where a process has failed."""
        for part in self.parts.values():
            part.check()

    def stop(self) -> None:
        """End all processes."""
        for part in reversed(self.parts.values()):
            part.stop()


_Chain = TypeVar("_Chain", bound=Chain)


def family(part: ChildProcess) -> list[psutil.Process]:
    """A process and its children."""
    try:
        process = psutil.Process(part.process.pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def switches_and_faults(processes: Sequence[psutil.Process]) -> tuple[int, int, int]:
    """Voluntary and involuntary context switches of all threads, and page faults."""
    counts = {"voluntary": 0, "nonvoluntary": 0}
    faults = 0
    for process in processes:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                for kind, count in SWITCHES.findall((task / "status").read_text()):
                    counts[kind] += int(count)
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            faults += int(fields[7]) + int(fields[9])
    return counts["voluntary"], counts["nonvoluntary"], faults


@contextlib.contextmanager
def bench_directory(in_memory: bool = False) -> Iterator[Path]:
    """A fresh directory, removed at the end; with `in_memory` its files lie in memory where Linux
    has such a file system with 1 GiB free, so that a run does not measure the disk."""
    parent = os.environ.get("TMPDIR")
    with contextlib.suppress(OSError):
        if in_memory and shutil.disk_usage(_IN_MEMORY).free > 1 << 30:
            parent = _IN_MEMORY
    path = Path(tempfile.mkdtemp(prefix="edged-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def chain(hops: Hops, make: Callable[[Path, Hops], _Chain]) -> Iterator[_Chain]:
    """A chain of three in a fresh directory, started."""
    with bench_directory() as directory:
        made = make(directory, hops)
        try:
            made.start()
            yield made
        finally:
            made.stop()
