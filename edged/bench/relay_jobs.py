"""`edged bench relay --part jobs`: 1 to 32 jobs at once, all-to-all among three daemons.

A job has two stages with an instance on each daemon.  The first takes packets from the load and
deals them out in turn to the three instances of the second, which counts them: a link leads from
every daemon to every daemon, for each job.  Packets have 50 bytes, buffers 64 KiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from edged.bench.relay_chain import (
    PARTS,
    Chain,
    Hops,
    bench_directory,
    edge_sink,
    family,
    packet_stream,
)
from edged.bench.relay_load import PacketLoad
from edged.bench.relay_tally import Tally
from edged.bench.rig import cpu_s, machine
from edged.platform.processes import free_port

Say = Callable[[str], None]
HOPS = Hops("results", 50, 64 << 10, memory="32MiB", high=1 << 20)
WINDOW_BYTES = 16 << 20
"""Of packets that are not acknowledged, over all jobs and daemons."""
BATCH = 1000


class Mesh(Chain):
    """Three daemons with so many jobs, each all-to-all."""

    def __init__(self, directory: Any, count: int) -> None:
        super().__init__(directory, HOPS)
        self.count = count
        self.first = [[_address() for _ in PARTS] for _ in range(count)]
        self.second = [[_address() for _ in PARTS] for _ in range(count)]
        self.counts = [
            [Tally.create(self._tally(j, d)) for d in range(len(PARTS))] for j in range(count)
        ]

    def _tally(self, job: int, daemon: int) -> Any:
        return self.directory / f"seen-{job}-{daemon}.tally"

    def first_job(self, job: int, daemon: int) -> dict[str, Any]:
        """The first stage of a job at a daemon."""
        link = edge_sink(HOPS, "come", "dealt", self.second[job], HOPS.buffer)
        return self._stage(f"first{job}", "come", self.first[job][daemon],
                           {**link, "partition": "round_robin"})  # fmt: skip

    def second_job(self, job: int, daemon: int) -> dict[str, Any]:
        """The second: a job of its own, since a job whose link is full takes no rows at all, and
        links of one job in a circle would wait for each other."""
        seen = {"type": "packet_tally", "input": "dealt", "file": str(self._tally(job, daemon))}
        return self._stage(f"second{job}", "dealt", self.second[job][daemon], seen)

    def _stage(self, name: str, stream: str, address: str, sink: dict[str, Any]) -> dict[str, Any]:
        promises = {"latency": HOPS.latency, "memory": HOPS.memory, "durability": HOPS.mode}
        return {
            "name": name, "promises": promises, "sinks": {"out": sink},
            "streams": {stream: packet_stream(address, HOPS.packet_bytes)},
        }  # fmt: skip

    def jobs(self, name: str) -> list[dict[str, Any]]:
        """Both stages of all jobs."""
        d, count = PARTS.index(name), range(self.count)
        return [stage(j, d) for j in count for stage in (self.second_job, self.first_job)]

    @property
    def rows(self) -> int:
        """Packets that have reached the second stage."""
        return sum(tally.rows for own in self.counts for tally in own)

    def wire_bytes(self) -> int:
        """Bytes that all links have sent."""
        jobs = [job for name in PARTS for job in self.status(name)["jobs"].values()]
        return sum(link["bytes"] for job in jobs for link in job["sinks"]["out"].get("links", []))

    def cpu_s(self) -> float:
        """CPU seconds of all processes so far."""
        return sum(cpu_s(process) for part in self.parts.values() for process in family(part))

    def once_in_order(self, sent: list[int]) -> bool:
        """Whether each job has each packet once, those of a sender in order."""
        for j, own in enumerate(self.counts):
            mine = sent[j * len(PARTS) : (j + 1) * len(PARTS)]
            whole = sum(n * (n + 1) // 2 for n in mine)
            found = sum(t.rows for t in own), sum(t.sum for t in own), sum(t.disorder for t in own)
            if found != (sum(mine), whole, 0):
                return False
        return True


def _address() -> str:
    return f"127.0.0.1:{free_port()}"


@contextmanager
def mesh(count: int) -> Iterator[Mesh]:
    """A mesh in a fresh directory, started."""
    with bench_directory() as directory:
        made = Mesh(directory, count)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def measure_jobs(count: int, seconds: float, warm_s: float) -> dict[str, Any]:
    """Throughput of so many jobs together."""
    with mesh(count) as made:
        window = max(2 * BATCH, WINDOW_BYTES // HOPS.packet_bytes // (count * len(PARTS)))
        load = PacketLoad(
            [a for own in made.first for a in own], HOPS.packet_bytes, BATCH,
            seconds + warm_s + 1.0, window, str(made.directory / "progress"),
            senders=list(range(len(PARTS))) * count, streams=["come"] * (count * len(PARTS)),
        )  # fmt: skip
        generator = made.load(load)
        time.sleep(warm_s)
        first = time.monotonic(), made.rows, made.wire_bytes(), made.cpu_s()
        time.sleep(seconds)
        last = time.monotonic(), made.rows, made.wire_bytes(), made.cpu_s()
        made.check()
        sent = generator.events.get(timeout=180)["sent"]
        deadline = time.monotonic() + 180
        while made.rows < sum(sent) and time.monotonic() < deadline:
            time.sleep(0.1)
        exact = made.once_in_order(sent)
    span, rows, wire, cpu = (b - a for a, b in zip(first, last, strict=True))
    return {
        "jobs": count, "packets_per_s": round(rows / span), "wire_bytes_per_s": round(wire / span),
        "cpu_s_per_mpacket": round(cpu / max(1, rows) * 1e6, 4), "in_order_once": exact,
    }  # fmt: skip


def run_jobs(counts: tuple[int, ...], seconds: float, warm_s: float, say: Say) -> dict[str, Any]:
    """Throughput by the number of jobs, the point of saturation, and what is left at the end."""
    rows: list[dict[str, Any]] = []
    for count in counts:
        say(f"{count} jobs")
        rows.append(measure_jobs(count, seconds, warm_s))
    best = max(rows, key=lambda r: r["packets_per_s"])
    return {
        "machine": machine(), "rows": rows, "saturated_at_jobs": best["jobs"],
        "last_of_peak": round(rows[-1]["packets_per_s"] / best["packets_per_s"], 3),
    }  # fmt: skip
