"""`edged bench start`: the time until a daemon is ready, its memory when idle, its kernels' speed.

ready_s_warm      from the start of the process to `ready`; median of --rounds starts
ready_s_first     the same with a new directory for the code of expressions, as after an
                  installation that has compiled the kernels; the page cache is warm
rss_mb_idle       resident memory of the daemon's process, SETTLE_S after that (MiB)
pss_mb_idle       proportional memory of all of its processes (MiB)
cpu_s_ready       CPU seconds of the daemon's process until then, warm
kernel_ratio_min  the least ratio of CPU times of numba's kernels to those of the library
                  (`kernels.ahead`), by turns in one process (`start_kernels`); `kernels` has each
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil

import edged
from edged.bench.rig import machine
from edged.platform.processes import ChildProcess, free_port

JOB = Path(edged.__file__).parents[1] / "examples" / "power_curve.toml"
LISTEN = "127.0.0.1:7400"
"""The address in the job, which is replaced by a free one."""
SETTLE_S = 3.0
_MIB = 2**20


@contextlib.contextmanager
def started(directory: Path, job: Path, **environment: str) -> Iterator[tuple[float, int]]:
    """A daemon in a directory; gives the seconds until it is ready, and its process number."""
    text = job.read_text().replace(LISTEN, f"127.0.0.1:{free_port()}")
    (directory / "job.toml").write_text(text)
    (directory / "logs").mkdir(exist_ok=True)
    arguments = ["edged", "run", str(directory / "job.toml"), "--json",
                 "--store", str(directory / "store")]  # fmt: skip
    with _environment(environment):
        began = time.monotonic()
        daemon = ChildProcess("daemon", arguments, directory / "logs")
    try:
        daemon.ready()
        yield time.monotonic() - began, daemon.process.pid
    finally:
        daemon.stop()


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation has it
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def memory(pid: int) -> tuple[float, float]:
    """Resident memory of a process, and proportional memory of it and its children (MiB)."""
    process = psutil.Process(pid)
    own = process.memory_full_info()
    shares = [own, *(p.memory_full_info() for p in process.children(recursive=True))]
    return round(own.rss / _MIB, 1), round(sum(s.pss for s in shares) / _MIB, 1)


def kernel_ratios(rounds: int) -> dict[str, float]:
    """By kernel, the CPU time of numba's form over that of the library's: the median of `rounds`
    processes, which have their memory at different places."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        command = [sys.executable, "-m", "edged.bench.start_kernels"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for name, value in json.loads(done.stdout).items():
            found.setdefault(name, []).append(value)
    return {name: round(median(values), 3) for name, values in found.items()}


def measure(job: Path, rounds: int, kernel_rounds: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="edged-bench-") as name:
        directory = Path(name)
        (directory / "cache").mkdir(mode=0o700)
        cache = str(directory / "cache")
        with started(directory, job):
            pass  # writes the modules' bytecode
        with started(directory, job, EDGED_CACHE=cache) as (first, _):
            pass
        warm, spent, sizes = [], [], []
        for _ in range(rounds):
            with started(directory, job, EDGED_CACHE=cache) as (ready, pid):
                warm.append(ready)
                spent.append(sum(psutil.Process(pid).cpu_times()[:2]))
                time.sleep(SETTLE_S)
                sizes.append(memory(pid))
    ratios = kernel_ratios(kernel_rounds) if kernel_rounds else {}
    return {
        "ready_s_warm": round(median(warm), 2),
        "ready_s_first": round(first, 2),
        "cpu_s_ready": round(median(spent), 2),
        "rss_mb_idle": median(rss for rss, _ in sizes),
        "pss_mb_idle": median(pss for _, pss in sizes),
        "kernel_ratio_min": min(ratios.values(), default=None),
        "kernels": ratios,
        "machine": machine(),
    }


@click.command(name="start")
@click.option("--job", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=JOB,
              help="The job.  [default: the power curve of the examples]")  # fmt: skip
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 99))
@click.option("--kernel-rounds", default=3, show_default=True, type=click.IntRange(0, 99),
              help="Rounds of the kernels; 0: none.")  # fmt: skip
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the figures there.")  # fmt: skip
def command(job: Path, rounds: int, kernel_rounds: int, path: Path | None) -> None:
    """Time until a daemon is ready, its memory when idle, and the speed of its kernels."""
    from edged.daemon.compilation import compile_kernels

    compile_kernels(quiet=False)
    figures = measure(job, rounds, kernel_rounds)
    for key, value in figures.items():
        if key not in ("machine", "kernels"):
            click.echo(f"{key:>18}  {value}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
