"""`edged bench compress`: links that compress never, by entropy (`auto`), or always.

Records of a wind farm, of a machine, and random bytes cross a link of 10 Mbit/s, 1 Gbit/s, and
loopback (`mbit_per_s` null).  The links of limited speed are relays in user space
(`edged.bench.shaper`): their process takes CPU time of this machine.  Two daemons have a job for
each link and mode.  A run sends records until they are all at the second daemon; packets/s is their
number over that time.  Modes take turns, run by run.

`wire_ratio` is the bytes of the messages over those of the same rows without compression.
`p_value` is that of Tukey's test over the runs of the three modes, against `never`; `ms_alone` the
time that ten records take on an idle link (median).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

from edged.bench.compress_data import DATA, TIME, document_columns, records
from edged.bench.relay import MESSAGE_BYTES
from edged.bench.relay_chain import Chain, Hops, bench_directory, edge_sink
from edged.bench.relay_tally import Tally
from edged.bench.rig import machine
from edged.bench.tukey import tukey_p_values
from edged.client import Producer
from edged.errors import EdgedError
from edged.links.compression import COMPRESS
from edged.platform.processes import ChildProcess, free_port

Say = Callable[[str], None]
NEVER = "never"
LINKS: tuple[int | None, ...] = (10, 1000, None)
MODES = (NEVER, *(mode for mode in COMPRESS if mode != NEVER))
HOPS = Hops("results", latency="20ms", memory="32MiB", high=1 << 20)
RUN_BYTES = {10: 1_200_000, 1000: 32_000_000, None: 32_000_000}
ALONE_ROWS = 10
LATENESS = "36500d"
"""Records are sent again and again, and none is late."""
RUN_S_MAX = 60.0


@dataclass(frozen=True)
class CompressScope:
    """Runs of an arm, and what they send."""

    runs: int = 10
    share: float = 1.0
    """Of the bytes of a run."""
    data: tuple[str, ...] = DATA
    links: tuple[int | None, ...] = LINKS


class Pair(Chain):
    """Two daemons with a job for each link and mode."""

    def __init__(self, directory: Path, schema: pa.Schema, links: tuple[int | None, ...]) -> None:
        super().__init__(directory, HOPS)
        self.schema = schema
        self.arms = [(link, mode) for link in links for mode in MODES]
        self.come = [free_port() for _ in self.arms]
        self.near = [free_port() for _ in self.arms]
        self.far = [port if link is None else free_port()
                    for port, (link, _) in zip(self.near, self.arms, strict=True)]  # fmt: skip
        self.counts = [Tally.create(self._tally(i)) for i in range(len(self.arms))]

    def _tally(self, arm: int) -> Path:
        return self.directory / f"arm{arm}.tally"

    def jobs(self, name: str) -> list[dict[str, Any]]:
        """A job for each arm."""
        return [self._arm(name, i) for i in range(len(self.arms))]

    def _arm(self, name: str, arm: int) -> dict[str, Any]:
        port = self.come[arm] if name == "source" else self.far[arm]
        sink: dict[str, Any] = {"type": "packet_tally", "input": "r", "file": str(self._tally(arm))}
        if name == "source":
            to = [f"127.0.0.1:{self.near[arm]}"]
            sink = edge_sink(HOPS, "r", "r", to, HOPS.buffer)
            sink["compress"] = self.arms[arm][1]
        stream = {
            "source": {"type": "tcp", "listen": f"127.0.0.1:{port}"}, "time": TIME,
            "columns": document_columns(self.schema), "lateness": LATENESS, "idle_after": "60s",
        }  # fmt: skip
        promises = {"latency": HOPS.latency, "memory": HOPS.memory, "durability": HOPS.mode}
        return {"name": f"arm{arm}", "promises": promises, "streams": {"r": stream},
                "sinks": {"out": sink}}  # fmt: skip

    def start(self) -> None:
        """Start shapers and daemons."""
        for i, (link, _) in enumerate(self.arms):
            if link is not None:
                words = ["edged.bench.shaper", str(self.near[i]), f"127.0.0.1:{self.far[i]}",
                         str(link * 1e6)]  # fmt: skip
                part = ChildProcess(f"shaper{i}", words, self.directory / "logs")
                self.parts[f"shaper{i}"] = part
        for name in ("sink", "source"):
            self._start_one(name)
        for part in self.parts.values():
            part.ready()

    def wire_ratio(self, arm: int) -> float:
        """Bytes of the arm's messages over those without compression."""
        counts = self.status("source")["jobs"][f"arm{arm}"]["sinks"]["out"]
        return round(float(counts["page_bytes"] / max(1, counts["page_bytes_raw"])), 4)


@contextmanager
def _pair(schema: pa.Schema, links: tuple[int | None, ...]) -> Iterator[Pair]:
    with bench_directory() as directory:
        made = Pair(directory, schema, links)
        try:
            made.start()
            yield made
        finally:
            made.stop()


class _Arm:
    """Sends runs to an arm's job."""

    def __init__(self, made: Pair, index: int, batch: pa.RecordBatch, share: float) -> None:
        self._tally, self._rows = made.counts[index], 0
        self._producer = Producer(f"127.0.0.1:{made.come[index]}", "r", batch.schema, "bench",
                                  unacked_bytes_max=1 << 20, timeout_s=RUN_S_MAX)  # fmt: skip
        row_bytes = batch.nbytes / batch.num_rows
        step = max(1, int(MESSAGE_BYTES / row_bytes))
        cut = [batch.slice(at, step) for at in range(0, batch.num_rows - step, step)]
        self._cut = [self._producer.prepare(one) for one in cut]
        self._alone = self._producer.prepare(batch.slice(0, ALONE_ROWS))
        link = made.arms[index][0]
        messages = max(1, int(share * RUN_BYTES[link] / (step * row_bytes)))
        self._step, self._messages = step, messages
        self.rates: list[float] = []
        self.alone_ms: list[float] = []

    def run(self) -> None:
        """A run."""
        began = time.monotonic()
        for i in range(self._messages):
            self._producer.send(self._cut[i % len(self._cut)])
        self._wait(self._messages * self._step)
        self.rates.append(self._messages * self._step / (time.monotonic() - began))
        began = time.monotonic()
        self._producer.send(self._alone)
        self._wait(ALONE_ROWS)
        self.alone_ms.append(1000 * (time.monotonic() - began))

    def _wait(self, rows: int) -> None:
        self._rows += rows
        deadline = time.monotonic() + RUN_S_MAX
        while self._tally.rows < self._rows:
            self._producer.poll()
            time.sleep(0.0005)
            if time.monotonic() > deadline:
                raise EdgedError("records did not arrive within a minute")

    def close(self) -> None:
        """End the producer."""
        self._producer.close()


def measure(data: str, scope: CompressScope, say: Say) -> list[dict[str, Any]]:
    """The rows of a data set."""
    batch = records(data)
    with _pair(batch.schema, scope.links) as made, ExitStack() as stack:
        arms = [_Arm(made, i, batch, scope.share) for i in range(len(made.arms))]
        for arm in arms:
            stack.callback(arm.close)
            arm.run()  # connections, kernels, files
            arm.rates.clear()
            arm.alone_ms.clear()
        for number in range(scope.runs):
            say(f"{data}: run {number + 1} of {scope.runs}")
            for arm in arms:
                arm.run()
            made.check()
        ratios = [made.wire_ratio(i) for i in range(len(arms))]
    found = []
    for i, (link, mode) in enumerate(made.arms):
        first = made.arms.index((link, NEVER))
        group = {m: arms[first + k].rates for k, m in enumerate(MODES)}
        p_values = tukey_p_values(group)
        found.append({
            "data": data, "mode": mode, "mbit_per_s": link,
            "packets_per_s": round(float(np.mean(arms[i].rates))),
            "of_never": round(float(np.mean(arms[i].rates) / np.mean(arms[first].rates)), 3),
            "deviation": round(float(np.std(arms[i].rates, ddof=1))),
            "ms_alone": round(float(np.median(arms[i].alone_ms)), 2), "wire_ratio": ratios[i],
            "p_value": 1.0 if mode == NEVER else round(p_values[NEVER, mode], 6),
            "runs": len(arms[i].rates),
        })  # fmt: skip
    return found


def show(console: Any, result: dict[str, Any]) -> None:
    """Print the table."""
    from rich.table import Table

    table = Table(title="Links that compress (Tukey's HSD against never)", title_justify="left")
    for heading in ("data", "Mbit/s", "mode", "packets/s", "of never", "p", "wire ratio",
                    "alone ms"):  # fmt: skip
        table.add_column(heading, justify="right")
    for r in result["rows"]:
        link = "loopback" if r["mbit_per_s"] is None else f"{r['mbit_per_s']:,}"
        p = "" if r["mode"] == NEVER else f"{r['p_value']:.4f}"
        table.add_row(r["data"], link, r["mode"], f"{r['packets_per_s']:,}",
                      f"{r['of_never']:.3f}", p, f"{r['wire_ratio']:.3f}",
                      f"{r['ms_alone']:.1f}")  # fmt: skip
    console.print(table)


@click.command(name="compress")
@click.option("--full", is_flag=True, help="30 runs an arm.")
@click.option("--quick", is_flag=True, help="Two short runs: whether the benchmark runs at all.")
@click.option("--data", multiple=True, type=click.Choice(DATA), help="Only this; repeatable.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
def command(full: bool, quick: bool, data: tuple[str, ...], path: Path | None) -> None:
    """Links that compress never, by entropy, or always, at three speeds of the link.

    Takes about four minutes; with --full three times as long.
    """
    from edged.bench.relay_report import write
    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    if full and quick:
        raise click.UsageError("--full and --quick exclude each other")
    console = figures_console()
    compile_kernels(quiet=False)
    scope = CompressScope(30 if full else 10, data=data or DATA)
    if quick:
        scope = CompressScope(2, 0.05, data or ("random",), (None,))
    rows: list[dict[str, Any]] = []
    result = {"machine": machine(), "rows": rows}
    with console.status("starting") as line:
        say = line.update if console.is_terminal else console.print
        for name in scope.data:
            rows += measure(name, scope, say)
            write(path, result)
    show(console, result)
