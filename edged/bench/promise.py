"""`edged bench promise`: how many beats miss a latency promise, by promise and load.

A row is one promise, one load (a part of the measured capacity) and a number of busy loops beside
the daemon, in an open loop of the job of `edged bench e2e` with `exactly_once`. A beat is late
where its results were durable later than promised after its oldest row's arrival. A row is measured
once the log reuses its files, or after SETTLE_S_MAX: writing a file for the first time takes ten
times as long. What was late before is `warm_late_fraction`.

Beside busy loops, which run at the default priority, daemon and load generator run at that of the
service's unit (`Nice=`, `CPUWeight=`) where this process may set it; `niceness` says which it was.

`hiccup` stops the daemon with SIGSTOP for half a second and reports the time from SIGCONT to the
end of the last late beat. Capacity is the speed at the shortest promise with the load generator on
the same cores.

Joules are of a simulated Orin Nano whose processor is driven by this machine's: its idle power
included, so that a low load costs more a tuple. Times are this machine's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from edged.bench.load import Load
from edged.bench.rig import Rig, Sample, join_job, machine, rig
from edged.errors import EdgedError
from edged.platform.clock import boot_us

Say = Callable[[str], None]
OnRow = Callable[[dict[str, Any]], None]
BOARD = "simulated:orin-nano"
LOADS = (0.01, 0.25, 0.5, 0.9)
BUSY_LOADS = (0.25,)
"""Loads that are measured beside busy loops as well, at the shortest promise, unless the run is
full."""
BUSY_LOOPS = 2
WINDOW, MATCH_RATE = 100_000, 0.01
WARM_S, START_S = 2.0, 4.0
HICCUP_S = 0.5
SETTLED_BYTES, ROW_BYTES = 1 << 30, 16
"""Log that is written before its files are reused, and the bytes of a logged row."""
SETTLE_S_MAX = 10.0
NICENESS = -10
"""That of deploy/systemd/edged.service."""


@dataclass(frozen=True)
class Scope:
    """What a run measures: each promise (ms), with the beats and the seconds of its rows."""

    beats: dict[int, int]
    seconds_max: dict[int, float]
    loads: tuple[float, ...] = LOADS
    busy_loads: tuple[float, ...] = BUSY_LOADS
    busy_promises: tuple[int, ...] = (50,)
    capacity_s: float = 6.0
    hiccup_s: float = 4.0


AS_MANY_AS_FIT = 1 << 40
DEFAULT = Scope({50: 1000, 250: 300, 1000: AS_MANY_AS_FIT}, {50: 50.0, 250: 76.0, 1000: 8.0})
FULL = Scope(
    {50: 4000, 250: 1000, 1000: 300, 10_000: 30},
    {50: 200.0, 250: 250.0, 1000: 300.0, 10_000: 300.0},
    busy_loads=LOADS, busy_promises=(50, 250, 1000, 10_000), capacity_s=20.0, hiccup_s=20.0,
)  # fmt: skip
QUICK = Scope({50: 20}, {50: 1.0}, (0.01,), (), (), 1.0, 1.0)


def measure_capacity(promise_ms: int, seconds: float) -> int:
    """Tuples/s of both streams together at full speed, over `seconds`."""
    with _running(promise_ms, WINDOW // 5) as bench:
        load = Load(bench.address, 1, 8192, int(WINDOW / MATCH_RATE), seconds=seconds + 60)
        bench.load(load)
        time.sleep(WARM_S)
        first = bench.sample()
        time.sleep(seconds)
        last = _after(bench, first)
        return round((last.rows - first.rows) / (last.at_s - first.at_s))


def measure(
    promise_ms: int, load: float, tuples_per_s: float, busy_loops: int, beats: int, seconds: float
) -> dict[str, Any]:
    """A row: until `beats` beats are counted, for at most `seconds`."""
    rate = load * tuples_per_s
    settle_s = max(WARM_S, min(SETTLE_S_MAX, seconds / 2, SETTLED_BYTES / (rate * ROW_BYTES)))
    niceness = NICENESS if busy_loops else 0
    with (
        _loaded(promise_ms, rate, seconds + settle_s, niceness) as bench,
        _busy(busy_loops),
    ):
        time.sleep(WARM_S)
        begun = bench.sample()
        time.sleep(settle_s - WARM_S)
        first = last = _after(bench, begun)
        while _lasts(first, last, beats, seconds):
            time.sleep(min(1.0, seconds / 4))
            last = _after(bench, last)
        bench.stop()
        late_ms = [ms for _, ms in _latencies_ms(bench, first, last)]
        warm_ms = [ms for _, ms in _latencies_ms(bench, begun, first)]
    span, rows = last.at_s - first.at_s, last.rows - first.rows
    joules = _joules(last) - _joules(first)
    p50, p99 = np.percentile(late_ms, [50, 99]).round(3).tolist()
    return {
        "promise_ms": promise_ms,
        "load": load,
        "busy_loops": busy_loops,
        "beats": len(late_ms),
        "late_fraction": _late_fraction(late_ms, promise_ms),
        "warm_late_fraction": _late_fraction(warm_ms, promise_ms),
        "niceness": bench.niceness,
        "ms_p50": p50,
        "ms_p99": p99,
        "joules_per_mtuple": round(joules / rows * 1e6, 5),
        "tuples_per_s": round(rows / span),
        "beats_per_s": round(len(late_ms) / span, 2),
        "wakes_per_s": round((last.status["wakes"] - first.status["wakes"]) / span, 2),
        "backpressure_s": round(_stalled_s(last) - _stalled_s(first), 3),
        "saturated": last.status["saturated"],
    }


def measure_hiccup(promise_ms: int, tuples_per_s: float, seconds: float) -> dict[str, Any]:
    """Stop the daemon for HICCUP_S: the time until beats are in time again."""
    with _loaded(promise_ms, tuples_per_s, 2 * seconds) as bench:
        time.sleep(WARM_S + seconds / 2)
        first = bench.sample()
        process = bench.parts["daemon"].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(HICCUP_S)
        process.send_signal(signal.SIGCONT)
        resumed_us = boot_us()
        time.sleep(seconds)
        last = bench.sample()
        bench.stop()
        found = _latencies_ms(bench, first, last)
    late_us = [at_us - resumed_us for at_us, ms in found if ms > promise_ms]
    return {
        "promise_ms": promise_ms,
        "stopped_s": HICCUP_S,
        "late_beats": len(late_us),
        "back_within_s": round(max(0, *late_us, 0) / 1e6, 3),
    }


@contextlib.contextmanager
def _running(promise_ms: int, bound_us: int, niceness: int = 0) -> Iterator[Rig]:
    with rig(niceness=niceness) as bench:
        job = join_job(bench.address, bound_us, f"{promise_ms}ms")
        bench.start(job, uplink=False, extra=["--board", BOARD])
        yield bench


@contextlib.contextmanager
def _loaded(
    promise_ms: int, tuples_per_s: float, seconds: float, niceness: int = 0
) -> Iterator[Rig]:
    """A daemon with its load, which begins at half its rate."""
    rate = max(100.0, tuples_per_s / 2)
    with _running(promise_ms, int(WINDOW / rate * 1e6), niceness) as bench:
        bench.load(Load(
            bench.address, 1, max(1, min(8192, int(rate * 0.01))), int(WINDOW / MATCH_RATE),
            mode="rate", seconds=seconds + WARM_S + START_S + 60, rate=rate, warm_s=WARM_S / 2,
        ))  # fmt: skip
        yield bench


@contextlib.contextmanager
def _busy(loops: int) -> Iterator[None]:
    """Busy loops beside the daemon, at the default priority.  They end with this process, however
    it ends."""
    loop = "while os.getppid() == parent:\n    for _ in range(10**6): pass"
    command = [sys.executable, "-c", f"import os\nparent = {os.getpid()}\n{loop}"]
    running = [subprocess.Popen(command) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _after(bench: Rig, before: Sample) -> Sample:
    """A later sample with more rows.  Raises EdgedError where there is none in two minutes."""
    deadline = time.monotonic() + 120
    while (sample := bench.sample()).rows <= before.rows:
        if time.monotonic() > deadline:
            raise EdgedError("the daemon processes nothing")
        time.sleep(0.05)
    return sample


def _lasts(first: Sample, last: Sample, beats: int, seconds: float) -> bool:
    """Whether a row goes on: until its beats or its seconds are over, and the meter was read."""
    if _joules(last) == _joules(first):
        return True
    counted = last.status["beat"] - first.status["beat"]
    return last.at_s < first.at_s + seconds and counted < beats


def _late_fraction(late_ms: list[float], promise_ms: int) -> float:
    return round(sum(ms > promise_ms for ms in late_ms) / len(late_ms), 5)


def _joules(sample: Sample) -> float:
    return float(sample.status["energy"]["input"]["joules"])


def _stalled_s(sample: Sample) -> float:
    return float(sum(s["backpressure_us"] for s in sample.status["sources"])) / 1e6


def _latencies_ms(bench: Rig, first: Sample, last: Sample) -> list[tuple[int, float]]:
    """Of each beat with rows between two samples: when it was durable (monotonic µs), and its
    latency (ms).  The daemon has ended, so that its trace is whole."""
    span = first.status["beat"], last.status["beat"]
    rows = (json.loads(line) for line in bench.trace.read_text().splitlines())
    found = [
        (r["durable_us"], (r["durable_us"] - r["oldest_us"]) / 1000)
        for r in rows
        if span[0] < r["beat"] <= span[1] and r["rows_taken"]
    ]
    if not found:
        raise EdgedError("no beat took rows; measure for longer")
    return found


def plan(scope: Scope) -> list[tuple[int, float, int]]:
    """Promise (ms), load and busy loops of each row."""
    rows = [(ms, load, 0) for ms in scope.beats for load in scope.loads]
    busy = [ms for ms in scope.beats if ms in scope.busy_promises]
    return rows + [(ms, load, BUSY_LOOPS) for ms in busy for load in scope.busy_loads]


def run(scope: Scope, say: Say, on_row: OnRow = lambda _: None) -> dict[str, Any]:
    """All rows of a scope, the hiccup and the capacity.  `on_row` gets what is known after each
    row."""
    shortest = min(scope.beats)
    say(f"capacity at {shortest} ms")
    capacity = measure_capacity(shortest, scope.capacity_s)
    rows: list[dict[str, Any]] = []
    result = {
        "machine": machine(),
        "capacity_tuples_per_s": capacity,
        "rows": rows,
        "energy": {"board": BOARD, "provenance": "simulated"},
    }
    for ms, load, loops in plan(scope):
        say(f"{ms} ms at {load:.0%}" + (f" beside {loops} busy loops" if loops else ""))
        rows.append(
            measure(ms, load, capacity, loops, scope.beats[ms], scope.seconds_max[ms])
        )  # fmt: skip
        on_row(result)
    say("hiccup")
    hiccup = measure_hiccup(shortest, min(scope.loads) * capacity, scope.hiccup_s)
    return {**result, "hiccup": hiccup}


@click.command(name="promise")
@click.option("--full", is_flag=True, help="More beats, 10 s as well, busy loops at every load.")
@click.option("--quick", is_flag=True, help="One short row: whether the benchmark runs at all.")
@click.option(
    "--promise", "promises", multiple=True, type=click.Choice(["50", "250", "1000", "10000"]),
    help="Only rows of this promise (ms); may be repeated.",
)  # fmt: skip
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
def command(full: bool, quick: bool, promises: tuple[str, ...], path: Path | None) -> None:
    """Beats that miss their latency promise, by promise and load.

    Takes about 8 minutes; with --full two hours, with --quick seconds.  Joules are simulated.
    """
    from rich.progress import Progress

    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    if full and quick:
        raise click.UsageError("--full and --quick exclude each other")
    console = figures_console()
    compile_kernels(quiet=False)
    scope = _chosen(FULL if full else QUICK if quick else DEFAULT, [int(p) for p in promises])
    with Progress(console=console) as progress:
        task = progress.add_task("starting", total=len(plan(scope)))

        def on_row(found: dict[str, Any]) -> None:
            progress.advance(task)
            _write(path, found)

        result = run(scope, lambda text: progress.update(task, description=text), on_row)
    _write(path, result)
    _show(console, result)


def _write(path: Path | None, result: dict[str, Any]) -> None:
    """Write the figures so far; a run that is ended early leaves its rows."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def _chosen(scope: Scope, promises: list[int]) -> Scope:
    """The scope with these promises only; without any, the whole.  Raises click.UsageError."""
    from dataclasses import replace

    beats = {ms: n for ms, n in scope.beats.items() if ms in promises or not promises}
    if not beats:
        known = ", ".join(map(str, scope.beats))
        raise click.UsageError(f"this run has promises of {known} ms only")
    return replace(scope, beats=beats)


def _show(console: Any, result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title="Latency promises (joules: simulated Orin Nano)", title_justify="left")
    for heading in ("promise ms", "load", "busy loops", "beats", "late", "p50 ms", "p99 ms",
                    "J / M tuples"):  # fmt: skip
        table.add_column(heading, justify="right")
    for r in result["rows"]:
        table.add_row(
            str(r["promise_ms"]), f"{r['load']:.0%}", str(r["busy_loops"]), f"{r['beats']:,}",
            f"{r['late_fraction']:.2%}" + (", saturated" if r["saturated"] else ""),
            f"{r['ms_p50']:.1f}", f"{r['ms_p99']:.1f}", f"{r['joules_per_mtuple']:.3f}",
        )  # fmt: skip
    console.print(table)
    hiccup = result["hiccup"]
    console.print(
        f"  capacity {result['capacity_tuples_per_s'] / 1e6:.2f} M tuples/s; after a stop of "
        f"{hiccup['stopped_s']} s beats are in time again within {hiccup['back_within_s']} s"
    )
