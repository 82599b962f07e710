"""Tables and the figure of `edged bench durability`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edged.console.figures import COLOURS, new_figure, save


def show(console: Any, result: dict[str, Any]) -> None:
    """Print both tables and the ratios."""
    from rich.table import Table

    table = Table(title="Durability at full speed", title_justify="left")
    table.add_column("engine")
    table.add_column("durability")
    for heading in ("batch", "M tuples/s", "p50 ms", "p99 ms", "written / input", "recovery MB/s"):
        table.add_column(heading, justify="right")
    for r in result["rows"]:
        table.add_row(
            r["engine"], r["durability"], f"{r['batch']:,}", f"{r['tuples_per_s'] / 1e6:.2f}",
            _figure(r["ms_p50"]), _figure(r["ms_p99"]),
            f"{r['bytes_written_per_input_byte']:.2f}", _figure(r["recovery_mb_per_s"]),
        )  # fmt: skip
    console.print(table)
    table = Table(title="Wear of flash: exactly_once, latency 1 s", title_justify="left")
    for heading in ("tuples/s", "GB a day", "written / input", "years of a 16 GiB eMMC"):
        table.add_column(heading, justify="right")
    for r in result["wear"]:
        table.add_row(
            f"{r['tuples_per_s']:,}", f"{r['gb_a_day']:.2f}",
            f"{r['bytes_written_per_input_byte']:.2f}", _figure(r["emmc_years"]),
        )  # fmt: skip
    console.print(table)
    for batch, ratio in result["exactly_once_of_none"].items():
        console.print(f"  batches of {int(batch):,}: exactly_once has {ratio:.2f} of none's speed")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the figure: speed and bytes written over the batch, a line an engine and durability."""
    figure, axes = new_figure(1, 2, 3.8)
    kinds = dict.fromkeys((r["engine"], r["durability"]) for r in result["rows"])
    for (engine, durability), colour in zip(kinds, COLOURS, strict=False):
        rows = [r for r in result["rows"] if (r["engine"], r["durability"]) == (engine, durability)]
        batches = [r["batch"] for r in rows]
        style = {"marker": "o", "color": colour, "label": f"{engine}, {durability}",
                 "linestyle": "-" if engine == "edged" else "--"}  # fmt: skip
        axes[0].plot(batches, [r["tuples_per_s"] / 1e6 for r in rows], **style)
        axes[1].plot(batches, [r["bytes_written_per_input_byte"] for r in rows], **style)
    axes[0].set(ylabel="M tuples/s", title="Speed")
    axes[1].set(ylabel="bytes written / input byte", title="Bytes written")
    for own in axes:
        own.set(xscale="log", xlabel="tuples a message", ylim=(0, None))
    axes[1].legend(loc=(0.05, 0.06))
    machine = result["machine"]
    figure.suptitle(f"measured on {machine['cores']} cores of {machine['cpu']}", fontsize=10)
    save(figure, path)
