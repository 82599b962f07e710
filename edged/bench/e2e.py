"""`edged bench e2e`: producers → daemon → collector over loopback sockets, `exactly_once`.

Two streams of (int32 key, float32 value, timestamp), 16 bytes a tuple, are joined over a window of
`--window` tuples a side, with about one match per hundred tuples. Throughput is measured once
both windows are full. CPU seconds cover all processes, load generator and collector included.
`exact` is true only if the order-free hash of all result rows in the landing equals the hash of
DuckDB's join of the same input.

Latency is measured in an open loop at fixed parts of the measured capacity. It runs from the time
at which a row is due to be sent until the page with its match is durable. The first 60 % of each
loop are not counted: windows fill, and log files are written for the first time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

from edged.bench.load import Load
from edged.bench.plots import draw_e2e
from edged.bench.rig import Rig, Sample, join_job, machine, rig
from edged.bench.verify import RowDigest, expected
from edged.central.segments import list_segments, read_pages, read_rows
from edged.data.schema import Schema
from edged.errors import EdgedError
from edged.pages.format import parse_header
from edged.pages.read import read_page

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    seconds: float
    window: int
    match_rate: float
    connections: int
    batch: int
    latency: str
    workers: int | None
    loads: tuple[float, ...]
    latency_seconds: float
    verify: bool = True
    keep: Path | None = None

    @property
    def load(self) -> Load:
        """The load at full speed."""
        per_us = 5
        keys = max(1, int(self.window / self.match_rate))
        return Load("", self.connections, self.batch, keys, seconds=self.seconds,
                    tuples_per_us=per_us)  # fmt: skip

    @property
    def extra(self) -> list[str]:
        """Extra arguments of the daemon."""
        return [] if self.workers is None else ["--workers", str(self.workers)]


def throughput(settings: Settings, say: Say) -> dict[str, Any]:
    """Throughput at full speed for `seconds` after both windows are full.

    With `verify`, every result row is compared with DuckDB's join. Raises EdgedError if the uplink
    does not drain within two minutes.
    """
    from dataclasses import replace

    bound_us = settings.window // settings.load.tuples_per_us
    with rig(settings.keep) as bench:
        bench.start(join_job(bench.address, bound_us, settings.latency), extra=settings.extra)
        load = replace(settings.load, address=bench.address, seconds=settings.seconds + 4)
        generator = bench.load(load)
        samples = _watch(bench, generator, say)
        sent = _sent(generator)
        _drain(bench, say)
        status = bench.sample().status
        first = next(s for s in samples if s.rows >= 2 * settings.window + samples[0].rows)
        last = samples[-2]
        result = _rates(first, last)
        say(f"{result['tuples_per_s'] / 1e6:.2f} M tuples/s, "
            f"{result['cpu_s_per_mtuple']:.4f} CPU-s per million")  # fmt: skip
        got = landed_digest(bench.landing)
        result |= {"rows_sent": 2 * sent, "matches": got.rows, "stages": _stages(status)}
        result["exact"] = settings.verify and _verify(load, sent, bound_us, got, say)
        return result


def _watch(bench: Rig, generator: Any, say: Say) -> list[Sample]:
    samples = [bench.sample()]
    while generator.running() and generator.events.empty():
        time.sleep(1.0)
        samples.append(bench.sample())
        rate = (samples[-1].rows - samples[-2].rows) / (samples[-1].at_s - samples[-2].at_s)
        say(f"{samples[-1].rows / 1e6:8.1f} M tuples   {rate / 1e6:6.2f} M tuples/s")
        for part in bench.parts.values():
            part.check()
    return samples


def _sent(generator: Any) -> int:
    event = generator.events.get(timeout=60)
    return int(event["sent"])


def _drain(bench: Rig, say: Say) -> None:
    say("waiting until every page is acknowledged")
    deadline = time.monotonic() + 120
    while not bench.drained():
        if time.monotonic() > deadline:
            raise EdgedError("the uplink did not drain within two minutes")
        time.sleep(0.1)


def _rates(first: Sample, last: Sample) -> dict[str, Any]:
    rows, seconds = last.rows - first.rows, last.at_s - first.at_s
    cpu = {k: last.cpu_s[k] - first.cpu_s.get(k, 0.0) for k in last.cpu_s}
    return {
        "tuples_per_s": round(rows / seconds),
        "seconds": round(seconds, 2),
        "tuples": rows,
        "cpu_s_per_mtuple": round(sum(cpu.values()) / rows * 1e6, 5),
        "cpu_s_per_mtuple_by_process": {k: round(v / rows * 1e6, 5) for k, v in cpu.items()},
    }


def _stages(status: dict[str, Any]) -> dict[str, float]:
    """Seconds by stage over the whole run; `race` is split by operator."""
    return {k: round(v / 1e6, 3) for k, v in status["stage_us"].items()}


def landed_tables(landing: Path) -> Any:
    """Yields (header, rows) of every page of matches. Pages of device reports are skipped."""
    schema = Schema.from_json((landing / "schemas/matches@1.json").read_text())
    for name in list_segments(landing):
        for page in read_pages(landing, name, read_rows(landing, name)):
            if (header := parse_header(page)).stream == "matches":
                yield header, read_page(page, schema)


def landed_digest(landing: Path) -> RowDigest:
    """The digest of all rows in the landing."""
    digest = RowDigest()
    for _, rows in landed_tables(landing):
        digest.add(rows)
    return digest


def _verify(load: Load, sent: int, bound_us: int, got: RowDigest, say: Say) -> bool:
    want = RowDigest()
    for i, digest in enumerate(expected(load, sent, bound_us)):
        want = digest
        if i % 10 == 0:
            say(f"DuckDB joins the same input: {want.rows:,} of {got.rows:,} matches")
    say(f"landed {got.rows:,} rows, DuckDB has {want.rows:,}; "
        f"hashes {'equal' if got.hash == want.hash else 'DIFFER'}")  # fmt: skip
    return got == want


def latency(settings: Settings, capacity: float, part: float, say: Say) -> dict[str, Any]:
    """Latency percentiles from due time to durable page, in an open loop at `part` of `capacity`.

    `capacity` is in tuples/s of both streams.
    """
    from dataclasses import replace

    rate = capacity * part / 2
    bound_us = int(settings.window / rate * 1e6)
    batch = max(1, min(settings.batch, int(rate * 0.01)))
    with rig() as bench:
        bench.start(join_job(bench.address, bound_us, settings.latency), extra=settings.extra)
        load = replace(settings.load, address=bench.address, mode="rate", rate=rate, batch=batch,
                       seconds=settings.latency_seconds,
                       warm_s=settings.latency_seconds * 0.4)  # fmt: skip
        generator = bench.load(load)
        started = time.time_ns() // 1000
        _sent(generator)
        _drain(bench, lambda _: None)
        bench.stop()
        values = _latencies_ms(bench, started + int(settings.latency_seconds * 0.6e6))
    p50, p99 = (round(float(np.percentile(values, q)), 2) for q in (50, 99))
    say(f"at {part:.0%} of capacity: p50 {p50} ms, p99 {p99} ms ({values.size:,} matches)")
    return {"load": part, "tuples_per_s": round(2 * rate), "latency_ms_p50": p50,
            "latency_ms_p99": p99, "matches": int(values.size)}  # fmt: skip


def _latencies_ms(bench: Rig, after_us: int) -> Any:
    """One latency (ms) for each match: time the page is durable − the later of the two send
    times."""
    durable: dict[str, int] = {}
    for line in bench.trace.read_text().splitlines():
        row = json.loads(line)
        durable.update(dict.fromkeys(row["pages"], row["durable_wall_us"]))
    found = []
    for header, rows in landed_tables(bench.landing):
        stamps = [rows.column(c).cast(pa.int64()).to_numpy() for c in ("r_ts", "s_ts")]
        sent = np.maximum(*stamps)
        sealed = durable[f"{header.stream}/{header.partition}/{header.seq}"]
        found.append((sealed - sent[sent >= after_us]) / 1000)
    return np.concatenate(found) if found else np.zeros(1)


@click.command(name="e2e")
@click.option(
    "--seconds", default=60.0, show_default=True, help="Seconds at full speed, with full windows."
)
@click.option("--window", default=1_000_000, show_default=True, help="Tuples a side.")
@click.option("--match-rate", default=0.01, show_default=True, help="Matches a tuple.")
@click.option("--connections", default=1, show_default=True, help="Connections a stream.")
@click.option("--batch", default=32_768, show_default=True, help="Tuples a message.")
@click.option(
    "--many/--no-many",
    default=True,
    show_default=True,
    help="Also measure 1 000 connections that send batches of 50.",
)
@click.option(
    "--latency", "tolerance", default="250ms", show_default=True, help="The job's latency promise."
)
@click.option(
    "--latency-seconds",
    default=24.0,
    show_default=True,
    help="Seconds of each open loop; 0 skips them.",
)
@click.option("--workers", type=int, help="Kernel threads of the daemon.")
@click.option("--verify/--no-verify", default=True, help="Join the same input with DuckDB.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(
    seconds: float,
    window: int,
    match_rate: float,
    connections: int,
    batch: int,
    many: bool,
    tolerance: str,
    latency_seconds: float,
    workers: int | None,
    verify: bool,
    path: Path | None,
    plot: Path | None,
) -> None:
    """Throughput, cost and latency from socket to durable page."""
    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    console = figures_console()
    compile_kernels(quiet=False)
    loads = (0.25, 0.5, 0.9) if latency_seconds else ()
    settings = Settings(seconds, window, match_rate, connections, batch, tolerance, workers, loads,
                        latency_seconds, verify)  # fmt: skip
    with console.status("starting") as line:
        say = line.update if console.is_terminal else console.print
        result = {"machine": machine(), **throughput(settings, say)}
        result["latency"] = [
            latency(settings, result["tuples_per_s"], part, console.print) for part in loads
        ]
        if many:
            small = Settings(seconds, window, match_rate, 500, 50, tolerance, workers, (), 0.0,
                             verify)  # fmt: skip
            result["thousand_connections"] = throughput(small, say)
    for entry in result["latency"]:
        if entry["load"] == 0.5:
            result |= {k: entry[k] for k in ("latency_ms_p50", "latency_ms_p99")}
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    if plot is not None:
        draw_e2e(result, plot)
    _show(console, result)


def _show(console: Any, result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title="edged, end to end", title_justify="left")
    for heading in ("", "M tuples/s", "CPU-s / M tuples", "matches", "exact"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows = {"few connections": result, "1 000 × batches of 50": result.get("thousand_connections")}
    for name, r in rows.items():
        if r:
            table.add_row(name, f"{r['tuples_per_s'] / 1e6:.2f}", f"{r['cpu_s_per_mtuple']:.4f}",
                          f"{r['matches']:,}", str(r["exact"]))  # fmt: skip
    console.print(table)
    for r in result["latency"]:
        console.print(f"  {r['load']:.0%} load: p50 {r['latency_ms_p50']} ms, "
                      f"p99 {r['latency_ms_p99']} ms")  # fmt: skip
