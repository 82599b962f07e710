"""`edged bench shuffle`: the family that partitions tuples into pages, against a copy.

A row is a member with a configuration (`shuffle_grid`): threads, partitions, bytes of a tuple,
pages, keys, layout; buffer capacity, morsel size and processing units on axes of their own.  What
is measured, and how: `shuffle_measure`.

The limit of a row is measured beside it, with the same threads: the better of memcpy and
non-temporal stores, copying as many bytes as a run of the row writes, from a block as large as a
batch into memory that is faulted in.  Checksums are in neither; their speed is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from edged.bench import shuffle_grid, shuffle_measure
from edged.bench.result import conclude, with_progress
from edged.bench.rig import machine
from edged.bench.shuffle_ablations import ablations
from edged.bench.shuffle_grid import Pair, ShuffleCell
from edged.bench.shuffle_measure import ShuffleEffort, checksum_gb_per_s, limit_of
from edged.bench.shuffle_peers import measure_peers
from edged.bench.shuffle_report import chosen_fractions, show_shuffle, shuffle_aims

_MEMORY_SHARE = 3
"""Open pages may take one part in so many of the memory that is available."""
_PEER_ROWS = 4_000_000


@dataclass(frozen=True)
class ShuffleBench:
    """What a run measures."""

    pairs: list[Pair]
    effort: ShuffleEffort
    ablate: bool = False
    """Ablations alone, over more cells."""
    peers: bool = True
    spark: bool = True

    def run(self, tick: Callable[[str], None]) -> dict[str, Any]:
        """Measure everything; `tick` gets the text of what comes next."""
        rows, left_out = self._rows(tick)
        peers: list[dict[str, Any]] = []
        found = ablations(self.effort, self.ablate, tick)
        if self.peers:
            tick("peers")
            peers, missing = measure_peers(_PEER_ROWS, 2, self.effort, self.spark)
            left_out += missing
        fractions = chosen_fractions(rows)
        worst = {"worst_fraction_of_best": fractions[0][0] if fractions else None}
        return {
            "machine": machine(), "rows": rows, "ablations": found, "chosen": worst,
            "peers": peers, "aims": shuffle_aims(rows),
            "checksum_gb_per_s": checksum_gb_per_s(), "left_out": left_out,
        }  # fmt: skip

    def _rows(self, tick: Callable[[str], None]) -> tuple[list[dict[str, Any]], list[str]]:
        most = psutil.virtual_memory().available // _MEMORY_SHARE
        rows, left_out = [], []
        limits: dict[ShuffleCell, float] = {}
        for member, cell in self.pairs:
            tick(f"{member}, {cell}")
            if cell.open_bytes(member) > most:
                left_out.append(f"{member}, {cell.threads} threads, {cell.partitions} × "
                                f"{cell.page_bytes >> 10} KiB: memory of open pages")  # fmt: skip
                continue
            if cell not in limits:
                limits[cell] = limit_of(cell.threads, self.effort)
            row = shuffle_measure.row(member, cell, self.effort, limits[cell])
            rows.append({**row, "asked_buffer": cell.buffer_bytes, "asked_morsel": cell.morsel,
                         "units_of_cell": cell.units})  # fmt: skip
        return rows, left_out


def _bench(full: bool, quick: bool, ablate: bool, members: tuple[str, ...]) -> ShuffleBench:
    if quick:
        return ShuffleBench(shuffle_grid.smoke(), shuffle_measure.SMOKE, spark=False, peers=False)
    effort = shuffle_measure.LONG if full else shuffle_measure.SHORT
    if ablate:
        return ShuffleBench([], effort, ablate=True, peers=False)
    pairs = shuffle_grid.whole_grid() if full else shuffle_grid.chosen_part()
    return ShuffleBench([p for p in pairs if not members or p[0] in members], effort)


@click.command(name="shuffle")
@click.option("--member", multiple=True, help="Member of the family.  [default: all]")
@click.option("--ablate", is_flag=True, help="Only what each optimisation is worth, over 9 cells.")
@click.option("--part", type=click.Choice(["contention"]), help="Only rows on 1 to all cores.")
@click.option("--full", is_flag=True, help="The whole grid, 2 s a row (more than half a day).")
@click.option("--quick", is_flag=True, help="Smoke test of a few seconds; its figures are noise.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(
    member: tuple[str, ...],
    ablate: bool,
    part: str | None,
    full: bool,
    quick: bool,
    path: Path | None,
    plot: Path | None,
) -> None:
    """The shuffle family: tuples/s, memory and latency of each member, with checked results.

    Without options: a chosen part of the grid, the ablations and the peers in a short form. This
    takes about eight minutes, and `--part contention` two and a half. "copy" is the share of the
    copy's speed: the better of memcpy and non-temporal stores, of the same bytes, on the same
    threads, into pages that are faulted in.
    """
    from edged.bench.shuffle_contention import (
        draw_contention,
        measure_contention,
        show_contention,
    )
    from edged.bench.shuffle_plot import draw_shuffle
    from edged.console.consoles import figures_console
    from edged.pages.shuffle import MEMBERS, warm

    for name in member:
        if name not in MEMBERS:
            raise click.BadParameter(
                f"{name!r} is not one of {', '.join(MEMBERS)}", param_hint="--member"
            )
    console = figures_console()
    if part is not None:
        console.print("compiling")
    warm()
    if part is not None:
        draw, show = draw_contention, show_contention
        result = {"machine": machine(), **measure_contention(console.print)}
    else:
        draw, show = draw_shuffle, show_shuffle
        result = with_progress(console, _bench(full, quick, ablate, member).run)
    conclude(console, result, path, plot, draw, show)
