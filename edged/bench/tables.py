"""`edged bench tables`: states that change and outgrow memory, against DuckDB and a floor.

Parts: `incremental` (a join by changes), `population` (each compaction rule at three ratios),
`query4` (TPC-DS query 4 at scale 1), `bulk`, `cold`, `enrich` (end to end), `merging`, and, with
`--full` or by name, `memtables` (RocksDB's, for each side of a join).
`edged.bench.tables_incremental`, `tables_population`, `query4`, `tables_disk`, `tables_enrich` and
`tables_memtable` say what is measured.  Files lie in the temporary directory, TPC-DS's tables and
Pathway's environment in the user's cache.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from edged.bench import tpcds
from edged.bench.query4_arms import cells_of, measure_arms
from edged.bench.rig import machine
from edged.bench.tables_data import Incremental, Tick, members
from edged.bench.tables_disk import measure_bulk, measure_cold, measure_merging
from edged.bench.tables_enrich import measure_enrich
from edged.bench.tables_incremental import measure_incremental
from edged.bench.tables_memtable import measure_memtables
from edged.bench.tables_population import PopulationSize, measure_population
from edged.bench.tables_report import draw_tables, show_tables
from edged.errors import EdgedError

ORDINARY_PARTS = ("incremental", "population", "query4", "bulk", "cold", "enrich", "merging")
PARTS = (*ORDINARY_PARTS, "memtables")
_RATIOS = (36, 72, 144)
_MEMTABLE_RATIOS = (36, 144)
QUERY4_BYTES, QUERY4_LIMIT = 24 << 20, 320_000_000
"""Memory of the twelve states of query 4 together, and the limit on all new memory of an arm, page
cache included: half of it is the benchmark's own (groups, batches), so that a quarter of a state of
760 MB fits into the rest."""


@dataclass(frozen=True)
class TablesEffort:
    """How much a run measures."""

    rows: int
    beats: int
    population: PopulationSize
    bulk_rows: int
    cold_rows: int
    cold_probes: int
    merging_rows: int
    merging_beats: int
    changes: int = 10_000
    query4_scale: float = 1
    enrich_rows: int = 10_000_000
    enrich_seconds: float = 12.0
    memtable_rows: int = 1_000_000
    peers: bool = True
    """Whether Pathway is measured, and what needs daemons."""


QUICK = TablesEffort(20_000, 6, PopulationSize(30_000, 3_000, 4, 200), 50_000, 50_000, 200,
                     20_000, 8, 500, 0, memtable_rows=5_000, peers=False)  # fmt: skip
ORDINARY = TablesEffort(1_000_000, 43, PopulationSize(2_000_000), 4_000_000, 4_000_000, 10_000,
                        3_000_000, 200)  # fmt: skip
FULL = TablesEffort(1_000_000, 203, PopulationSize(10_000_000), 20_000_000, 20_000_000, 20_000,
                    3_000_000, 1_000)  # fmt: skip


def measure_tables(effort: TablesEffort, parts: tuple[str, ...], tick: Tick) -> dict[str, Any]:
    """The figures of these parts, by the names of the contract."""
    result: dict[str, Any] = {"machine": machine(), "left_out": []}
    of_edged = members()
    if "incremental" in parts:
        tick("making changes")
        size = Incremental(effort.rows, 10, effort.beats, effort.changes)
        result["incremental"], result["left_out"] = measure_incremental(size, tick, effort.peers)
    if "population" in parts:
        asked = of_edged if effort is FULL else ["runs"]
        rows = [measure_population(m, effort.population, _RATIOS, tick) for m in asked]
        result["population"] = [row for found in rows for row in found]
    if "query4" in parts:
        result["query4"] = _query4(effort, of_edged, result["left_out"], tick)
    if "bulk" in parts:
        tick("bulk load")
        result["bulk"] = [
            measure_bulk(m, effort.bulk_rows if m == "runs" else effort.bulk_rows // 10)
            for m in of_edged
        ]
    if "cold" in parts:
        tick("cold probes")
        result["cold"] = measure_cold("runs", effort.cold_rows, effort.cold_probes)
    if "enrich" in parts:
        tick("enrichment end to end")
        result |= _enrich(effort, result["left_out"], tick)
    if "memtables" in parts:
        result["memtables"] = _memtables(effort, of_edged, result["left_out"], tick)
    if "merging" in parts:
        tick("merges beside beats")
        result["merging"] = measure_merging(
            "runs", effort.merging_rows, effort.merging_beats, 1 << 16
        )
    return result


def _query4(
    effort: TablesEffort, members: list[str], left_out: list[str], tick: Tick
) -> list[dict[str, Any]]:
    """The arms of query 4; none where its tables cannot be made."""
    if not effort.query4_scale:
        left_out.append("query4: a smoke test makes no TPC-DS tables")
        return []
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edged" / "tpcds"
    try:
        directory = tpcds.generate(cache, effort.query4_scale, tick)
    except EdgedError as problem:
        left_out.append(f"query4: {problem}")
        return []
    return [
        row
        for member in members
        for row in measure_arms(
            str(directory), cells_of([member]), QUERY4_BYTES,
            QUERY4_LIMIT if member == "runs" else 0, tick,
        )
    ]  # fmt: skip


def _enrich(effort: TablesEffort, left_out: list[str], tick: Tick) -> dict[str, Any]:
    if not effort.peers:
        left_out.append("enrich: a smoke test starts no daemon")
        return {}
    return {"enrich": measure_enrich(effort.enrich_rows, effort.enrich_seconds, tick)}


def _memtables(
    effort: TablesEffort, members: list[str], left_out: list[str], tick: Tick
) -> list[dict[str, Any]]:
    if "rocksdb" not in members or find_spec("rocksdict") is None:
        left_out.append("memtables: rocksdict is not installed: pip install rocksdict")
        return []
    found = [measure_memtables(effort.memtable_rows, ratio, tick) for ratio in _MEMTABLE_RATIOS]
    return [row for rows in found for row in rows]


@click.command(name="tables")
@click.option("--part", multiple=True, type=click.Choice(PARTS), help="Only this.  [default: all]")
@click.option(
    "--full",
    is_flag=True,
    help="Five times the rows and beats, the population of all members, memtables.",
)
@click.option("--quick", is_flag=True, help="Smoke test of a few seconds; its figures are noise.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(
    part: tuple[str, ...], full: bool, quick: bool, path: Path | None, plot: Path | None
) -> None:
    """Tables that change: joins by changes, population, TPC-DS query 4, bulk
    load, cold probes, enrichment, merges.

    Every join's result is compared with that of DuckDB or of a recomputation. Figures are of one
    thread, bulk load and enrichment apart. CPU time is that of the process, for enrichment that of
    all processes.
    """
    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    console = figures_console()
    compile_kernels(quiet=False)  # none in a beat that is measured
    effort = QUICK if quick else FULL if full else ORDINARY
    chosen = part or (ORDINARY_PARTS if effort is ORDINARY else PARTS)
    result = measure_tables(effort, chosen, console.print)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    show_tables(console, result)
    if plot is not None:
        draw_tables(result, plot)
    rows = [
        row
        for p in ("incremental", "population", "query4", "memtables")
        for row in result.get(p, [])
    ]
    rows += [{"equal": result["enrich"]["exact"]}] if "enrich" in result else []
    if any(row["equal"] is False for row in rows):
        raise click.ClickException("a member's result differs")
