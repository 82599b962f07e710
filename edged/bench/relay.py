"""`edged bench relay`: packets through three daemons on loopback, source → relay → sink.

A row is a durability, a size of packets and of the links' buffers.  The load sends as fast as
acknowledgements allow, with 4 MiB of packets unacknowledged, and each link has 6 MiB in flight, so
that latency, from the making of a packet to the sink's having it, has the queues of a full chain in
it.  Rates are counted at the sink.  With `through` the relay keeps no log, the source is `volatile`
and the sink has the log (`results`).  CPU seconds are those of all processes, the load's included;
context switches and page faults are those of the relay daemon.  `in_order_once`: the sink has as
many packets as were sent, the sum of their numbers is right, and each number is above the one
before.

`fresh` is the best row again, with memory of columns allocated for each beat.  `shaped` has a
second link of 1 Gbit/s.
`latency` has open loops with buffers of 16 KiB: half of the highest rate with such buffers, and 100
packets/s.
`switches` compares the relay where a race takes all packets that are there with one for each
packet; both get packets one by one and send them on in buffers of 1 MiB.
`raw` is a relay of bytes with plain sockets, `disk` what the disk writes durably.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from edged.bench.relay_chain import Chain, ChainSample, Hops, bench_directory, chain
from edged.bench.relay_flink import measure_flink_chain
from edged.bench.relay_load import PacketLoad
from edged.bench.relay_packets import BASE_BYTES, OFFSET_BYTES, columns
from edged.bench.relay_raw import disk_bytes_per_s, measure_raw
from edged.bench.relay_shaped import ShapedChain
from edged.bench.relay_tally import percentile_ms
from edged.bench.rig import machine
from edged.data.schema import TYPES, Field, Schema
from edged.errors import EdgedError
from edged.graph.flow import SEND, TAKE
from edged.job.durability import DURABILITIES, EXACTLY_ONCE, RESULTS, THROUGH, VOLATILE
from edged.simulate.work import HOST_HZ

Say = Callable[[str], None]
Row = dict[str, Any]
MODES = (VOLATILE, THROUGH, RESULTS, EXACTLY_ONCE)
IN_FLIGHT_BYTES, LINK_BYTES = 4 << 20, 6 << 20
"""Unacknowledged at most: packets of the load, and messages of each link."""
SINGLE_LINK_BYTES = 64 << 10
"""In flight where each packet has a race of its own."""
MESSAGE_BYTES = 64 << 10
KIB, MIB = 1 << 10, 1 << 20
BUFFERS = (0, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
SIZES = (50, 100, 200, 400, 1000, 10_000)
SHAPED_SIZES = (200,)
TICK_S = 0.002
SHORT_BUFFER, SHORT_LATENCY = 16 * KIB, "8ms"
"""Buffers and the jobs' promise at half load."""
DRAIN_S = 180.0


@dataclass(frozen=True)
class RelayScope:
    """What a run measures."""

    rows: tuple[tuple[int, int, str], ...]
    """Packet (bytes), buffer and mode of each."""
    seconds: float = 10.0
    warm_s: float = 2.0
    latency: bool = True
    switches: bool = True
    single: bool = True
    """Whether clients that send packet by packet are measured."""
    arms: bool = True
    """Whether fresh memory and a shaped link are measured."""
    peers: bool = True
    """Whether Flink is measured."""


def _rows(sizes: tuple[int, ...], buffers: tuple[int, ...], modes: tuple[str, ...]) -> Any:
    return tuple((size, buffer, mode) for mode in modes for size in sizes for buffer in buffers)


DEFAULT_ROWS = (
    *_rows((50,), (MIB,), MODES),
    *_rows((50,), (SHORT_BUFFER,), (VOLATILE,)),
    *_rows((50,), (0, KIB), (RESULTS,)),
    *_rows((200, 400, 1000, 10_000), (MIB,), (VOLATILE,)),
    *_rows((10_000,), (MIB,), (THROUGH, EXACTLY_ONCE)),
)
SCOPES = {
    "default": RelayScope(DEFAULT_ROWS),
    "full": RelayScope(_rows(SIZES, BUFFERS, MODES), 20.0, 4.0),
    "quick": RelayScope(((50, 64 * KIB, RESULTS),), 1.0, 0.5, False, False, False, False, False),
}


def bulk(mode: str, packet_bytes: int, buffer: int, **changes: Any) -> Hops:
    """The chain of a row: full messages and those of a beat's last rows leave with their beat."""
    high = max(LINK_BYTES, 2 * buffer)
    return Hops(mode, packet_bytes, buffer, linger="0s", high=high, low_part=2, **changes)


def load_of(made: Chain, seconds: float, **options: Any) -> PacketLoad:
    """A load for a chain's source."""
    size = made.hops.packet_bytes
    batch = options.pop("batch", max(1, MESSAGE_BYTES // size))
    window = options.pop("window", max(4 * batch, IN_FLIGHT_BYTES // size))
    return PacketLoad([made.target("source")], size, batch, seconds, window,
                      str(made.directory / "progress"), **options)  # fmt: skip


def measure(
    hops: Hops, seconds: float, warm_s: float, make: type[Chain] = Chain, **options: Any
) -> Row:
    """A row.  `options` are those of the load.  Raises EdgedError where packets stay away."""
    with chain(hops, make) as made:
        generator = made.load(load_of(made, seconds + warm_s + 1.0, **options))
        time.sleep(warm_s)
        first = made.sample()
        time.sleep(seconds)
        last = made.sample()
        made.check()
        sent = generator.events.get(timeout=DRAIN_S)["sent"][0]
        made.drain(sent, DRAIN_S)
        exact = made.seen.once_in_order(sent)
    return {
        "mode": hops.mode, "packet_bytes": hops.packet_bytes, "buffer_bytes": hops.buffer,
        "sender": "packet by packet" if options.get("batch") == 1 else "bulk",
        "seconds": round(last.at_s - first.at_s, 2), **figures(first, last),
        "in_order_once": exact,
    }  # fmt: skip


def simulated(row: Row) -> Row:
    """CPU seconds a million packets of the last daemon, the last two and all three, as `edged graph
    simulate` has them, beside what was measured."""
    text = row["packet_bytes"] - BASE_BYTES - OFFSET_BYTES
    schema = Schema.of([Field(n, TYPES[k]) for n, k in columns(row["packet_bytes"]).items()])
    take, send = (cost.cycles(schema, text) / HOST_HZ * 1e6 for cost in (TAKE, SEND))
    own = row["cpu_s_per_mpacket_by_process"]
    chains = [("sink",), ("source", "sink"), ("source", "relay", "sink")]
    return {
        "packet_bytes": row["packet_bytes"], "buffer_bytes": row["buffer_bytes"],
        "simulated": [round(len(c) * take + (len(c) - 1) * send, 4) for c in chains],
        "measured": [round(sum(own[name] for name in c), 4) for c in chains],
    }  # fmt: skip


def figures(first: ChainSample, last: ChainSample) -> Row:
    """Rates, cost and latency between two samples.  Raises EdgedError where no packet came."""
    span, rows = last.at_s - first.at_s, last.rows - first.rows
    if not rows:
        raise EdgedError("no packet reached the sink; measure for longer")
    cpu = {name: last.cpu_s[name] - first.cpu_s.get(name, 0.0) for name in last.cpu_s}
    late = last.latencies - first.latencies
    return {
        "packets_per_s": round(rows / span),
        "wire_bytes_per_s": round((last.wire_bytes - first.wire_bytes) / span),
        "cpu_s_per_mpacket": round(sum(cpu.values()) / rows * 1e6, 4),
        "cpu_s_per_mpacket_by_process": {k: round(v / rows * 1e6, 4) for k, v in cpu.items()},
        "ms_p50": percentile_ms(late, 0.5), "ms_p99": percentile_ms(late, 0.99),
        "voluntary_per_5s": round(5 * (last.voluntary - first.voluntary) / span),
        "involuntary_per_5s": round(5 * (last.involuntary - first.involuntary) / span),
        "page_faults_per_s": round((last.faults - first.faults) / span),
        "gc_share": round((last.gc_ns - first.gc_ns) / 1e9 / max(cpu["relay"], 1e-9), 5),
        "relay_rss_mib": round(last.rss["relay"] / MIB),
    }  # fmt: skip


def measure_latency(mode: str, rate: float, scope: RelayScope) -> list[Row]:
    """Open loops: half of `rate` with buffers of 16 KiB, and 100 packets/s."""
    found = []
    for load, packets_per_s in (("half", rate / 2), ("100 packets/s", 100.0)):
        batch = max(1, min(1024, int(packets_per_s * TICK_S)))
        hops = Hops(mode, 50, SHORT_BUFFER)
        if load == "half":
            hops = bulk(mode, 50, SHORT_BUFFER, latency=SHORT_LATENCY)
        row = measure(hops, scope.seconds, scope.warm_s, rate=packets_per_s, batch=batch)
        found.append({"load": load, **row})
    return found


def measure_arms(mode: str, scope: RelayScope) -> Row:
    """Fresh memory for each beat, and a second link of 1 Gbit/s."""
    fresh = measure(bulk(mode, 50, MIB, fresh=True), scope.seconds, scope.warm_s)
    shaped = []
    for size in SHAPED_SIZES:
        row = measure(bulk(mode, size, MIB), scope.seconds, scope.warm_s, ShapedChain)
        share = row["wire_bytes_per_s"] * 8 / (ShapedChain.mbit_per_s * 1e6)
        shaped.append({"shaper": ShapedChain.shaped_by, "share_of_link": round(share, 4), **row})
    return {"fresh": fresh, "shaped": shaped}


def measure_switches(scope: RelayScope) -> Row:
    """Context switches of the relay in 5 s: a race for all packets that are there, and for each.

    With a log the first daemon would take what the slow arm needs an hour for.
    """
    found: Row = {}
    for arm, single in (("batched", False), ("single", True)):
        high = SINGLE_LINK_BYTES if single else MIB  # the slow arm drains in seconds, too
        hops = Hops(VOLATILE, 50, 0, relay_buffer=MIB, single=single, high=high)
        window = 1024 if single else 8192
        row = measure(hops, scope.seconds / 2, scope.warm_s, batch=64, window=window)
        found[f"{arm}_voluntary"] = row["voluntary_per_5s"]
        found[f"{arm}_involuntary"] = row["involuntary_per_5s"]
        found[f"{arm}_packets_per_s"] = row["packets_per_s"]
    return found


def run(scope: RelayScope, say: Say, modes: tuple[str, ...], on_row: Callable[[Row], None]) -> Row:
    """All of a scope in these modes; `on_row` gets what is known after each row."""
    rows: list[Row] = []
    missing = [f"mode {m}: jobs do not have it" for m in modes if m not in DURABILITIES]
    result: Row = {"machine": machine(), "rows": rows, "peers": [], "not_measured": missing}
    with bench_directory() as directory:
        say("raw relay, disk")
        result["raw"] = measure_raw(directory, 50, scope.seconds / 2)
        result["disk"] = {"bytes_per_s": disk_bytes_per_s(directory, scope.seconds / 5)}
    for size, buffer, mode in scope.rows:
        if mode in modes and mode in DURABILITIES:
            say(f"{mode}, packets of {size} B, buffers of {buffer:,} B")
            rows.append(measure(bulk(mode, size, buffer), scope.seconds, scope.warm_s))
            on_row(result)
    small = [r for r in rows if r["packet_bytes"] == min(SIZES)]
    best = max(small, key=lambda r: r["packets_per_s"], default=None)
    if scope.single and best:
        say("clients that send packet by packet")
        hops = bulk(best["mode"], 50, MIB)
        rows.append(measure(hops, scope.seconds, scope.warm_s, batch=1, window=8192))
    result["latency"] = []
    if scope.latency and best:
        say("latency")
        same = [r for r in small if r["buffer_bytes"] == SHORT_BUFFER] or [best]
        fast = max(same, key=lambda r: r["packets_per_s"])
        result["latency"] = measure_latency(fast["mode"], fast["packets_per_s"], scope)
    if scope.arms and best:
        say("fresh memory, a link of 1 Gbit/s")
        result |= measure_arms(best["mode"], scope)
    if scope.switches:
        say("switches")
        result["switches"] = measure_switches(scope)
    bulk_rows = [r for r in rows if r["mode"] == VOLATILE and r["sender"] == "bulk"]
    result["simulated"] = [simulated(r) for r in bulk_rows]
    if scope.peers:
        say("Flink")
        try:
            result["peers"] = [measure_flink_chain(say)]
        except EdgedError as problem:
            missing.append(str(problem))
    return result


@click.command(name="relay")
@click.option("--full", is_flag=True, help="All sizes, buffers and modes.")
@click.option("--quick", is_flag=True, help="One short row: whether the benchmark runs at all.")
@click.option("--part", type=click.Choice(["grid", "jobs"]), default="grid", show_default=True,
              help="jobs: 1 to 32 jobs, all-to-all among three daemons.")  # fmt: skip
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), help="Only these.")
@click.option("--seconds", type=float, help="Of each row.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(
    full: bool, quick: bool, part: str, modes: tuple[str, ...], seconds: float | None,
    path: Path | None, plot: Path | None,
) -> None:  # fmt: skip
    """Packets through three daemons in a row: rates, cost, latency, context switches.

    Takes at most 8 minutes; with --full two hours.
    """
    from edged.bench.relay_jobs import run_jobs
    from edged.bench.relay_report import draw, show, write
    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    if full and quick:
        raise click.UsageError("--full and --quick exclude each other")
    console = figures_console()
    compile_kernels(quiet=False)
    scope = SCOPES["full" if full else "quick" if quick else "default"]
    scope = scope if seconds is None else replace(scope, seconds=seconds)
    with console.status("starting") as line:
        say = line.update if console.is_terminal else console.print
        if part == "jobs":
            counts = (1, 2, 4, 8, 16, 32) if not quick else (1, 2)
            result = run_jobs(counts, scope.seconds, scope.warm_s, say)
        else:
            result = run(scope, say, modes or MODES, lambda found: write(path, found))
    write(path, result)
    show(console, result)
    if plot is not None:
        draw(result, plot)
    wrong = [r for r in result["rows"] if not r["in_order_once"]]
    if wrong:
        raise click.ClickException(f"{len(wrong)} rows lost, repeated or reordered packets")
