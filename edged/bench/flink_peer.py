"""Flink as a peer of benchmarks, in an environment of its own, which needs Java.

The environment holds PyPI's package at PACKAGE and is made at the first use.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from edged.bench.equipment_slices import RunSample
from edged.errors import EdgedError

PACKAGE = "apache-flink==2.3.0"
LIMIT_S, EVERY_S = 240, 0.1
"""For a run, and between two samples of it."""
_RUN = """
import json, sys
from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

given = json.load(open(sys.argv[1]))
settings = Configuration()
for key, value in given["settings"].items():
    settings.set_string(key, value)
made = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
env = TableEnvironment.create(made)
for statement in given["tables"]:
    env.execute_sql(statement)
together = env.create_statement_set()
for statement in given["inserts"]:
    together.add_insert_sql(statement)
running = together.execute()
print("begun", flush=True)
running.wait()
print("ended", flush=True)
sys.stdin.read()
"""


def flink_python(say: Any) -> Path:
    """The environment's Python.  Raises EdgedError where the package cannot be installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edged" / "flink"
    python = cache / "bin" / "python"
    if not (cache / "ready").exists():
        say(f"installing {PACKAGE} into {cache}")
        for words in ([sys.executable, "-m", "venv", str(cache)],
                      [str(python), "-m", "pip", "install", "-q", PACKAGE]):  # fmt: skip
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                raise EdgedError(f"flink: {(done.stderr or done.stdout).strip()[-200:]}")
        (cache / "ready").touch()
    return python


def run_flink(python: Path, directory: Path) -> dict[str, float]:
    """Run the settings, tables and inserts of `flink.json`, from submission to end: `took_s`,
    `cpu_s`, and `rss` in bytes.  Raises EdgedError where it fails or takes too long."""
    with (directory / "flink.log").open("w") as log:
        process = subprocess.Popen(
            [str(python), "-c", _RUN, str(directory / "flink.json")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        limit = threading.Timer(LIMIT_S, _end, [process])
        limit.start()
        marks, rss = [], 0
        for line in process.stdout:
            if line.strip() in ("begun", "ended"):
                own = psutil.Process(process.pid)
                family = [own, *own.children(recursive=True)]
                marks.append((time.monotonic(), sum(map(_cpu_s, family))))
                rss = sum(map(_peak, family))
                if len(marks) == 2:
                    break
        limit.cancel()
        process.communicate()
    if len(marks) < 2:
        tail = (directory / "flink.log").read_text().strip().splitlines()
        reason = " ".join(tail[-3:])[-500:] or f"not at its end within {LIMIT_S} s"
        raise EdgedError(f"flink: {reason}")
    (begun, used), (ended, last) = marks
    return {"took_s": ended - begun, "cpu_s": last - used, "rss": rss}


class FlinkSession:
    """Flink's Python with `flink_session.py` over the file `flink.json` of a directory."""

    def __init__(self, python: Path, directory: Path, jvm_args: str) -> None:
        self._log = directory / "flink.log"
        script = Path(__file__).with_name("flink_session.py")
        environment = {**os.environ, "JVM_ARGS": jvm_args, "FLINK_LOG_DIR": str(directory)}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), "-I", str(script), str(directory / "flink.json")], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._event("planned")

    def run(self) -> list[RunSample]:
        """Run all jobs; samples from submission to end, whose `rows` are bytes that have been read.
        Raises EdgedError where a job fails or all take too long."""
        family = self._family()
        assert self._process.stdin is not None and self._process.stdout is not None
        samples = [_sample(family)]
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        while not select.select([self._process.stdout], [], [], EVERY_S)[0]:
            samples.append(_sample(family))
            if samples[-1].at_s > samples[0].at_s + LIMIT_S:
                raise EdgedError(f"flink: the jobs have not ended within {LIMIT_S} s")
        self._event("ended")
        return [*samples, _sample(family)]

    def stop(self) -> None:
        """End the processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            _end(self._process)
        self._process.communicate()

    def _family(self) -> list[psutil.Process]:
        own = psutil.Process(self._process.pid)
        return [own, *own.children(recursive=True)]

    def _event(self, name: str) -> None:
        """Wait for an event.  Raises EdgedError for another, or none within LIMIT_S."""
        assert self._process.stdout is not None
        limit = threading.Timer(LIMIT_S, _end, [self._process])
        limit.start()
        line = next((line for line in self._process.stdout if line.startswith("{")), "{}")
        limit.cancel()
        if name not in (event := json.loads(line)):
            tail = self._log.read_text().strip().splitlines()[-3:]
            reason = event.get("error") or " ".join(tail)[-500:]
            self.stop()
            raise EdgedError(f"flink: {reason or f'not at its end within {LIMIT_S} s'}")


def _end(process: subprocess.Popen[str]) -> None:
    own = psutil.Process(process.pid)
    for one in [*own.children(recursive=True), own]:
        one.kill()


def _sample(family: list[psutil.Process]) -> RunSample:
    rss = sum(process.memory_info().rss for process in family)
    read = sum(process.io_counters().read_chars for process in family)
    return RunSample(time.monotonic(), read, sum(map(_cpu_s, family)), rss)


def _cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process so far, those of threads that have ended included."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak(process: psutil.Process) -> int:
    """The most memory that a process has had, in bytes."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(text.partition("VmHWM:")[2].split()[0])
