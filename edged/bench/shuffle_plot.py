"""The figure of `edged bench shuffle`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edged.bench.shuffle_grid import ShuffleCell
from edged.bench.shuffle_report import LIMIT_SHARE, best, cells
from edged.console.figures import BLUE, COLOURS, GREY, RED, new_figure, save

Row = dict[str, Any]
_SHOWN = ("merge", "ranges", "on_demand_buffered/lock_minimal", "units/lock_free",
          "hybrid_buffered", "radix_buffered")  # fmt: skip
_BASE = ShuffleCell()


def draw_shuffle(result: Row, path: Path) -> None:
    """Write the figure of a result as PNG: what it has no rows for stays empty."""
    figure, axes = new_figure(3, 2, 12.0)
    rows = result["rows"]
    _over_partitions(axes[0][0], rows, 1)
    _over_partitions(axes[0][1], rows, 2)
    _over_sizes(axes[1][0], rows)
    _memory(axes[1][1], rows)
    _ablations(axes[2][0], result["ablations"])
    _peers(axes[2][1], result["peers"])
    machine = result["machine"]
    figure.suptitle(f"measured on {machine['cores']} cores of {machine['cpu']}", fontsize=10)
    save(figure, path)


def _plain(r: Row, free: str, **fixed: Any) -> bool:
    """Whether a row has the values of the base, and those of `fixed`, but in the field `free`."""
    wanted = {
        "threads": _BASE.threads, "partitions": _BASE.partitions, "keys": _BASE.keys,
        "tuple_bytes": _BASE.tuple_bytes, "page_bytes": _BASE.page_bytes, "layout": _BASE.layout,
        "asked_buffer": 0, "asked_morsel": 0, "units_of_cell": 1, **fixed,
    }  # fmt: skip
    return all(r[name] == value for name, value in wanted.items() if name != free)


def _line(axes: Any, rows: Sequence[Row], free: str, value: Callable[[Row], float],
          **style: Any) -> None:  # fmt: skip
    places = sorted((r[free], value(r)) for r in rows)
    if places:
        axes.plot([p for p, _ in places], [v for _, v in places], marker="o", lw=1.4, **style)


def _over_partitions(axes: Any, rows: Sequence[Row], threads: int) -> None:
    mine = [r for r in rows if _plain(r, "partitions", threads=threads)]
    for colour, member in zip(COLOURS, _SHOWN, strict=True):
        _line(axes, [r for r in mine if r["member"] == member], "partitions",
              lambda r: r["gb_per_s"], color=colour, label=member)  # fmt: skip
    one = [r for r in mine if r["member"] == "on_demand/lock_minimal"]
    _line(axes, one, "partitions", lambda r: r["gb_per_s"], color=GREY, ls=":",
          label="on_demand/lock_minimal")  # fmt: skip
    limits = {r["partitions"]: r for r in mine}
    _line(axes, list(limits.values()), "partitions", lambda r: r["copy_gb_per_s"], color="#222222",
          ls="--", label="copy (the limit)")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set(xlabel="partitions", ylabel="GB/s", ylim=(0, None),
             title=f"Tuples of 64 B, {threads} thread{'s' * (threads > 1)}")  # fmt: skip
    if threads == 1 and mine:
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _over_sizes(axes: Any, rows: Sequence[Row]) -> None:
    """The best member's share of the copy's speed by bytes of a tuple."""
    shapes = (("slotted", "uniform"), ("dense", "uniform"), ("slotted", "zipf"))
    kinds = [(t, *shape) for shape in shapes for t in (1, 2)]
    for i, (threads, layout, keys) in enumerate(kinds):
        mine = [r for r in rows
                if _plain(r, "tuple_bytes", threads=threads, layout=layout, keys=keys)]  # fmt: skip
        tops = [best(members) for members in cells(mine).values()]
        places = [{**r, "tuple_bytes": r["tuple_bytes"] or 62} for r in tops]
        _line(axes, places, "tuple_bytes", lambda r: r["fraction_of_memcpy"],
              color=COLOURS[i // 2], ls="-" if threads == 1 else ":",
              label=f"{layout}, {keys}, {threads} thr")  # fmt: skip
    axes.axhline(LIMIT_SHARE, color=GREY, lw=1, ls="--")
    axes.set_xscale("log", base=4)
    axes.set(xlabel="bytes of a tuple (any size: 62)", ylim=(0, 1.05),
             title="Best member: share of the copy (aim: dashed)")  # fmt: skip
    if axes.lines[1:]:
        axes.legend(fontsize=8)


def _memory(axes: Any, rows: Sequence[Row]) -> None:
    mine = [r for r in rows if _plain(r, "partitions", threads=2, tuple_bytes=16)]
    kinds = sorted({r["partitions"] for r in mine})
    members = list(dict.fromkeys(r["member"] for r in mine))
    for i, partitions in enumerate(kinds):
        values = {r["member"]: r["memory_ratio"] for r in mine if r["partitions"] == partitions}
        axes.barh([j + 0.4 * (i / max(1, len(kinds)) - 0.25) for j in range(len(members))],
                  [values.get(m, 0) for m in members], height=0.8 / max(1, len(kinds)) / 2 + 0.05,
                  color=COLOURS[i % len(COLOURS)], label=f"{partitions} partitions")  # fmt: skip
    axes.set_yticks(range(len(members)), members, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="memory over the least number of pages", xlim=(0, None),
             title="Memory, tuples of 16 B, 2 threads")  # fmt: skip
    if kinds:
        axes.legend(fontsize=8)


def _ablations(axes: Any, found: Sequence[Row]) -> None:
    found = found[:8]
    names = [a["name"] for a in found]
    ratios = [a["tuples_per_s_with"] / a["tuples_per_s_without"] for a in found]
    axes.barh(names, [r - 1 for r in ratios], left=1,
              color=[BLUE if r >= 1 else RED for r in ratios])  # fmt: skip
    for name, ratio in zip(names, ratios, strict=True):
        axes.text(max(1, ratio), name, f" {ratio:.2f}", va="center", fontsize=9)
    axes.axvline(1, color=GREY, lw=1)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set(xlabel="tuples/s with it over without", title="What each optimisation is worth")


def _peers(axes: Any, peers: Sequence[Row]) -> None:
    names, speeds = [p["name"] for p in peers], [p["tuples_per_s"] / 1e6 for p in peers]
    axes.barh(names, speeds, color=BLUE)
    for name, speed in zip(names, speeds, strict=True):
        axes.text(speed, name, f" {speed:.1f}", va="center", fontsize=9)
    axes.margins(x=0.2)
    axes.invert_yaxis()
    if peers:
        axes.set_xscale("log")
    axes.set(xlabel="M tuples/s", title="Rows of 64 B into 64 partitions")
