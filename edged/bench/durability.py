"""`edged bench durability`: what each durability costs, beside RocksDB committing the same bytes.

A row is one durability and one batch (rows a message), at full speed over one connection a stream:
throughput, latency from arrival to durable, bytes written to the disk for each byte of the tuples
(16 a tuple), and recovery: the daemon is killed with SIGKILL, and the log that it replays is
divided by what its start takes longer than a start on an empty store.

`wear` is an open loop at fixed rates: bytes written in a day, and how long an eMMC endures that.

Bytes written are `write_bytes` of /proc/PID/io: pages of the page cache that the process made
dirty.  What a flash controller adds is not seen.  The store must lie on a disk; on a tmpfs the
count is 0.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import click
import psutil

from edged.bench.durability_peer import TUPLE_BYTES, measure_rocksdb
from edged.bench.load import Load
from edged.bench.rig import Rig, join_job, machine, rig
from edged.errors import EdgedError
from edged.job.durability import LOGGED

MESSAGE_ROWS = (1_000, 10_000, 100_000)
RATES = (1_000, 10_000, 100_000)
"""Tuples/s of both streams together of the rows of `wear`."""
WINDOW, MATCH_RATE, PER_US = 100_000, 0.01, 5
WARM_S = 2.0
EMMC_BYTES, EMMC_CYCLES = 16 << 30, 3_000
"""An eMMC as a Jetson Nano module has one, and the erase cycles that makers of MLC flash name."""
REPLAY_BYTES_MIN = 8 << 20
"""Recovery of a smaller log is not told from the noise of a start."""


def measure(durability: str, batch: int, seconds: float) -> dict[str, Any]:
    """One row of edged.  Raises EdgedError where the store lies in memory."""
    with rig() as bench:
        empty_s = _start(bench, durability, "250ms")
        load = Load(bench.address, 1, batch, int(WINDOW / MATCH_RATE), tuples_per_us=PER_US,
                    seconds=seconds + 60)  # fmt: skip
        bench.load(load)
        first = _counters_after(bench, WARM_S, 0)
        last = _counters_after(bench, seconds, first["rows"])
        status = last["status"]
        rows = last["rows"] - first["rows"]
        written = last["written"] - first["written"]
        if durability == "exactly_once" and not written:
            raise EdgedError(f"{bench.directory} lies in memory; set TMPDIR to a disk's directory")
        return {
            "engine": "edged",
            "durability": durability,
            "batch": batch,
            "tuples_per_s": round(rows / (last["at_s"] - first["at_s"])),
            "ms_p50": status["latency_ms_p50"],
            "ms_p99": status["latency_ms_p99"],
            "bytes_written_per_input_byte": round(written / (TUPLE_BYTES * rows), 3),
            **_recovery(bench, status["store"]["log_bytes_since_snapshot"], empty_s),
        }


def _start(bench: Rig, durability: str, latency: str) -> float:
    """Start the daemon on an empty store; returns how long it takes (s).

    The second start counts: the first may still compile."""
    job = join_job(bench.address, WINDOW // PER_US, latency)
    job["promises"]["durability"] = durability
    bench.start(job, uplink=False)
    bench.parts["daemon"].stop()
    return _restart(bench)


def _restart(bench: Rig) -> float:
    started = time.monotonic()
    bench.parts["daemon"].restart()
    bench.parts["daemon"].ready()
    return time.monotonic() - started


def _recovery(bench: Rig, log_bytes: int, empty_s: float) -> dict[str, Any]:
    """Kill the daemon under load and start it again: MB of log a second; null where the log is too
    short."""
    bench.parts["daemon"].kill()
    bench.parts["load"].kill()
    took_s = _restart(bench)
    long_enough = log_bytes >= REPLAY_BYTES_MIN and took_s > empty_s
    speed = round(log_bytes / 1e6 / (took_s - empty_s), 1) if long_enough else None
    return {"recovery_mb_per_s": speed, "recovered_mb": round(log_bytes / 1e6, 1)}


def _counters_after(bench: Rig, seconds: float, rows: int) -> dict[str, Any]:
    """Counters after `seconds`, or later, when the daemon has processed more than `rows`."""
    time.sleep(seconds)
    deadline = time.monotonic() + 120
    while (sample := bench.sample()).rows <= rows:
        if time.monotonic() > deadline:
            raise EdgedError(f"the daemon processes nothing; see {bench.directory}/logs")
        time.sleep(0.05)
    written = psutil.Process(bench.parts["daemon"].process.pid).io_counters().write_bytes
    return {"at_s": sample.at_s, "rows": sample.rows, "status": sample.status, "written": written}


def wear(rate: int, seconds: float) -> dict[str, Any]:
    """Bytes written in a day with `exactly_once` and a latency promise of 1 s, at `rate`
    tuples/s."""
    with rig() as bench:
        _start(bench, "exactly_once", "1s")
        load = Load(bench.address, 1, max(1, rate // 40), 10**6, mode="rate",
                    seconds=seconds + WARM_S + 2, rate=rate / 2, tick_s=0.05)  # fmt: skip
        bench.load(load)
        first = _counters_after(bench, WARM_S, 0)
        last = _counters_after(bench, seconds, first["rows"])
    span, written = last["at_s"] - first["at_s"], last["written"] - first["written"]
    rows, a_day = last["rows"] - first["rows"], written / span * 86_400
    return {
        "tuples_per_s": round(rows / span),
        "gb_a_day": round(a_day / 1e9, 2),
        "bytes_written_per_input_byte": round(written / (TUPLE_BYTES * rows), 2),
        "emmc_years": round(EMMC_BYTES * EMMC_CYCLES / a_day / 365, 1) if a_day else None,
    }


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Speed of `exactly_once` over that of `none`, by batch."""
    speed = {(r["durability"], r["batch"]): r["tuples_per_s"] for r in rows if _is_own(r)}
    return {
        str(batch): round(speed["exactly_once", batch] / speed["none", batch], 3)
        for durability, batch in speed
        if durability == "none" and ("exactly_once", batch) in speed
    }


def _is_own(row: dict[str, Any]) -> bool:
    return bool(row["engine"] == "edged")


@click.command(name="durability")
@click.option("--seconds", default=5.0, show_default=True, help="Measured seconds of each row.")
@click.option("--batch", "batches", multiple=True, type=click.IntRange(1), help="Rows a message.")
@click.option("--rate", "rates", multiple=True, type=click.IntRange(40), help="Tuples/s of `wear`.")
@click.option("--peer/--no-peer", default=True, show_default=True, help="Measure RocksDB as well.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(
    seconds: float,
    batches: tuple[int, ...],
    rates: tuple[int, ...],
    peer: bool,
    path: Path | None,
    plot: Path | None,
) -> None:
    """Throughput, latency, bytes written and recovery at each durability, beside RocksDB."""
    from edged.bench.durability_report import draw, show
    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    console = figures_console()
    compile_kernels(quiet=False)
    rows, batches, rates = [], batches or MESSAGE_ROWS, rates or RATES
    with console.status("starting") as line:
        for durability in LOGGED:
            for batch in batches:
                line.update(f"edged, {durability}, batches of {batch:,}")
                rows.append(measure(durability, batch, seconds))
        for durability in ("exactly_once", "none") if peer else ():
            for batch in batches:
                line.update(f"RocksDB, {durability}, batches of {batch:,}")
                rows.append(measure_rocksdb(durability, batch, seconds))
        worn = []
        for rate in rates:
            line.update(f"edged at {rate:,} tuples/s")
            worn.append(wear(rate, 2 * seconds))
    speeds = [r["recovery_mb_per_s"] for r in rows if _is_own(r) and r["recovery_mb_per_s"]]
    result = {
        "machine": machine(),
        "rows": rows,
        "wear": worn,
        "exactly_once_of_none": ratios(rows),
        "recovery_mb_per_s": statistics.median(speeds) if speeds else None,
    }
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    if plot is not None:
        draw(result, plot)
    show(console, result)
