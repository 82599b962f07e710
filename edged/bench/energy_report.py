"""Tables and the figure of `edged bench energy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.bench.energy_published import FIGURE3, RATES
from edged.console.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, new_figure, save
from governors.fit_nano import IDLE_W

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = {
    "nested loop": PURPLE, "HELLS": "#8c6d46", "Handshake": ORANGE, "ecoJoin": RED,
    "ecoJoin GPU": "#d98a94", "edged": BLUE, "edged daemon": GREEN, "FB": ORANGE,
    "AB": PURPLE, "AB+FS": RED, "per tuple": ORANGE, "batched": PURPLE,
    "batched, clocks": GREEN, "batched, clocks, sleep, uploads": BLUE,
}  # fmt: skip
"""Colour of each variant and of its published points."""
LOOKS: dict[str, dict[str, Any]] = {
    "AB+FS": {"marker": "s", "markerfacecolor": "none", "linestyle": "--"},
    "batched, clocks": {"marker": "s", "markerfacecolor": "none", "linestyle": "--"},
}
"""Line styles of variants that overlap another line for most of their length."""


def show(result: dict[str, Any], console: Console) -> None:
    """Print all tables and notes: simulated watts, with the published ones in brackets."""
    _grid(result["figure3"], "rate", "Figure 3, Jetson Nano: W (published)", console)
    _grid(result["figure4"], "rate", "Figure 4, Jetson Nano: W", console)
    _grid(result["figure5"], "batch", "Figure 5, 10 k tuples/s a stream: W (published)", console)
    _grid(result["orin_nano"], "rate", "Orin Nano, the whole daemon: W", console)
    for name, bound in result["sustained"].items():
        paper = f", published {bound['published']:,}" if bound["published"] else ""
        console.print(f"{name} keeps up to {bound['tuples_per_s_per_stream']:,} tuples/s a stream,"
                      f" bounded by {bound['bounded_by']}{paper}")  # fmt: skip
    for step in result["orin_saves"]:
        console.print(f"Orin Nano, {step['arm']}: at most {step['most']:.2f} W less than"
                      f" {step['against']}, at {step['at']:,} tuples/s: {step['why']}")  # fmt: skip
    for row in result["sensitivity"]:
        simulated = "does not keep up" if row["watts"] is None else f"{row['watts']:.2f} W"
        assumed = f"ecoJoin with {row['times']} times the assumed {row['assumed']}"
        console.print(
            f"{assumed} at {row['rate']:,} tuples/s: {simulated} ({row['published_watts']:.2f})"
        )
    for claim in result["claims"]:
        mark = "reproduced" if claim["reproduced"] else "[bold]missed[/]"
        text = f"{mark}, simulated {_claimed(claim)}{_own(claim)}"
        console.print(f"{claim['where']}, “{claim['claim']}”: {text}")
    for aim in result["aims"]:
        mark = {True: "met", False: "[bold]missed[/]", None: "reported"}[aim["met"]]
        console.print(f"aim: {aim['aim']}: {mark}; {_values(aim['value'])}")
    for note in result["notes"]:
        console.print(f"note: {note}")
    console.print("all figures are simulated; service times are scaled from another machine")


def _claimed(claim: dict[str, Any]) -> str:
    """The simulated value, in the unit of the published one."""
    here, unit = claim["here"], claim["unit"]
    return _in(unit, here) + (f", at {claim['rate']:,} tuples/s" if "rate" in claim else "")


def _own(claim: dict[str, Any]) -> str:
    return "".join(f"; {name} {_in(claim['unit'], v)}" for name, v in claim["own"].items())


def _in(unit: str, value: float) -> str:
    number = {"%": f"{value:.0%}", "W": f"{value:.1f}"}.get(unit, f"{value:,.0f}")
    return number if unit == "%" else f"{number} {unit}"


def _values(values: dict[Any, Any]) -> str:
    known = {k: v for k, v in values.items() if k != "all" and v is not None}
    return ", ".join(f"{k} {_short(v)}" for k, v in known.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:+.2f}"
    return ", ".join(map(str, value)) or "nowhere" if isinstance(value, list) else str(value)


def _grid(rows: list[dict[str, Any]], x: str, title: str, console: Console) -> None:
    from rich.table import Table

    variants = list(dict.fromkeys(r["variant"] for r in rows))
    table = Table(title=f"{title}: simulated", title_justify="left", padding=(0, 1, 0, 0))
    for name in (x, *variants):
        table.add_column(name, justify="right")
    for at in dict.fromkeys(r[x] for r in rows):
        cells = {r["variant"]: _cell(r) for r in rows if r[x] == at}
        table.add_row(f"{at:,}", *(cells[name] for name in variants))
    console.print(table)


def _cell(row: dict[str, Any]) -> str:
    simulated = "–" if row["watts"] is None else f"{row['watts']:.2f}"
    if row["interval_watts"]:
        simulated = "{:.2f} to {:.2f}".format(*row["interval_watts"])
    paper, error = row["published_watts"], row["error_above_idle"]
    published = "" if paper is None else f" ({paper:.2f})"
    if row["error_watts"] is None or row["interval_watts"]:
        return simulated + published
    return (
        simulated
        + published
        + (f"{row['error_watts']:+.2f} W" if error is None else f"{100 * error:+.0f}%")
    )


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the figure as PNG: the paper's figures 3, 4 and 5, and the arms on the Orin Nano."""
    figure, ((joins, batching), (sizes, arms)) = new_figure(2, 2, 8.6)
    _draw_lines(joins, result["figure3"], "rate")
    for name, watts in FIGURE3.items():
        joins.plot(RATES[: len(watts)], watts, "x", color=COLOURS[name], markersize=6, zorder=3)
    joins.plot([], [], "x", color=GREY, label="published")
    _draw_lines(batching, result["figure4"], "rate")
    batching.axhline(
        result["full_power_watts"], linestyle="--", color=GREY, linewidth=1, label="full power"
    )
    _draw_lines(sizes, result["figure5"], "batch")
    for row in result["figure5"]:
        if row["published_watts"]:
            sizes.plot(row["batch"], row["published_watts"], "x", color=COLOURS["ecoJoin"])
    sizes.plot([], [], "x", color=COLOURS["ecoJoin"], label="published")
    _draw_lines(arms, result["orin_nano"], "rate")
    titles = {
        joins: "Figure 3, Jetson Nano: joins",
        batching: "Figure 4, Jetson Nano: batching (FB, AB) and clocks (FS)",
        sizes: "Figure 5, Jetson Nano: batch size, 10 000 tuples/s",
        arms: "Orin Nano: the whole daemon, four arms",
    }
    for axes, title in titles.items():
        x = "batch (tuples)" if axes is sizes else "rate of each stream (tuples/s)"
        axes.set(xscale="log", xlabel=x, ylabel="module (W, simulated)", title=title,
                 ylim=(0, None))  # fmt: skip
        if axes is not arms:
            axes.axhline(IDLE_W, linestyle=":", color=GREY, linewidth=1, label="idle")
        axes.legend(loc="best", ncols=1)
    joins.set_ylim(0, 14)
    joins.legend(loc="upper right", ncols=2, columnspacing=1.2)
    arms.set_ylim(0, 8)
    arms.legend(loc="lower left")
    save(figure, path)


def _draw_lines(axes: Any, rows: list[dict[str, Any]], x: str) -> None:
    """One line for each variant, or a band for a variant whose power is an interval."""
    for name in dict.fromkeys(r["variant"] for r in rows):
        found = [r for r in rows if r["variant"] == name and r["watts"]]
        at = [r[x] for r in found]
        if found and found[0]["interval_watts"]:
            low, high = zip(*(r["interval_watts"] for r in found), strict=True)
            axes.fill_between(at, low, high, color=COLOURS[name], alpha=0.2, linewidth=0,
                              label=f"{name}, interval")  # fmt: skip
        elif found:
            axes.plot(at, [r["watts"] for r in found], color=COLOURS[name], label=name,
                      **LOOKS.get(name, {"marker": "."}))  # fmt: skip
