"""The output of `edged bench join`: aims, a table, and a figure.

An aim compares rows of one run. Several rows contribute to it, so it has a worst and a best value.
It is met if the worst value reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from edged.calibration.join_data import KEYS

COLOURS = ("#0b6e99", "#d1495b", "#2a9d5c", "#8a5cb8", "#e0a030", "#6b7280")
Row = dict[str, Any]

LOW_RATE = 0.01
CHAIN_TUPLES_PER_S = {10**4: 150e6, 10**5: 120e6, 10**6: 50e6, 10**7: 35e6}
"""Aim of one core by window, at up to LOW_RATE matches a tuple."""
LIMIT, BUCKET, AUTHORS, PAGES_PER_S = 0.7, 10.0, 20.0, 100e6
SPEEDUP_LARGE, SPEEDUP_SMALL, LARGE = 1.8, 1.4, 10**6
AUTHORS_TUPLES_PER_S = {
    (10**4, 1): 11.5e6, (10**5, 1): 8.1e6, (10**6, 1): 2.2e6, (10**7, 1): 1.6e6,
    (10**4, 2): 17.5e6, (10**5, 2): 16.8e6, (10**6, 2): 3.9e6, (10**7, 2): 3.6e6,
}  # fmt: skip
"""Tuples/s of the authors' ecoJoin (C++, hash join on the CPU) by window and threads, at its best
batch size, on a 2-core x86-64 machine. Its results with 2 threads are wrong."""
PAGES = "gather+pages"
SPEED, FLOOR = "tuples_per_s", "floor_apart_tuples_per_s"
_LEGEND = (
    "M/s: million tuples a second of both streams, kernel alone; whole: the interval join; "
    "limit: fraction of the roofline's speed; bytes: state of a tuple in the window; thr: threads; "
    "rate: matches a tuple"
)


def aims(rows: Sequence[Row]) -> list[Row]:
    """The aims that these rows contribute to, with their worst and best values."""
    chain = [r for r in rows if r["kernel"] == "chain"]
    low = [r for r in chain if r["match_rate"] <= LOW_RATE and r["keys"] == "uniform"]
    single = [r for r in low if r["threads"] == 1]
    large = [r for r in single if r["window"] >= LARGE]
    found = [
        _aim(f"chain, window {w:,}, a core: M tuples/s", target / 1e6,
             [r["tuples_per_s"] / 1e6 for r in single if r["window"] == w])
        for w, target in CHAIN_TUPLES_PER_S.items()
    ]  # fmt: skip
    limits = [r["fraction_of_limit"] for r in chain if r["fraction_of_limit"] is not None]
    found.append(_aim("chain: fraction of the limit", LIMIT, limits))
    for name, target, part in (
        ("from 10^6 on", SPEEDUP_LARGE, [r for r in chain if r["window"] >= LARGE]),
        ("below 10^6", SPEEDUP_SMALL, [r for r in chain if r["window"] < LARGE]),
    ):
        two = [r for r in part if r["threads"] == 2]
        speedups = _ratios(two, [{**r, "threads": 2} for r in part if r["threads"] == 1])
        found.append(_aim(f"chain, 2 threads against 1, {name}", target, speedups))
        hardware = _ratios(two, [{**r, "threads": 2} for r in part if r["threads"] == 1], FLOOR)
        found.append(_aim(f"the roofline, 2 independent threads, {name}", target, hardware))
    found.append(_aim("chain against bucket, a core, from 10^6 on", BUCKET,
                      _ratios(large, [r for r in rows if r["kernel"] == "bucket"])))  # fmt: skip
    authors = [
        r["tuples_per_s"] / AUTHORS_TUPLES_PER_S[r["window"], 1]
        for r in large
        if (r["window"], 1) in AUTHORS_TUPLES_PER_S
    ]
    found.append(_aim("chain against the authors' C++, a core, from 10^6 on", AUTHORS, authors))
    ahead = _ratios(chain, [r for r in rows if r["kernel"] == "duckdb"], batch=False)
    found.append(_aim("chain against DuckDB's batch join", 1.0, ahead))
    written = [r["tuples_per_s"] / 1e6 for r in rows if r["kernel"] == PAGES]
    found.append(_aim("gathered and written into pages: M matches/s a core", PAGES_PER_S / 1e6,
                      written))  # fmt: skip
    return [aim for aim in found if aim["worst"] is not None]


def _aim(name: str, target: float, values: Sequence[float]) -> Row:
    worst, best = (min(values), max(values)) if values else (None, None)
    return {"aim": name, "target": target, "worst": worst, "best": best,
            "met": worst is not None and worst >= target}  # fmt: skip


def _ratios(
    rows: Iterable[Row], others: Sequence[Row], speed: str = SPEED, batch: bool = True
) -> list[float]:
    """Ratios of the field `speed`: each of `rows` over the row of `others` with its configuration.

    Rows without a counterpart are skipped. `batch` is false if the configuration excludes the batch
    size.
    """
    names = ["window", "threads", "match_rate", "keys", *(["batch"] if batch else [])]
    slower = {tuple(o[n] for n in names): o[speed] for o in others if o.get(speed)}
    places = [(r[speed], tuple(r[n] for n in names)) for r in rows if r.get(speed)]
    return [faster / slower[place] for faster, place in places if place in slower]


def show(console: Any, result: Row) -> None:
    """Print the table of rows, the table of aims, and the skipped configurations."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("kernel", lambda r: r["kernel"]),
        ("keys", lambda r: r["keys"]),
        ("window", lambda r: _short(r["window"])),
        ("batch", lambda r: _short(r["batch"])),
        ("thr", lambda r: str(r["threads"])),
        ("rate", lambda r: f"{r['match_rate']:g}"),
        ("M/s", lambda r: _millions(r["tuples_per_s"])),
        ("aim", lambda r: _millions(_target(r))),
        ("limit", lambda r: _number(r["fraction_of_limit"], ".2f")),
        ("CPU-s/M", lambda r: f"{r['cpu_s_per_mtuple']:.4f}"),
        ("bytes", lambda r: _number(r["state_bytes_per_tuple"], ".0f")),
        ("exact", lambda r: "yes" if r["exact"] else "[red]NO[/]"),
    ]
    if any(r["operator_tuples_per_s"] is not None for r in result["rows"]):
        columns.insert(8, ("whole", lambda r: _millions(r["operator_tuples_per_s"])))
    table = Table(title="The join family, steady state", title_justify="left", box=SIMPLE_HEAD,
                  padding=(0, 0))  # fmt: skip
    for i, (heading, _) in enumerate(columns):
        table.add_column(heading, justify="left" if i < 2 else "right", no_wrap=True)
    for r in result["rows"]:
        table.add_row(*(value(r) for _, value in columns))
    console.print(table)
    console.print(_LEGEND, style="dim")
    found = Table(title="Aims, over all rows that contribute to them", title_justify="left",
                  box=SIMPLE_HEAD)  # fmt: skip
    found.add_column("")
    for heading in ("aim", "worst", "best", "met"):
        found.add_column(heading, justify="right")
    for a in result["aims"]:
        met = "yes" if a["met"] else "no" if a["best"] < a["target"] else "in part"
        numbers = (_number(a[n], ".3g") for n in ("target", "worst", "best"))
        found.add_row(a["aim"], *numbers, met)
    console.print(found)
    for line in result["left_out"]:
        console.print(f"skipped: {line}")


def _short(number: int) -> str:
    """A power of ten times one digit in the form `1e4`; other numbers with separators."""
    digits = len(str(number)) - 1
    if digits >= 4 and number % 10**digits == 0:
        return f"{number // 10**digits}e{digits}"
    return f"{number:,}"


def _target(row: Row) -> float | None:
    """The aim for a row's speed; None if it has none."""
    if row["kernel"] == PAGES:
        return PAGES_PER_S
    if row["kernel"] != "chain" or row["threads"] != 1 or row["match_rate"] > LOW_RATE:
        return None
    return CHAIN_TUPLES_PER_S.get(row["window"])


def _millions(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.3g}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def draw_plot(result: Row, path: Path) -> None:
    """Write the figure as PNG: tuples/s over the window at the lowest match rate on the left, the
    fraction of the roofline's speed on the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    rows = [r for r in result["rows"] if r["kernel"] != PAGES]
    threads = min((r["threads"] for r in rows), default=1)
    _draw_speeds(left, [r for r in rows if r["threads"] == threads], threads)
    _draw_fractions(right, [r for r in rows if r["kernel"] == "chain"])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_speeds(axes: Any, rows: Sequence[Row], threads: int) -> None:
    rate = min((r["match_rate"] for r in rows), default=0.0)
    measured = {r["keys"] for r in rows if r["match_rate"] == rate}
    keys = next((kind for kind in KEYS if kind in measured), "")
    rows = [r for r in rows if r["match_rate"] == rate and r["keys"] == keys]
    for i, kernel in enumerate(dict.fromkeys(r["kernel"] for r in rows)):
        best = _best((r for r in rows if r["kernel"] == kernel), "tuples_per_s")
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(*_line(best), marker="o", color=colour, label=kernel)
    floor = _best((r for r in rows if r["floor_tuples_per_s"]), "floor_tuples_per_s")
    axes.plot(*_line(floor), color="#222222", lw=1, label="memory accesses alone (roofline)")
    authors = {w: s for (w, t), s in AUTHORS_TUPLES_PER_S.items() if t == threads}
    axes.plot(*_line(authors), "--", color="#6b7280", label="the authors' C++")
    threads_text = f"{threads} thread{'s' * (threads > 1)}"
    title = f"{threads_text}, {rate:g} matches a tuple, {keys} keys, best batch"
    axes.set(xscale="log", yscale="log", xlabel="window, tuples a side",
             ylabel="M tuples/s, both streams",
             title=title)  # fmt: skip
    axes.legend(frameon=False, fontsize=8)


def _draw_fractions(axes: Any, rows: Sequence[Row]) -> None:
    rows = [r for r in rows if r["fraction_of_limit"] is not None]
    kinds = dict.fromkeys((r["match_rate"], r["keys"], r["threads"]) for r in rows)
    for i, kind in enumerate(kinds):
        mine = [r for r in rows if (r["match_rate"], r["keys"], r["threads"]) == kind]
        best = _best(mine, "fraction_of_limit")
        rate, keys, threads = kind
        label = f"{rate:g} matches, {keys}, {threads} thread{'s' * (threads > 1)}"
        axes.plot(list(best), list(best.values()), marker="o", lw=1,
                  color=COLOURS[i % len(COLOURS)], ls="-" if threads == 1 else ":",
                  label=label)  # fmt: skip
    axes.axhline(LIMIT, color="#6b7280", lw=1, ls="--")
    axes.set(xscale="log", ylim=(0, 1.1), xlabel="window, tuples a side",
             title="chain: fraction of the roofline's speed (aim: dashed)")  # fmt: skip
    axes.legend(frameon=False, fontsize=8)


def _best(rows: Iterable[Row], field: str) -> dict[int, float]:
    """The largest value of a field, by window."""
    found: dict[int, float] = {}
    for r in rows:
        found[r["window"]] = max(found.get(r["window"], 0.0), r[field])
    return dict(sorted(found.items()))


def _line(speeds: dict[int, float]) -> tuple[list[int], list[float]]:
    return list(speeds), [speed / 1e6 for speed in speeds.values()]
