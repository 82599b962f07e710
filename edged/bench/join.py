"""`edged bench join`: the join family in steady state, compared with each other and the roofline.

A row of the result is one configuration:

    kernel       a member of the join family
    window       tuples a side
    batch        tuples a side of a beat
    threads      kernel threads
    match_rate   mean number of earlier partners of a tuple
    keys         distribution of the keys (`join_data`)

`tuples_per_s` counts both streams. It covers `WindowJoin.join` on prepared records only. With
`--operator` a second figure covers the whole interval join, which also stores, hashes, partitions,
materialises, and bounds its output as in a job of the default memory. `join_measure` describes the
method.

`fraction_of_limit` is the speed divided by that of the roofline (`kernels.cpu.roofline`). Sections
of both alternate, with the same records, window, batch, threads and matches a tuple. The roofline
performs only these memory accesses:

    per tuple   a 16-byte record read in sequence; one random line of heads read and written; a
                20-byte ring entry written in sequence; a 20-byte ring entry read
    per match   20 random bytes of the other ring read; 16 bytes written in sequence

`floor_apart_tuples_per_s` is the roofline's speed with independent threads. It shows the speed-up
that the hardware allows for several threads.

Without options the benchmark measures a star of configurations: all kernels over all windows and
both thread counts at the base values, and `chain` also at each other batch (with both thread
counts), match rate and distribution. An option sets the values of its dimension; the given values
are crossed. Configurations that would take longer than `--patience` are skipped and listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import click

from edged.bench import join_peers
from edged.bench.join_pages import ROW_BYTES, measure_pages
from edged.bench.join_report import PAGES, aims, draw_plot, show
from edged.bench.result import conclude, with_progress
from edged.bench.rig import machine
from edged.calibration.join_data import KEYS, BeatFeed, Pool, draw
from edged.calibration.join_measure import MemberDriver, OperatorDriver, measure
from edged.calibration.join_roofline import Effort, Limit
from edged.joins.base import WindowJoin, load_joins
from kernels.cuda import gpu

WINDOWS = (10**4, 10**5, 10**6, 10**7)
BATCHES = (1_000, 10_000, 100_000)
THREADS = (1, 2)
RATES = (0.005, 1.0, 10.0)
PAGES_WINDOW = 100_000
COMPARISONS_PER_S = {"nested_loop": 4e9, "handshake": 1e9}
"""Approximate comparisons per second of members that scan windows."""
BUILDS_PER_S = {"bucket": 3e6}
"""Approximate tuples per second with which slow members fill their windows."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Configuration:
    """A row of the benchmark."""

    kernel: str
    window: int
    batch: int
    threads: int
    match_rate: float
    keys: str


@dataclass(frozen=True)
class Grid:
    """The values of each dimension. An empty dimension has the values of the default star."""

    kernels: tuple[str, ...] = ()
    windows: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    match_rates: tuple[float, ...] = ()
    keys: tuple[str, ...] = ()

    def configurations(self, all_kernels: Sequence[str], full: bool) -> list[Configuration]:
        """The configurations to measure, sorted by window. `full` crosses all values."""
        given = (
            self.kernels,
            self.windows,
            self.batches,
            self.threads,
            self.match_rates,
            self.keys,
        )
        every = (tuple(all_kernels), WINDOWS, BATCHES, THREADS, RATES, KEYS)
        base = (tuple(all_kernels), WINDOWS, BATCHES[1:2], THREADS, RATES[:1], KEYS[:1])
        centre: list[Any] = [
            g or (e if full else b) for g, e, b in zip(given, every, base, strict=True)
        ]
        found = dict.fromkeys(Configuration(*values) for values in product(*centre))
        if "chain" in centre[0] and not full:
            for i in (2, 4, 5):
                if not given[i]:
                    threads = centre[3] if i == 2 else centre[3][:1]
                    star: list[Any] = [("chain",), *centre[1:3], threads, *centre[4:]]
                    star[i] = every[i]
                    found |= dict.fromkeys(Configuration(*values) for values in product(*star))
        return sorted(found, key=lambda c: (
            c.window, c.keys, c.match_rate, c.batch, c.threads, c.kernel))  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The configurations to measure, and the effort for each."""

    grid: Grid
    effort: Effort
    full: bool = False
    operator: bool = False
    peers: bool = False
    pages: bool = True
    patience_s: float = 12.0


def has_gpu() -> bool:
    """Whether kernels of a GPU can run, on hardware or in the enabled CUDA simulator."""
    if not gpu.INSTALLED:
        return False
    return gpu.SIMULATED or bool(gpu.cuda.is_available())


def costs_s(c: Configuration) -> float:
    """Approximate time of a slow member (s): filling its windows, and five beats. 0 for others."""
    compared = 5 * 2 * c.batch * c.window / COMPARISONS_PER_S.get(c.kernel, float("inf"))
    return compared + 2 * c.window / BUILDS_PER_S.get(c.kernel, float("inf"))


class Bench:
    """One run of the benchmark: its rows so far, and the pool and roofline that they share."""

    def __init__(self, plan: Plan, members: dict[str, type[WindowJoin]]) -> None:
        self.plan, self.members = plan, members
        self.rows: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self._pool: tuple[Any, Pool] | None = None
        self._limit: tuple[Configuration, Limit] | None = None
        present = [name for name, member in members.items() if member.device == "cpu" or has_gpu()]
        wanted = plan.grid.configurations(present, plan.full)
        absent = dict.fromkeys(c.kernel for c in wanted if c.kernel not in present)
        wanted = [c for c in wanted if c.kernel in present]
        self.left_out += [f"{name}: this machine has no CUDA GPU" for name in absent]
        self.configurations = [c for c in wanted if costs_s(c) <= plan.patience_s]
        slow = dict.fromkeys((c.kernel, c.window, c.batch) for c in wanted
                             if costs_s(c) > plan.patience_s)  # fmt: skip
        self.left_out += [f"{k} at window {w:,}, batch {b:,}: too slow" for k, w, b in slow]

    def run(self, tick: Callable[[str], None]) -> dict[str, Any]:
        """Measure all configurations; calls `tick` with the text of the next one."""
        for c in self.configurations:
            tick(f"{c.kernel}, window {c.window:,}, batch {c.batch:,}, {c.threads} threads, "
                 f"{c.match_rate:g} matches, {c.keys}")  # fmt: skip
            self._member(c)
        self.close()
        for c in self.peers():
            tick(f"{c.kernel}, window {c.window:,}")
            effort = self.plan.effort
            figures = join_peers.measure_peer(
                c.kernel, c.window, c.match_rate, c.keys, c.threads, effort.repeats
            )
            self._add(c, "cpu", figures)
        if self.plan.pages:
            tick(PAGES)
            c = Configuration(PAGES, PAGES_WINDOW, 0, 1, 1.0, "uniform")
            figures = measure_pages(c.window, self.plan.effort.seconds, self.plan.effort.repeats)
            self._add(c, "cpu", {**figures, "state_bytes_per_tuple": float(ROW_BYTES)})
        return {"machine": machine(), "rows": self.rows, "aims": aims(self.rows),
                "left_out": self.left_out}  # fmt: skip

    def peers(self) -> Iterator[Configuration]:
        """The configurations of DuckDB and Polars, one for all batch sizes."""
        if not self.plan.peers:
            return
        for peer in join_peers.PEERS:
            problem = join_peers.missing(peer)
            if problem:
                self.left_out.append(problem)
                continue
            yield from dict.fromkeys(replace(c, kernel=peer, batch=0) for c in self.configurations)

    def _member(self, c: Configuration) -> None:
        pool = self._draw(c)
        member, effort = self.members[c.kernel], self.plan.effort
        figures = measure(
            lambda: MemberDriver(member, BeatFeed(pool, c.batch), c.threads),
            effort,
            lambda matches: self._limit_of(c, matches),
        )
        if member.device != "cpu":
            figures["fraction_of_limit"] = None
        if self.plan.operator and member.ordered:
            whole = measure(
                lambda: OperatorDriver(c.kernel, BeatFeed(pool, c.batch), c.threads), effort
            )
            figures["exact"] = figures["exact"] and whole["exact"]
            figures |= {f"operator_{name}": whole[name] for name in (
                "tuples_per_s", "cpu_s_per_mtuple", "state_bytes_per_tuple")}  # fmt: skip
        self._add(c, member.device, figures)

    def _limit_of(self, c: Configuration, matches_per_tuple: float) -> Limit:
        """The roofline of a configuration. Consecutive kernels share it."""
        like = replace(c, kernel="")
        if self._limit is None or self._limit[0] != like:
            self.close()
            feed = BeatFeed(self._draw(c), c.batch)
            self._limit = like, Limit(feed, c.threads, matches_per_tuple, self.plan.effort)
        return self._limit[1]

    def close(self) -> None:
        """Release the roofline's threads and memory."""
        if self._limit is not None:
            self._limit[1].close()
            self._limit = None

    def _draw(self, c: Configuration) -> Pool:
        batches = tuple(sorted({other.batch for other in self.configurations}))
        key = (c.window, c.match_rate, c.keys)
        if self._pool is None or self._pool[0] != key:
            self._pool = key, draw(*key, batches)
        return self._pool[1]

    def _add(self, c: Configuration, device: str, figures: dict[str, Any]) -> None:
        unknown = ("state_bytes_per_tuple", "fraction_of_limit", "floor_tuples_per_s",
                   "floor_apart_tuples_per_s", "floor_ahead", "operator_tuples_per_s",
                   "operator_cpu_s_per_mtuple", "operator_state_bytes_per_tuple")  # fmt: skip
        row = {
            "kernel": c.kernel,
            "device": device,
            **asdict(c),
            **dict.fromkeys(unknown),
            **figures,
        }
        row["cpu_s_per_mtuple"] = round(row["cpu_s_per_mtuple"], 6)
        self.rows.append(row)


def _quick(plan: Plan) -> Plan:
    """The plan of a smoke run: small windows, one short section."""
    small = Grid(windows=(2_000,), batches=(500,), match_rates=(1.0,), keys=KEYS)
    given = {name: value or getattr(small, name) for name, value in vars(plan.grid).items()}
    return replace(plan, grid=Grid(**given), effort=Effort(0.02, 1))


@click.command(name="join")
@click.option("--kernel", multiple=True, help="Join kernel.  [default: all]")
@click.option("--window", multiple=True, type=click.IntRange(1), help="Tuples a side.")
@click.option("--batch", multiple=True, type=click.IntRange(1), help="Tuples a side of a beat.")
@click.option("--threads", multiple=True, type=click.IntRange(1, 64), help="Kernel threads.")
@click.option("--match-rate", multiple=True, type=click.FloatRange(1e-4), help="Matches a tuple.")
@click.option("--keys", multiple=True, type=click.Choice(KEYS), help="Distribution of the keys.")
@click.option("--full", is_flag=True, help="Cross all values of all dimensions (over an hour).")
@click.option("--quick", is_flag=True, help="Smoke test of a few seconds; its figures are noise.")
@click.option("--operator", is_flag=True, help="Measure the whole interval join as well.")
@click.option(
    "--peers", is_flag=True, help="Measure the batch joins of DuckDB and Polars on the same data."
)
@click.option("--pages/--no-pages", default=True, help="Measure gathering and writing result rows.")
@click.option("--seconds", default=0.1, show_default=True, help="Least length of a section.")
@click.option("--repeats", default=9, show_default=True, help="Sections; the median counts.")
@click.option(
    "--patience",
    default=12.0,
    show_default=True,
    help="Skip rows that would take more seconds than this.",
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(
    kernel: tuple[str, ...],
    window: tuple[int, ...],
    batch: tuple[int, ...],
    threads: tuple[int, ...],
    match_rate: tuple[float, ...],
    keys: tuple[str, ...],
    full: bool,
    quick: bool,
    operator: bool,
    peers: bool,
    pages: bool,
    seconds: float,
    repeats: int,
    patience: float,
    path: Path | None,
    plot: Path | None,
) -> None:
    """The stream joins: tuples/s of each kernel in steady state, with checked results.

    Without options: all kernels over windows of 10^4 to 10^7 tuples a side, and chain also over
    other batches, match rates and key distributions. This takes about four minutes and 4 GB of
    memory. Options set the values of a dimension; repeat an option for more values. The given
    values are crossed.

    "limit" is the fraction of the roofline's speed. The roofline performs only the unavoidable
    memory accesses, in the same run, with the same footprint and threads. Per tuple: a 16-byte
    record read, one random line of hash heads read and written, a 20-byte ring entry written and
    one read. Per match: 20 random bytes read and 16 written (kernels/cpu/roofline.py).
    """
    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    console = figures_console()
    compile_kernels(quiet=False)
    members = load_joins()
    for name in kernel:
        if name not in members:
            raise click.BadParameter(
                f"{name!r} is not one of {', '.join(members)}", param_hint="--kernel"
            )
    grid = Grid(kernel, window, batch, threads, match_rate, keys)
    plan = Plan(grid, Effort(seconds, repeats), full, operator, peers, pages, patience)
    bench = Bench(_quick(plan) if quick else plan, members)
    total = len(bench.configurations)
    result = with_progress(console, bench.run, total, lambda: len(bench.rows))
    conclude(console, result, path, plot, draw_plot, show)
