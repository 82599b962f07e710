"""Contention between the threads of a shuffle: `edged bench shuffle --part contention`.

A row is a member on 1, 2, 4, … threads, up to the machine's cores, with tuples of 16 and 64 bytes
in 2 to 1024 partitions, of uniform and zipf keys.  Pages have 64 KiB, so that closing and replacing
a page is part of each figure.  All rows are measured in turn, round by round, until the time is
used; a row keeps its fastest run.  The results of each member are checked on as many threads.

    looks     looks at a lock, an allocation or a batch that another thread holds, in 1000 tuples
    retries   compare-and-exchanges that another thread's has made fail, in 1000 tuples
    yields    times that a waiting thread has yielded, in 1000 tuples
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from edged.bench.shuffle_check import is_exact
from edged.bench.shuffle_grid import KEYS, TUPLEWISE, ShuffleCell
from edged.bench.shuffle_measure import COPY_BLOCK
from edged.pages.shuffle import MEMBERS, Shuffle, ShuffleRun, copy_limit

CONTENDERS = tuple(m for m in MEMBERS if m not in ("radix", "hybrid"))
PARTITIONS, TUPLE_BYTES = (2, 16, 256, 1024), (16, 64)
SECONDS = 95.0
"""Time of all rounds; the first is not cut short below `SECONDS_MAX`."""
SECONDS_MAX = 110.0
_PAGE_BYTES, _POOL_BYTES = 64 << 10, 128 << 20
_THREAD_BYTES, _THREADS_FULL = 96 << 20, 8
"""Bytes that each thread writes in a run, of up to so many threads."""
_SINGLE_TUPLES, _SINGLE_TUPLES_MAX = 64_000, 256_000
"""Tuples of a thread and of a run, where they are inserted one by one."""
_SLOWER = 4
"""Members that materialise all tuples, or read each batch on many threads, write less."""
_MORSEL, _EXACT_TUPLES, _EXACT_MORSEL = 1024, 20_000, 64
_EXACT_PARTITIONS = (2, 256)

Row = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """A member and its cell."""

    member: str
    cell: ShuffleCell

    def __str__(self) -> str:
        c = self.cell
        return (f"{self.member}, {c.threads} threads, {c.partitions} partitions, "
                f"{c.tuple_bytes} B, {c.keys}")  # fmt: skip

    def shuffle(self) -> Shuffle:
        """Memory for runs."""
        cell = self.cell
        plan = cell.plan(self.member, pool_bytes=_POOL_BYTES)
        if self.member in TUPLEWISE:
            tuples = min(_SINGLE_TUPLES * cell.threads, _SINGLE_TUPLES_MAX)
            return Shuffle(plan, replace(cell, morsel=_MORSEL).source(tuples, fresh=False))
        size = _THREAD_BYTES * min(_THREADS_FULL, cell.threads)
        if self.member.startswith(("radix", "ranges", "units")):
            size //= _SLOWER
        tuples = size // cell.source(1, False).shape.tuple_bytes
        return Shuffle(plan, cell.source(tuples, fresh=False))

    def runs(self) -> Iterator[ShuffleRun]:
        """The measured runs of a round, after one that faults memory in."""
        shuffle = self.shuffle()
        shuffle.run()
        yield shuffle.run()
        if self.member not in TUPLEWISE:
            yield shuffle.run()

    def exact(self) -> bool:
        """Whether runs of small batches are right, of the member on as many threads."""
        cells = [ShuffleCell(self.cell.threads, p, 16, _PAGE_BYTES, morsel=_EXACT_MORSEL,
                             units=self.cell.units) for p in _EXACT_PARTITIONS]  # fmt: skip
        return all(is_exact(c.plan(self.member), c.source(_EXACT_TUPLES, True)) for c in cells)


def contenders(cores: int) -> list[Contender]:
    """All rows; a member's groups of threads are as many as the threads in each."""
    counts = [1 << k for k in range(max(1, cores).bit_length())]
    return [
        Contender(member, ShuffleCell(threads, partitions, size, _PAGE_BYTES, keys,
                                      units=math.isqrt(threads)))
        for keys, size, partitions, threads, member in product(
            KEYS, TUPLE_BYTES, PARTITIONS, counts, CONTENDERS)
    ]  # fmt: skip


def measure_contention(tick: Callable[[str], None]) -> dict[str, Any]:
    """The rows, and which were not measured; `tick` gets the text of what comes next."""
    wanted = contenders(os.cpu_count() or 1)
    began, rows = time.monotonic(), dict[Contender, Row]()
    exact: dict[tuple[str, int], bool] = {}
    limits = {t: _limit(t) for t in sorted({c.cell.threads for c in wanted})}
    rounds = 0
    while not rounds or time.monotonic() - began < SECONDS:
        rounds += 1
        for c in wanted:
            elapsed = time.monotonic() - began
            if elapsed >= (SECONDS_MAX if rounds == 1 else SECONDS):
                break
            if c.member == CONTENDERS[0]:
                tick(f"{elapsed:.0f} s, round {rounds}: {c}")
            threads = c.cell.threads
            if (c.member, threads) not in exact:
                exact[c.member, threads] = c.exact()
            if c not in rows:
                rows[c] = {**_place(c), "copy_gb_per_s": limits[threads], "tuples_per_s": 0,
                           "exact": exact[c.member, threads]}  # fmt: skip
            for run in c.runs():
                if run.tuples / run.seconds > rows[c]["tuples_per_s"]:
                    rows[c].update(_figures(run))
    return {"rows": list(rows.values()), "rounds": rounds,
            "left_out": [str(c) for c in wanted if c not in rows]}  # fmt: skip


def _place(c: Contender) -> Row:
    cell = c.cell
    return {"member": c.member, "threads": cell.threads, "partitions": cell.partitions,
            "tuple_bytes": cell.tuple_bytes, "keys": cell.keys, "page_bytes": cell.page_bytes,
            "units": cell.units}  # fmt: skip


def _figures(run: ShuffleRun) -> Row:
    thousands = run.tuples / 1000
    return {
        "tuples_per_s": round(run.tuples / run.seconds),
        "gb_per_s": run.page_bytes_written / run.seconds / 1e9,
        "looks_per_1000": run.counters["looks"] / thousands,
        "cas_retries_per_1000": run.counters["cas_retries"] / thousands,
        "yields_per_1000": run.counters["waits"] / thousands,
    }


def _limit(threads: int) -> float:
    return max(copy_limit(threads * _THREAD_BYTES, threads, COPY_BLOCK))


def _tables(rows: Sequence[Row]) -> Iterator[tuple[tuple[Any, ...], dict[str, dict[int, Row]]]]:
    """For each keys, bytes and partitions: the rows by member and threads."""
    for keys, size, partitions in product(KEYS, TUPLE_BYTES, PARTITIONS):
        found: dict[str, dict[int, Row]] = {}
        for r in rows:
            if (r["keys"], r["tuple_bytes"], r["partitions"]) == (keys, size, partitions):
                found.setdefault(r["member"], {})[r["threads"]] = r
        if found:
            yield (keys, size, partitions), found


def show_contention(console: Any, result: Row) -> None:
    """Print a table for each keys, bytes of a tuple and partitions."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rows = result["rows"]
    counts = sorted({r["threads"] for r in rows})
    for (keys, size, partitions), members in _tables(rows):
        title = f"{size} B, {partitions} partitions, {keys}: M tuples/s by threads"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
        for name in ("member", *map(str, counts), "looks", "retries", "yields"):
            table.add_column(name, justify="left" if name == "member" else "right", no_wrap=True)
        for member, of in members.items():
            last = of[max(of)]
            waits = (last[n] for n in ("looks_per_1000", "cas_retries_per_1000", "yields_per_1000"))
            speeds = (f"{of[t]['tuples_per_s'] / 1e6:.4g}" if t in of else "–" for t in counts)
            table.add_row(member, *speeds, *(f"{w:.3g}" for w in waits))
        console.print(table)
    console.print(f"looks, retries, yields: in 1000 tuples, on {counts[-1]} threads; "
                  f"{result['rounds']} rounds, {len(result['left_out'])} rows not measured",
                  style="dim")  # fmt: skip


_STYLES = {
    "lock": "-", "lock_minimal": "--", "lock_free": ":", "radix_buffered": "-",
    "hybrid_buffered": "--", "ranges": "-", "merge": "-",
}  # fmt: skip


def draw_contention(result: Row, path: Path) -> None:
    """Write M tuples/s over threads, and waits over threads, as PNG."""
    from edged.console.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, new_figure, save

    colours = {"on_demand": GREY, "on_demand_buffered": BLUE, "units": GREEN, "ranges": PURPLE,
               "merge": RED, "radix_buffered": ORANGE, "hybrid_buffered": ORANGE}  # fmt: skip
    shown = [k for k in product(KEYS, TUPLE_BYTES) if k != ("zipf", 64)]
    figure, axes = new_figure(len(shown), len(PARTITIONS), 11.0, sharex=True, squeeze=False)
    for (keys, size, partitions), members in _tables(result["rows"]):
        if (keys, size) not in shown:
            continue
        ax = axes[shown.index((keys, size))][PARTITIONS.index(partitions)]
        for member, of in members.items():
            threads = sorted(of)
            ax.plot(threads, [of[t]["tuples_per_s"] / 1e6 for t in threads], marker=".", lw=1.4,
                    color=colours[member.split("/")[0]], ls=_STYLES[member.split("/")[-1]],
                    label=member)  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_title(f"{size} B, {partitions} partitions, {keys}", fontsize=9)
        if ax in axes[-1]:
            ax.set_xlabel("threads")
        if ax in axes[:, 0]:
            ax.set_ylabel("M tuples/s")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    machine = result["machine"]
    figure.suptitle(f"measured on {machine['cores']} cores of {machine['cpu']}", fontsize=10)
    save(figure, path)
