"""`edged bench idle`: the cost of the daemon at 1 000 tuples/s that arrive in 20 sends a second.

Counters cover all threads of the daemon's process and come from /proc: CPU time (schedstat,
nanoseconds), voluntary and involuntary context switches, resident memory. Cycles come from `perf
stat` where the machine has a cycle counter. The latency tolerance is 1 s, so the daemon should
wake about once a second.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from edged.bench.load import Load
from edged.bench.rig import cpu_s, join_job, machine, rig

TUPLES_PER_S = 1000
SENDS_PER_S = 20


@dataclass(frozen=True)
class Count:
    """Counters of a process at one moment."""

    at_s: float
    cpu_s: float
    switches: int
    beats: int
    wakes: int


def measure(seconds: float, warm_s: float, say: Any) -> dict[str, Any]:
    """Run the almost idle daemon and return its counters."""
    with rig() as bench:
        bench.start(join_job(bench.address, 10_000_000, "1s"))
        load = Load(
            bench.address, 1, TUPLES_PER_S // SENDS_PER_S // 2, 10**6, mode="rate",
            seconds=seconds + warm_s + 3, rate=TUPLES_PER_S / 2, tick_s=1 / SENDS_PER_S,
        )  # fmt: skip
        bench.load(load)
        pid = bench.parts["daemon"].process.pid
        process = psutil.Process(pid)
        say("warming up")
        time.sleep(warm_s)
        first = _count(bench, process)
        say(f"measuring for {seconds:.0f} s")
        cycles = _cycles(pid, seconds)
        last = _count(bench, process)
        span = last.at_s - first.at_s
        return {
            "machine": machine(),
            "seconds": round(span, 2),
            "tuples_per_s": TUPLES_PER_S,
            "cpu_percent": round(100 * (last.cpu_s - first.cpu_s) / span, 3),
            "context_switches_per_s": round((last.switches - first.switches) / span, 2),
            "rss_mb": round(process.memory_info().rss / 1e6, 1),
            "beats_per_s": round((last.beats - first.beats) / span, 2),
            "wakes_per_s": round((last.wakes - first.wakes) / span, 2),
            "cycles_per_s": cycles,
        }


def _count(bench: Any, process: psutil.Process) -> Count:
    status = bench.sample().status
    switches = 0
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        text = (task / "status").read_text()
        switches += sum(int(n) for n in re.findall(r"ctxt_switches:\s+(\d+)", text))
    return Count(time.monotonic(), cpu_s(process), switches, status["beat"], status["wakes"])


def _cycles(pid: int, seconds: float) -> int | None:
    """Cycles per second of the process, measured over `seconds`. Without a cycle counter the
    function waits as long and returns None."""
    deadline = time.monotonic() + seconds
    found = None
    if shutil.which("perf"):
        command = ["perf", "stat", "-x,", "-e", "cycles", "-p", str(pid), "--", "sleep"]
        done = subprocess.run([*command, str(seconds)], capture_output=True, text=True)
        with contextlib.suppress(ValueError, IndexError):
            found = round(int(done.stderr.strip().splitlines()[-1].split(",")[0]) / seconds)
    time.sleep(max(0.0, deadline - time.monotonic()))
    return found


@click.command(name="idle")
@click.option("--seconds", default=30.0, show_default=True, help="Measured seconds.")
@click.option("--warm", default=5.0, show_default=True, help="Seconds of warm-up before it.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
def command(seconds: float, warm: float, path: Path | None) -> None:
    """CPU time, wakeups and memory of an almost idle daemon."""
    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    console = figures_console()
    compile_kernels(quiet=False)
    result = measure(seconds, warm, console.print)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    aims = {"cpu_percent": "< 0.5", "context_switches_per_s": "< 10", "rss_mb": "< 180"}
    for key, value in result.items():
        if key != "machine":
            aim = f"   (aim {aims[key]})" if key in aims else ""
            console.print(f"{key:>24}  {value}{aim}")
