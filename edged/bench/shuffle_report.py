"""The output of `edged bench shuffle`: aims, tables, and a figure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from edged.bench.shuffle_measure import FULL_PAGES
from edged.pages.shuffle_choice import chosen

Row = dict[str, Any]
LIMIT_SHARE, TUPLES_PER_S, SPEEDUP, MEMORY, CHOICE = 0.7, 150e6, 1.7, 1.1, 0.9
_PLACE = ("threads", "partitions", "tuple_bytes", "page_bytes", "keys", "layout", "asked_buffer",
          "asked_morsel", "units_of_cell")  # fmt: skip
_L2 = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")


def cells(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each cell: those that differ in the member alone."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for r in rows:
        found.setdefault(tuple(r[name] for name in _PLACE), []).append(r)
    return found


def best(rows: Iterable[Row]) -> Row:
    """The fastest row."""
    return max(rows, key=lambda r: float(r["tuples_per_s"]))


def chosen_fractions(rows: Sequence[Row]) -> list[tuple[float, Row]]:
    """Speed of the chosen member over the best of its cell, with its row, slowest first."""
    found = []
    for members in cells(rows).values():
        wanted = chosen(*(members[0][n] for n in ("partitions", "tuple_bytes", "threads")))
        own = [r for r in members if r["member"] == wanted]
        if own:
            fraction = own[0]["tuples_per_s"] / best(members)["tuples_per_s"]
            found.append((fraction, own[0]))
    return sorted(found, key=lambda f: f[0])


def l2_bytes() -> int:
    """Size of a core's second cache; 1 MiB where it is not known."""
    with contextlib.suppress(OSError, ValueError):
        return int(_L2.read_text().strip().rstrip("K")) << 10
    return 1 << 20


def shuffle_aims(rows: Sequence[Row]) -> list[Row]:
    """Each aim with the worst and the best value of the cells that it covers."""
    tops = [best(members) for members in cells(rows).values()]
    large = [r for r in tops if r["tuple_bytes"] not in (4, 16)
             and 16 <= r["partitions"] <= 1024 and r["threads"] <= 2]  # fmt: skip
    small = [r for r in tops if r["tuple_bytes"] == 16 and r["threads"] == 1
             and r["partitions"] * r["buffer_bytes"] <= l2_bytes()]  # fmt: skip
    filled = [r for r in tops if r["pages_of_a_partition"] >= FULL_PAGES]
    found = [
        _aim("best member: share of the copy's speed", LIMIT_SHARE,
             [r["fraction_of_memcpy"] for r in large]),
        _aim("16 B, one thread, buffers in L2: M tuples/s", TUPLES_PER_S / 1e6,
             [r["tuples_per_s"] / 1e6 for r in small]),
        _aim("best member: 2 threads over one", SPEEDUP, _speedups(tops)),
        _aim("best member: memory over the least, four pages full", MEMORY,
             [r["memory_ratio"] for r in filled], below=True),
        _aim("chosen member over the best", CHOICE, [f for f, _ in chosen_fractions(rows)]),
    ]  # fmt: skip
    return [a for a in found if a["worst"] is not None]


def _speedups(tops: Sequence[Row]) -> list[float]:
    def place(r: Row) -> tuple[Any, ...]:
        return tuple(r[name] for name in _PLACE[1:])

    one = {place(r): r["tuples_per_s"] for r in tops if r["threads"] == 1}
    return [r["tuples_per_s"] / one[place(r)] for r in tops
            if r["threads"] == 2 and place(r) in one]  # fmt: skip


def _aim(name: str, target: float, values: Sequence[float], below: bool = False) -> Row:
    ends = (min(values), max(values)) if values else (None, None)
    worst, most = ends[::-1] if below else ends
    met = worst is not None and (worst < target if below else worst >= target)
    meeting = sum(v < target if below else v >= target for v in values)
    return {"aim": name, "target": target, "worst": worst, "best": most, "met": met,
            "cells": len(values), "cells_met": meeting}  # fmt: skip


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("member", lambda r: r["member"]),
    ("layout", lambda r: r["layout"] + (" zipf" if r["keys"] == "zipf" else "")),
    ("thr", lambda r: str(r["threads"])),
    ("parts", lambda r: str(r["partitions"])),
    ("B", lambda r: str(r["tuple_bytes"] or "any")),
    ("page", lambda r: _size(r["page_bytes"])),
    ("buf", lambda r: _size(r["buffer_bytes"])),
    ("M/s", lambda r: f"{r['tuples_per_s'] / 1e6:.3g}"),
    ("GB/s", lambda r: f"{r['gb_per_s']:.3g}"),
    ("copy", lambda r: f"{r['fraction_of_memcpy']:.2f}"),
    ("p50", lambda r: f"{r['ms_p50']:.3g}"),
    ("p99", lambda r: f"{r['ms_p99']:.3g}"),
    ("mem", lambda r: f"{r['memory_ratio']:.2f}"),
    ("pages", lambda r: f"{r['pages_ratio']:.2f}"),
    ("cas", lambda r: str(r["cas_retries"])),
    ("wait", lambda r: str(r["lock_waits"])),
    ("cs/s", lambda r: str(r["context_switches_per_s"])),
    ("exact", lambda r: "yes" if r["exact"] else "[red]NO[/]"),
)
_LEGEND = (
    "M/s: million tuples a second; GB/s: bytes written into pages; copy: share of the copy's "
    "speed; p50, p99: ms from a batch to the readable page of its tuples; mem, pages: memory and "
    "pages over the least; cas, wait: exchanges tried again, and yields while waiting; cs/s: "
    "context switches a second"
)


def show_shuffle(console: Any, result: Row) -> None:
    """Print rows, ablations, peers and aims."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    def table(title: str, headings: Iterable[str], lines: Iterable[Sequence[str]]) -> None:
        made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
        for i, heading in enumerate(headings):
            made.add_column(heading, justify="right" if i else "left", no_wrap=True)
        for line in lines:
            made.add_row(*line)
        if made.row_count:
            console.print(made)

    table("The shuffle family, steady state", [n for n, _ in _COLUMNS],
          [[value(r) for _, value in _COLUMNS] for r in result["rows"]])  # fmt: skip
    if result["rows"]:
        console.print(_LEGEND, style="dim")
    table("What each optimisation is worth: M tuples/s", ["", "with", "without", "ratio"], [
        [a["name"], f"{a['tuples_per_s_with'] / 1e6:.1f}",
         f"{a['tuples_per_s_without'] / 1e6:.1f}",
         f"{a['tuples_per_s_with'] / a['tuples_per_s_without']:.2f}"]
        for a in result["ablations"]])  # fmt: skip
    table("Rows of 64 bytes, 64 partitions", ["", "M/s", "GB/s"], [
        [p["name"], f"{p['tuples_per_s'] / 1e6:.2f}", f"{p['gb_per_s']:.2f}"]
        for p in result["peers"]])  # fmt: skip
    table("Aims, over all cells that they cover", ["", "aim", "worst", "best", "cells", "met"], [
        [a["aim"], *(f"{a[n]:.3g}" for n in ("target", "worst", "best")),
         f"{a['cells_met']}/{a['cells']}", "yes" if a["met"] else "no"]
        for a in result["aims"]])  # fmt: skip
    console.print(f"checksum beside: {result['checksum_gb_per_s']:.1f} GB/s on one core")
    for line in result["left_out"]:
        console.print(f"not measured: {line}", markup=False)


def _size(count: int) -> str:
    return f"{count >> 20}M" if count >= 1 << 20 else f"{count >> 10}K" if count >= 1024 else (
        str(count))  # fmt: skip
