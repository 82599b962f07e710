"""`edged bench fleet`: what a collector takes for a fleet of devices.

One process simulates the devices (`fleet_devices.py`) against a real collector on loopback.  For
each size of the fleet

    herd      all devices connect at once, each with a page of a new session, until each is
              acknowledged
    requests  one page a request, in an open loop; within it the first segment, with pages of all
              devices, is full and sealed
    reports   one telemetry report a request, in an open loop, until the collector has worked off
              what it keeps of them

CPU seconds are the collector's, of the whole request.  Latencies and the longest gap, the longest
time without any acknowledgement while one is due, are of requests and reports; both count from the
time that a request is due.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click
import psutil

from edged.bench.fleet_devices import Acks, RawDevice, send_at_rate
from edged.bench.rig import cpu_s, machine
from edged.platform.processes import ChildProcess

SIZES = (100, 2_000, 10_000)
PAGE_BYTES = 224 + 300 * 12
AIMS = {
    "cpu_s_per_1000_requests": 0.5, "cpu_s_per_1000_reports": 0.5, "longest_gap_ms": 300,
    "herd_s": 60,
}  # fmt: skip


@dataclass(frozen=True)
class Phases:
    """How much is sent."""

    requests: int = 3000
    reports: int = 1500
    requests_per_s: float = 200.0
    reports_per_s: float = 100.0


QUICK = Phases(200, 100)


class _Collector:
    """A collector in a fresh directory, whose first segment fills in the phase of requests."""

    def __init__(self, devices: int, phases: Phases) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="edged-bench-"))
        size = (devices + phases.requests // 3) * PAGE_BYTES
        self._child = ChildProcess(
            "collector",
            ["edged", "central", "collect", "--landing", str(self.directory / "landing"),
             "--listen", "127.0.0.1:0", "--segment-bytes", str(size), "--json"],
            self.directory,
        )  # fmt: skip
        host, _, port = self._child.ready()["listen"].rpartition(":")
        self.host, self.port = host, int(port)
        self._process = psutil.Process(self._child.process.pid)

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return cpu_s(self._process)

    async def idle_cpu_s(self) -> float:
        """CPU seconds once it has next to nothing to do, at most 6 s later."""
        before = self.cpu_s()
        for _ in range(20):
            await asyncio.sleep(0.3)
            now = self.cpu_s()
            if now - before < 0.01:
                return now
            before = now
        return before

    def stop(self) -> None:
        """Stop it and remove its directory."""
        self._child.stop(60)
        shutil.rmtree(self.directory, ignore_errors=True)


def measure(devices: int, phases: Phases, say: Callable[[str], None]) -> dict[str, Any]:
    """The row of a fleet of `devices`."""
    say(f"{devices} devices: starting")
    collector = _Collector(devices, phases)
    try:
        return asyncio.run(_measure(collector, devices, phases, say))
    finally:
        collector.stop()


async def _measure(
    collector: _Collector, count: int, phases: Phases, say: Callable[[str], None]
) -> dict[str, Any]:
    devices = [RawDevice(i, collector.host, collector.port) for i in range(count)]
    for request in devices[0].schemas():
        await devices[0].send(request)
    pages = [device.page() for device in devices]
    say(f"{count} devices: herd")
    start_s = time.monotonic()
    await asyncio.gather(*(d.send(p) for d, p in zip(devices, pages, strict=True)))
    herd_s = time.monotonic() - start_s
    acks = Acks()
    costs = []
    for kind, number, rate in (
        ("page", phases.requests, phases.requests_per_s),
        ("report", phases.reports, phases.reports_per_s),
    ):
        say(f"{count} devices: {kind}s")
        turn = islice(cycle(devices), number)
        work = [(device, getattr(device, kind)()) for device in turn]
        before_s = await collector.idle_cpu_s()
        await send_at_rate(work, rate, acks, set())
        costs.append(1000 * (await collector.idle_cpu_s() - before_s) / number)
    for device in devices:
        device.close()
    return {
        "devices": count,
        "cpu_s_per_1000_requests": round(costs[0], 3),
        "cpu_s_per_1000_reports": round(costs[1], 3),
        "ack_ms_p99": round(acks.p99_ms(), 1),
        "longest_gap_ms": round(1e3 * acks.longest_gap_s, 1),
        "herd_s": round(herd_s, 2),
    }


@click.command(name="fleet")
@click.option(
    "--devices", multiple=True, type=click.IntRange(1), help="Only this size; repeatable."
)
@click.option("--quick", is_flag=True, help="A smoke test: a few requests.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
def command(devices: tuple[int, ...], quick: bool, path: Path | None) -> None:
    """CPU time, latency and gaps of a collector with a fleet of devices."""
    from rich.table import Table

    from edged.console.consoles import figures_console

    console, phases = figures_console(), QUICK if quick else Phases()
    sizes = devices or ((100,) if quick else SIZES)
    with console.status("starting") as line:
        rows = [measure(size, phases, line.update) for size in sizes]
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    table = Table(*(f"{key}\n<= {AIMS[key]}" if key in AIMS else key for key in rows[0]))
    for row in rows:
        table.add_row(*(f"{value:,}" for value in row.values()))
    console.print(table)
