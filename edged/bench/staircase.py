"""`edged bench staircase`: backpressure over three daemons (Figure 4 of NEPTUNE).

Packets of 50 bytes; the last daemon sleeps 0, 1, 2, 3, 2, 1, 0 ms for each.  What is in flight is
bounded so that it drains within half a second at 3 ms: at most 48 packets of the load are
unacknowledged, and each link takes no rows from 4 KiB of messages in flight on, until 1 KiB is
left.  A daemon acknowledges what has left with its beat, so socket buffers hold no more than that.

A rate is packets in a bin of a second: those acknowledged to the load, and those that the sink has.
`settled_s` is the time from a step to the end of the first second in which the first daemon's rate
is within 10 % of the last one's in the second half of the step.  Another job on the middle daemon
has a promise of 50 ms: the late fraction is that of its packets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from edged.bench.relay_chain import PARTS, Chain, Hops, chain, family, packet_stream
from edged.bench.relay_load import PacketLoad
from edged.bench.relay_packets import STREAM
from edged.bench.relay_tally import Tally, share_above
from edged.bench.rig import machine
from edged.console.figures import COLOURS, new_figure, save
from edged.job.durability import VOLATILE
from edged.platform.processes import free_port

Say = Callable[[str], None]
STEPS_MS = (0, 1, 2, 3, 2, 1, 0)
WINDOW, BATCH = 48, 8
TICK_S, BIN_S = 0.1, 1.0
RATE_TOLERANCE = 0.1
OTHER_MS, OTHER_PACKETS_PER_S = 50, 1000.0


@dataclass(frozen=True)
class Stair:
    """What is in a run."""

    step_s: float = 12.0
    steps_ms: tuple[int, ...] = STEPS_MS


@dataclass(frozen=True)
class Tick:
    """Counts at a moment."""

    at_s: float
    step: int
    acked: int
    seen: int
    rss: int


def hops() -> Hops:
    """The chain's settings."""
    return Hops(VOLATILE, 50, 1 << 10, latency="5ms", linger="0s", high=4 << 10, memory="16MiB")


class Stairs(Chain):
    """A chain whose middle daemon has another job."""

    def __init__(self, directory: Path, given: Hops) -> None:
        super().__init__(directory, given)
        self.other_address = f"127.0.0.1:{free_port()}"
        self.other = Tally.create(directory / "other.tally")

    def jobs(self, name: str) -> list[dict[str, Any]]:
        """The jobs of a part."""
        own = super().jobs(name)
        return [*own, self._other_job()] if name == "relay" else own

    def _other_job(self) -> dict[str, Any]:
        promises = {**self.job("relay")["promises"], "latency": f"{OTHER_MS}ms"}
        sink = {"type": "packet_tally", "input": STREAM,
                "file": str(self.directory / "other.tally")}  # fmt: skip
        return {
            "name": "other", "promises": promises, "sinks": {"out": sink},
            "streams": {STREAM: packet_stream(self.other_address, self.hops.packet_bytes)},
        }  # fmt: skip


def measure(stair: Stair, say: Say) -> dict[str, Any]:
    """The whole staircase."""
    seconds = stair.step_s * len(stair.steps_ms) + stair.step_s / 2
    with chain(hops(), Stairs) as made:
        base = str(made.directory)
        other = PacketLoad([made.other_address], 50, 1, seconds, 1 << 20, base + "/other.progress",
                           rate=OTHER_PACKETS_PER_S)  # fmt: skip
        made.load(other, "other-load")
        load = PacketLoad([made.target("source")], 50, BATCH, seconds, WINDOW,
                          base + "/progress")  # fmt: skip
        generator = made.load(load)
        time.sleep(stair.step_s / 4)
        begun = made.other.latencies()
        ticks = list(_ticks(made, stair, say))
        late = share_above(made.other.latencies() - begun, OTHER_MS)
        made.seen.sleep_us = 0
        sent = generator.events.get(timeout=120)["sent"][0]
        made.drain(sent)
        lost, exact = sent - made.seen.rows, made.seen.once_in_order(sent)
    memory = np.array([t.rss for t in ticks[len(ticks) // len(stair.steps_ms) :]])
    return {
        "machine": machine(), "mode": made.hops.mode, "steps": _steps(ticks, stair), "lost": lost,
        "in_order_once": exact,
        "memory_mib_max_minus_min": round(float(memory.max() - memory.min()) / 2**20, 1),
        "other_job_late_fraction": late, "bins": _bins(ticks),
    }  # fmt: skip


def _ticks(made: Stairs, stair: Stair, say: Say) -> Iterator[Tick]:
    """Counts, every tenth of a second, while the sink sleeps as each step says."""
    progress = np.memmap(made.directory / "progress", np.int64, "r", shape=(2,))
    daemons = [process for name in PARTS for process in family(made.parts[name])]
    next_s = time.monotonic()
    for step, sleep_ms in enumerate(stair.steps_ms):
        say(f"{sleep_ms} ms a packet")
        made.seen.sleep_us = 1000 * sleep_ms
        end = next_s + stair.step_s
        while next_s < end:
            rss = sum(process.memory_info().rss for process in daemons)
            yield Tick(time.monotonic(), step, int(progress[1]), made.seen.rows, rss)
            next_s += TICK_S
            time.sleep(max(0.0, next_s - time.monotonic()))
        made.check()


def _bins(ticks: Sequence[Tick]) -> list[dict[str, Any]]:
    """Rates of the load and of the sink in bins of a second."""
    per_bin = round(BIN_S / TICK_S)
    found = []
    for first, last in zip(ticks[:-per_bin:per_bin], ticks[per_bin::per_bin], strict=False):
        span = last.at_s - first.at_s
        found.append({
            "at_s": round(first.at_s - ticks[0].at_s, 2), "step": first.step,
            "source_rate": round((last.acked - first.acked) / span, 1),
            "sink_rate": round((last.seen - first.seen) / span, 1),
        })  # fmt: skip
    return found


def _steps(ticks: Sequence[Tick], stair: Stair) -> list[dict[str, Any]]:
    """Rates of each step from its third second on, and when the source's had settled."""
    found = []
    for step, sleep_ms in enumerate(stair.steps_ms):
        own = [t for t in ticks if t.step == step]
        late = [t for t in own if t.at_s - own[0].at_s >= 2.0] or own
        span = late[-1].at_s - late[0].at_s
        found.append({
            "sleep_ms": sleep_ms,
            "sink_rate": round((late[-1].seen - late[0].seen) / span, 1),
            "source_rate": round((late[-1].acked - late[0].acked) / span, 1),
            "settled_s": _settled_s(own),
        })  # fmt: skip
    return found


def _settled_s(own: Sequence[Tick]) -> float | None:
    """Seconds from a step's begin to the end of the first bin (a second, beginning at any tick)
    in which the source's rate is within 10 % of the sink's in the rest of the step."""
    per_bin = round(BIN_S / TICK_S)
    rest = own[len(own) // 2], own[-1]
    level = (rest[1].seen - rest[0].seen) / (rest[1].at_s - rest[0].at_s)
    for first, last in zip(own, own[per_bin:], strict=False):
        rate = (last.acked - first.acked) / (last.at_s - first.at_s)
        if abs(rate - level) <= RATE_TOLERANCE * level:
            return round(last.at_s - own[0].at_s, 2)
    return None


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the figure as PNG."""
    figure, axes = new_figure(1, 1, 3.8)
    at_s = [b["at_s"] for b in result["bins"]]
    for key, colour, label in (("source_rate", COLOURS[0], "first daemon"),
                               ("sink_rate", COLOURS[1], "last daemon")):  # fmt: skip
        axes.plot(at_s, [max(1.0, b[key]) for b in result["bins"]], color=colour, label=label)
    axes.set(xlabel="s", ylabel="packets/s", yscale="log",
             title="The last daemon sleeps 0, 1, 2, 3, 2, 1, 0 ms a packet")  # fmt: skip
    axes.legend(loc="best")
    save(figure, path)


def show(console: Any, result: dict[str, Any]) -> None:
    """Print the table."""
    from rich.table import Table

    table = Table(title=f"Backpressure over three daemons, {result['mode']}", title_justify="left")
    for heading in ("sleep ms", "sink packets/s", "source packets/s", "settled s"):
        table.add_column(heading, justify="right")
    for s in result["steps"]:
        settled = "never" if s["settled_s"] is None else f"{s['settled_s']:.1f}"
        table.add_row(str(s["sleep_ms"]), f"{s['sink_rate']:,.0f}", f"{s['source_rate']:,.0f}",
                      settled)  # fmt: skip
    console.print(table)
    console.print(
        f"  lost {result['lost']}, in order: {result['in_order_once']}; memory within "
        f"{result['memory_mib_max_minus_min']} MiB; {result['other_job_late_fraction']:.3%} of the "
        f"other job's packets later than {OTHER_MS} ms"
    )


@click.command(name="staircase")
@click.option("--step", default=12.0, show_default=True, help="Seconds of each step.")
@click.option("--quick", is_flag=True, help="Two short steps: whether the benchmark runs at all.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(step: float, quick: bool, path: Path | None, plot: Path | None) -> None:
    """Backpressure: the first daemon's rate follows the last one's."""
    from edged.bench.relay_report import write
    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    console = figures_console()
    compile_kernels(quiet=False)
    stair = Stair(3.0, (0, 2)) if quick else Stair(step)
    with console.status("starting") as line:
        say = line.update if console.is_terminal else console.print
        result = measure(stair, say)
    write(path, result)
    show(console, result)
    if plot is not None:
        draw(result, plot)
    if result["lost"] or not result["in_order_once"]:
        raise click.ClickException("packets were lost, repeated or reordered")
