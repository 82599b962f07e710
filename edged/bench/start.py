"""`edged bench start`: the time until a daemon is ready, and its memory when idle.

ready_s_warm      from the start of the process to `ready`; median of --rounds starts
ready_s_first     the same with a new directory for the code of expressions, as after an
                  installation that has compiled the kernels; the page cache is warm
rss_mb_idle       resident memory of the daemon's process, SETTLE_S after that (MiB)
pss_mb_idle       proportional memory of all of its processes (MiB)
kernel_ratio_min  null: all kernels are compiled by numba when they are first needed
"""

from __future__ import annotations

import contextlib
import json
import os
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


def measure(job: Path, rounds: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="edged-bench-") as name:
        directory = Path(name)
        (directory / "cache").mkdir(mode=0o700)
        cache = str(directory / "cache")
        with started(directory, job):
            pass  # writes the modules' bytecode
        with started(directory, job, EDGED_CACHE=cache) as (first, _):
            pass
        warm, sizes = [], []
        for _ in range(rounds):
            with started(directory, job, EDGED_CACHE=cache) as (ready, pid):
                warm.append(ready)
                time.sleep(SETTLE_S)
                sizes.append(memory(pid))
    return {
        "ready_s_warm": round(median(warm), 2),
        "ready_s_first": round(first, 2),
        "rss_mb_idle": median(rss for rss, _ in sizes),
        "pss_mb_idle": median(pss for _, pss in sizes),
        "kernel_ratio_min": None,
        "machine": machine(),
    }


@click.command(name="start")
@click.option("--job", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=JOB,
              help="The job.  [default: the power curve of the examples]")  # fmt: skip
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 99))
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the figures there.")  # fmt: skip
def command(job: Path, rounds: int, path: Path | None) -> None:
    """Time until a daemon is ready, and its memory when idle."""
    from edged.daemon.compilation import compile_kernels

    compile_kernels(quiet=False)
    figures = measure(job, rounds)
    for key, value in figures.items():
        if key != "machine":
            click.echo(f"{key:>18}  {value}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
