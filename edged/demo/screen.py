"""The live display of the demo, and the tables at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edged.demo.truth import TableVerdict


@dataclass
class Scene:
    """The state of the display. The story updates it, `render` draws it."""

    tuples_total: int
    daemon: dict[str, Any] = field(default_factory=dict)
    pages: int = 0
    spark_batches: int = 0
    spark_rows: int = 0
    seconds: float = 0.0
    log: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Add a line to the log, with the elapsed time."""
        self.log.append(f"[dim]{self.seconds:5.1f} s[/]  {line}")

    @property
    def tuples(self) -> int:
        """Tuples that the daemon has processed."""
        jobs = self.daemon.get("jobs", {}).values()
        return sum(s["rows"] for j in jobs for s in j["streams"].values())

    @property
    def late(self) -> int:
        """Late rows among them; 0 in a correct run."""
        jobs = self.daemon.get("jobs", {}).values()
        return sum(s["late"] for j in jobs for s in j["streams"].values())

    @property
    def matches(self) -> int:
        """Pairs that the join has found."""
        jobs = self.daemon.get("jobs", {}).values()
        return sum(int(o.get("matches", 0)) for j in jobs for o in j["operators"].values())

    def _energy(self) -> list[RenderableType]:
        """Power, race clock, wakeups and joules per million tuples, with their provenance.

        Current values, with the mean since the daemon's start in brackets.
        """
        energy = self.daemon.get("energy")
        if energy is None:
            return []
        watts, pair, wakes = energy["watts"], energy["joules_per_mtuple"], energy["wakeups_per_s"]
        raced = {int(hz): s for hz, s in energy["race_clock_s"].items()}
        mhz = sum(hz * s for hz, s in raced.items()) / max(1e-9, sum(raced.values())) / 1e6
        known = watts if watts is not None else energy["input"]
        board = energy["board"]["name"]
        source = "not known" if known is None else known["provenance"]
        figures = Table.grid(padding=(0, 2))
        for _ in range(5):
            figures.add_column(justify="right")
        headings = ("power (mean)", "races at", "wakeups/s", "J per million tuples", board)
        figures.add_row(*(f"[dim]{heading}" for heading in headings))
        above = None if pair is None else pair["above_idle"]
        figures.add_row(
            ("?" if watts is None else f"[bold]{watts['input']:.2f}[/] W") + _mean_watts(energy),
            f"[bold]{mhz:.0f}[/] MHz" if raced else "",
            ("?" if wakes is None else f"[bold]{wakes:.1f}[/]") + _mean_wakes(energy),
            "" if pair is None or above is None
            else f"[bold]{above:.4g}[/] above idle, [bold]{pair['input']:.4g}[/] total",
            f"[yellow]{source}[/]",
        )  # fmt: skip
        return [Text(), figures]

    def _host(self) -> str:
        """Latency is this host's, also where the board is simulated."""
        told = self.daemon.get("energy")
        return " (this host)" if told is not None and told["board"]["simulated"] else ""

    def render(self) -> RenderableType:
        """The panel with the current state."""
        figures = Table.grid(padding=(0, 3))
        for _ in range(5):
            figures.add_column(justify="right")
        store = self.daemon.get("store", {})
        figures.add_row("[dim]tuples in", "[dim]matches", "[dim]pages landed", "[dim]Spark rows",
                        f"[dim]latency{self._host()} p50 / p99")  # fmt: skip
        figures.add_row(
            f"[bold]{self.tuples:,}[/]",
            f"[bold]{self.matches:,}[/]",
            f"[bold]{self.pages:,}[/] [dim](+{store.get('backlog_pages', 0)})",
            f"[bold]{self.spark_rows:,}[/] [dim]in {self.spark_batches} batches",
            f"[bold]{self.daemon.get('latency_ms_p50') or 0:.0f}[/] / "
            f"[bold]{self.daemon.get('latency_ms_p99') or 0:.0f}[/] ms",
        )
        energy = self._energy()
        bar = ProgressBar(total=self.tuples_total, completed=self.tuples, width=72)
        lines = [Text.from_markup(line) for line in self.log[-8:]]
        title = "edged: a wind farm's two years, joined on the edge, aggregated in Spark"
        return Panel(
            Group(figures, *energy, Text(), bar, Text(), *lines), title=title, title_align="left"
        )


def _mean_watts(energy: dict[str, Any]) -> str:
    """The mean power over the time covered by readings, in brackets; empty without one."""
    whole = energy["input"]
    read_us = 0 if whole is None else whole["until_us"] - whole["since_us"] - whole["gap_us"]
    return f" ({1e6 * whole['joules'] / read_us:.2f})" if read_us > 0 else ""


def _mean_wakes(energy: dict[str, Any]) -> str:
    """The mean wakeups per second, in brackets; empty without readings."""
    slept, whole = energy["sleep_s"], energy["input"]
    span_us = 0 if whole is None else whole["until_us"] - whole["since_us"]
    return f" ({1e6 * slept['wakeups'] / span_us:.1f})" if slept and span_us > 0 else ""


def show_tables(console: Console, curve: pa.Table, months: list[tuple[str, float, float]]) -> None:
    """Print some rows of the power curve, and each month's energy with that of the meter."""
    table = Table(title="Power curve (every fourth bin)", title_justify="left")
    for heading in ("turbine", "wind m/s", "n", "mean kW", "stddev", "min", "max"):
        table.add_column(heading, justify="left" if heading == "turbine" else "right")
    rows = sorted(
        (r for r in curve.to_pylist() if r["bin_m_s"] is not None),
        key=lambda r: (r["turbine"], r["bin_m_s"]),
    )
    for r in rows:
        if r["bin_m_s"] % 2 == 0 and 4 <= r["bin_m_s"] <= 16:
            numbers = (r["mean_kw"], r["stddev_kw"] or 0.0, r["min_kw"], r["max_kw"])
            table.add_row(r["turbine"], f"{r['bin_m_s']:.1f}", f"{r['n']:,}",
                          *(f"{x:,.1f}" for x in numbers))  # fmt: skip
    console.print(table)
    energy = Table(title="Energy, turbines and plant's meter", title_justify="left")
    for heading in ("month", "turbines MWh", "meter MWh", "difference"):
        energy.add_column(heading, justify="left" if heading == "month" else "right")
    for month, turbines, meter in months:
        energy.add_row(month, f"{turbines / 1000:,.1f}", f"{meter / 1000:,.1f}",
                       f"{100 * (turbines / meter - 1):+.2f} %")  # fmt: skip
    console.print(energy)


def show_verdicts(console: Console, verdicts: list[TableVerdict]) -> None:
    """Print one line for each table, and its first differences if there are any."""
    for v in verdicts:
        if v.identical:
            console.print(
                f"[green]✔[/] {v.table}: {v.rows} rows, identical to DuckDB's result on the raw "
                f"files: equal counts, numbers within {v.worst:.1e} relative"
            )
        else:
            console.print(f"[red]✘[/] {v.table}: {len(v.differences)} differences from DuckDB")
            for line in v.differences[:10]:
                console.print(f"    {line}")
