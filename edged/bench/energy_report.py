"""Tables and pictures of `edged bench energy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.bench.energy_published import FIGURE3, IDLE_W, RATES

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = {
    "nested loop": "#8a5cb8", "HELLS": "#8c6d46", "Handshake": "#e0a030", "ecoJoin": "#d1495b",
    "ecoJoin GPU": "#d98a94", "edged": "#0b6e99", "edged daemon": "#2a9d5c", "FB": "#e0a030",
    "AB": "#8a5cb8", "AB+FS": "#d1495b", "per tuple": "#e0a030", "batched": "#8a5cb8",
    "batched, clocks": "#2a9d5c", "batched, clocks, sleep, uploads": "#0b6e99",
}  # fmt: skip


def show(result: dict[str, Any], console: Console) -> None:
    """Print all: W here, and what was published in brackets."""
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
        here = "does not keep up" if row["watts"] is None else f"{row['watts']:.2f} W"
        assumed = f"ecoJoin with {row['times']} times the {row['assumed']}"
        console.print(
            f"{assumed} at {row['rate']:,} tuples/s: {here} ({row['published_watts']:.2f})"
        )
    for claim in result["claims"]:
        console.print(f"figure 4, “{claim['claim']}”: here {_claimed(claim)}")
    for aim in result["aims"]:
        mark = {True: "met", False: "[bold]missed[/]", None: "told"}[aim["met"]]
        console.print(f"aim: {aim['aim']}: {mark}; {_values(aim['value'])}")
    for note in result["notes"]:
        console.print(f"note: {note}")
    console.print("all figures are simulated; service times are scaled from another machine's")


def _claimed(claim: dict[str, Any]) -> str:
    """What came out, in the unit of what was published."""
    here, unit = claim["here"], claim["unit"]
    told = {"%": f"{here:.0%}", "W": f"{here:.1f} W", "tuples/s": f"{here:,} tuples/s"}[unit]
    return told + (f", at {claim['rate']:,} tuples/s" if "rate" in claim else "")


def _values(values: dict[Any, Any]) -> str:
    told = {k: v for k, v in values.items() if k != "all" and v is not None}
    return ", ".join(f"{k} {_short(v)}" for k, v in told.items())


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
    here = "–" if row["watts"] is None else f"{row['watts']:.2f}"
    if row["interval_watts"]:
        here = "{:.2f} to {:.2f}".format(*row["interval_watts"])
    paper, error = row["published_watts"], row["error_above_idle"]
    told = "" if paper is None else f" ({paper:.2f})"
    if error is None or row["interval_watts"]:
        return here + told
    return here + told + f"{100 * error:+.0f}%"


def draw(result: dict[str, Any], path: Path) -> None:
    """Four pictures: the paper's three figures and the Orin Nano's arms."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    top, bottom = axes
    _lines(top[0], result["figure3"], "rate")
    for name, watts in FIGURE3.items():
        top[0].plot(RATES[: len(watts)], watts, "x", color=COLOURS[name], markersize=6, zorder=3)
    _lines(top[1], result["figure4"], "rate")
    _lines(bottom[0], result["figure5"], "batch")
    for row in result["figure5"]:
        if row["published_watts"]:
            bottom[0].plot(row["batch"], row["published_watts"], "x", color=COLOURS["ecoJoin"])
    _lines(bottom[1], result["orin_nano"], "rate")
    titles = (
        "Figure 3: joins (lines and bands simulated, crosses published)",
        "Figure 4: batches and clocks",
        "Figure 5: batch size, 10 k tuples/s a stream",
        "Orin Nano: four arms, whole daemon",
    )
    for each, title in zip((*top, *bottom), titles, strict=True):
        label = "tuples a batch" if "batch size" in title else "tuples/s of each stream"
        each.set(xscale="log", xlabel=label, ylabel="W, whole input, simulated", title=title,
                 ylim=(0, None))  # fmt: skip
        if "Orin" not in title:
            each.axhline(IDLE_W, linestyle=":", color="#6b7280", linewidth=1)
        each.legend(frameon=False, fontsize=8, ncols=2 if "joins" in title else 1)
    top[0].set_ylim(0, 11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _lines(axes: Any, rows: list[dict[str, Any]], x: str) -> None:
    """A line a variant, a band where only an interval is known."""
    for name in dict.fromkeys(r["variant"] for r in rows):
        found = [r for r in rows if r["variant"] == name and r["watts"]]
        at = [r[x] for r in found]
        if found and found[0]["interval_watts"]:
            low, high = zip(*(r["interval_watts"] for r in found), strict=True)
            axes.fill_between(at, low, high, color=COLOURS[name], alpha=0.2, linewidth=0,
                              label=f"{name}, interval")  # fmt: skip
        elif found:
            axes.plot(at, [r["watts"] for r in found], marker=".", color=COLOURS[name], label=name)
