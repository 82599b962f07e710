"""The processes of a benchmark on loopback (collector, daemon, load), and their cost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from edged.bench.load import Load, write_config
from edged.control.door import ask
from edged.platform.processes import ChildProcess, free_port


def join_job(address: str, bound_us: int, latency: str, memory: str = "1GiB") -> dict[str, Any]:
    """The job of the benchmark: r ⋈ s on key with |s.ts − r.ts| <= bound, shipped in pages."""
    columns = {"key": "int32", "value": "float32", "ts": "timestamp"}
    stream = {
        "source": {"type": "tcp", "listen": address},
        "columns": columns,
        "time": "ts",
        "idle_after": "60s",
    }
    return {
        "name": "bench",
        "promises": {"latency": latency, "memory": memory, "durability": "exactly_once"},
        "streams": {"r": dict(stream), "s": dict(stream)},
        "operators": {
            "j": {
                "type": "interval_join",
                "left": "r",
                "right": "s",
                "on": ["key"],
                "before": bound_us,
                "after": bound_us,
                "columns": {
                    "key": "left.key",
                    "r_value": "left.value",
                    "r_ts": "left.ts",
                    "s_value": "right.value",
                    "s_ts": "right.ts",
                },
            }
        },
        "sinks": {
            "out": {
                "type": "pages",
                "input": "j",
                "stream": "matches",
                "partitions": 4,
                "partition_by": ["key"],
            }
        },
    }


@dataclass(frozen=True)
class Sample:
    """Rows and CPU time of the processes at one moment."""

    at_s: float
    rows: int
    cpu_s: dict[str, float]
    """CPU seconds so far by part: daemon, uplink, collector, load."""
    status: dict[str, Any]


class Rig:
    """A directory with a collector and a daemon; `load` adds a load generator."""

    def __init__(self, directory: Path, niceness: int = 0) -> None:
        self.directory = directory
        self.niceness = niceness if _may_have(niceness) else 0
        """That of the daemon and the load generator."""
        self.landing = directory / "landing"
        self.trace = directory / "trace.jsonl"
        self.address = f"127.0.0.1:{free_port()}"
        self.parts: dict[str, ChildProcess] = {}
        (directory / "logs").mkdir()

    def start(
        self,
        job: dict[str, Any],
        uplink: bool = True,
        extra: Sequence[str] = (),
        trace: bool = True,
    ) -> None:
        """Start the collector, unless `uplink` is false, and the daemon."""
        path = self.directory / "job.json"
        path.write_text(json.dumps(job))
        arguments = ["run", str(path), "--store", str(self.directory / "store"),
                     "--device", "bench", "--door", str(self.directory / "door"),
                     "--json", *extra]  # fmt: skip
        if trace:
            arguments += ["--trace", str(self.trace)]
        if uplink:
            self._add("collector", "central", "collect", "--landing", str(self.landing),
                      "--listen", "127.0.0.1:0", "--json")  # fmt: skip
            listen = self.parts["collector"].ready()["listen"]
            arguments += ["--uplink", f"http://{listen}"]
        with _priority(self.niceness):
            self._add("daemon", *arguments)
        self._weigh("daemon")
        self.parts["daemon"].ready()

    def load(self, load: Load) -> ChildProcess:
        """Start the load generator and wait until it is connected."""
        config = self.directory / "load.json"
        write_config(load, config)
        with _priority(self.niceness):
            part = ChildProcess("load", ["edged.bench.load", str(config)], self.directory / "logs")
        self.parts["load"] = part
        self._weigh("load")
        part.ready()
        return part

    def sample(self) -> Sample:
        """Rows and CPU time so far."""
        status = ask(self.directory / "door", "status")
        rows = sum(s["rows"] for s in status["jobs"]["bench"]["streams"].values())
        cpu: dict[str, float] = {}
        for name, part in self.parts.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(part.process.pid)
                cpu[name] = cpu_s(process)
                for child in process.children(recursive=True):
                    cpu[f"{name}'s uplink"] = cpu_s(child)
        return Sample(time.monotonic(), rows, cpu, status)

    def drained(self) -> bool:
        """Whether the job has ended and every page is acknowledged."""
        status = ask(self.directory / "door", "status")
        job = status["jobs"]["bench"]
        return bool(job["ended"] and status["store"]["backlog_pages"] == 0)

    def stop(self) -> None:
        """Stop all processes."""
        for part in reversed(self.parts.values()):
            part.stop()

    def _add(self, name: str, *arguments: str) -> None:
        self.parts[name] = ChildProcess(name, ["edged", *arguments], self.directory / "logs")

    def _weigh(self, name: str) -> None:
        """Give the session of a process its weight where the kernel schedules by session, which
        leaves niceness without effect beyond it."""
        if self.niceness:
            group = Path(f"/proc/{self.parts[name].process.pid}/autogroup")
            with contextlib.suppress(OSError):
                group.write_text(str(self.niceness))


@contextlib.contextmanager
def rig(keep: Path | None = None, niceness: int = 0) -> Iterator[Rig]:
    """A rig in a fresh directory, with a niceness for daemon and load where that is permitted.

    The directory is removed at the end. With `keep` it is created there and stays.
    """
    parent = None if keep is None else str(keep)
    directory = Path(
        tempfile.mkdtemp(prefix="edged-bench-", dir=parent or os.environ.get("TMPDIR"))
    )
    made = Rig(directory, niceness)
    try:
        yield made
    finally:
        made.stop()
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _priority(niceness: int) -> Iterator[None]:
    """Processes that are started within have this niceness."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    if niceness:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, own)


def _may_have(niceness: int) -> bool:
    """Whether this process may have it, and go back."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        os.setpriority(os.PRIO_PROCESS, 0, own)
    except PermissionError:
        return False
    return True


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process so far, in nanosecond resolution where the kernel provides it."""
    total = 0
    with contextlib.suppress(OSError, IndexError, ValueError):
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9
    times = process.cpu_times()
    return float(times.user + times.system)


def machine() -> dict[str, Any]:
    """Description of the machine that the figures were measured on."""
    model = ""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": ".".join(map(str, sys.version_info[:3])),
    }
