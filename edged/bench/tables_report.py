"""What `edged bench tables` prints and draws."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.console.figures import BLUE, ORANGE, new_figure, save

if TYPE_CHECKING:
    from rich.console import Console


def show_tables(console: Console, result: dict[str, Any]) -> None:
    """Print the figures."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if "incremental" in result:
        table = Table("member", "M changes/CPU-s", "slowest beat (ms)", "equal")
        for row in result["incremental"]:
            table.add_row(row["member"], f"{row['changes_per_cpu_s'] / 1e6:.2f}",
                          _optional(row["beat_ms_max"]), str(row["equal"]))  # fmt: skip
        console.print(table)
    if "population" in result:
        table = Table("member", "ratio", "arm", "CPU s", "wall s", "rows merged", "later CPU s",
                      "equal")  # fmt: skip
        for row in result["population"]:
            table.add_row(
                row["member"], f"{row['ratio']}:1", row["arm"], f"{row['cpu_s']:.2f}",
                f"{row['wall_s']:.2f}", f"{row['merged_rows']}", f"{row['later_cpu_s']:.2f}",
                str(row["equal"]),
            )  # fmt: skip
        console.print(table)
    if result.get("query4"):
        limits = {row["member"]: row["limit_bytes"] for row in result["query4"]}
        title = ", ".join(_limited(member, limit) for member, limit in limits.items())
        table = Table("query 4", "arm", "CPU\ns", "probe", "write", "merge", "wall\ns",
                      "later\nCPU s", "later\nwall s", "J", "GB\nwritten", "equal",
                      title=title, title_justify="left", box=SIMPLE_HEAD,
                      padding=(0, 0))  # fmt: skip
        for row in result["query4"]:
            cpu, written = row["cpu"], row["counters"].get("written_bytes", 0.0)
            table.add_row(
                row["member"], row["arm"], f"{row['cpu_s']:.2f}", f"{cpu['probe']:.2f}",
                f"{cpu['write']:.2f}", f"{cpu['merge']:.2f}", f"{row['wall_s']:.2f}",
                f"{row['later_cpu_s']:.2f}", f"{row['later_wall_s']:.1f}",
                f"{row['joules']:.1f}", f"{written / 1e9:.2f}", str(row["equal"]),
            )  # fmt: skip
        console.print(table)
    for row in result.get("bulk", []):
        console.print(f"bulk load, {row['member']}: {row['rows_per_cpu_s'] / 1e6:.2f} M rows/CPU-s,"
                      f" {row['fraction_of_disk']:.2f} of the disk's writing")  # fmt: skip
    if "cold" in result:
        cold = result["cold"]
        console.print(f"cold probes: {cold['ratio_to_disk']:.2f} x the disk's parallel reads, "
                      f"resident within promise: {cold['resident_within_promise']}")  # fmt: skip
    if "enrich" in result:
        found = result["enrich"]
        console.print(f"enrichment: {found['tuples_per_s'] / 1e6:.2f} M rows/s end to end, "
                      f"exact: {found['exact']}")  # fmt: skip
    if result.get("memtables"):
        table = Table("large side", "small side", "ratio", "CPU s", "large: write", "probe",
                      "small: write", "probe", "later: large", "small")  # fmt: skip
        for row in result["memtables"]:
            names = ("cpu_s", "large_write_s", "large_probe_s", "small_write_s", "small_probe_s",
                     "later_large_s", "later_small_s")  # fmt: skip
            table.add_row(row["large"], row["small"], f"{row['ratio']}:1",
                          *(f"{row[name]:.2f}" for name in names))  # fmt: skip
        console.print(table)
    if "merging" in result:
        console.print(f"p99 of beats with merges: {result['merging']['p99_ratio']:.2f} x without")
    for text in result["left_out"]:
        console.print(f"left out: {text}")


def _limited(member: str, limit: int | None) -> str:
    """The member's memory limit, in words."""
    return f"{member} {'without a limit' if limit is None else f'in {limit / 1e6:.0f} MB'}"


def _optional(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def draw_tables(result: dict[str, Any], path: Path) -> None:
    """Write the figure as PNG."""
    figure, (left, right) = new_figure(1, 2, 4.2)
    rows = result.get("incremental", [])
    names = [row["member"] for row in rows]
    left.barh(names, [row["changes_per_cpu_s"] / 1e6 for row in rows], color=BLUE)
    left.set(xlabel="M changes per CPU second", title="Incremental join")
    left.invert_yaxis()
    found = [row for row in result.get("population", []) if row["member"] == "runs"]
    labels = [f"{row['arm']} {row['ratio']}:1" for row in found]
    cpu_s = [row["cpu_s"] for row in found]
    right.barh(labels, cpu_s, color=BLUE, label="population")
    later = [row["later_cpu_s"] for row in found]
    right.barh(labels, later, left=cpu_s, color=ORANGE, label="later beats")
    right.set(xlabel="CPU seconds", title="Population under each rule, and later beats")
    right.invert_yaxis()
    if found:
        right.legend()
    save(figure, path)
