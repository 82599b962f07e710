"""`edged bench equipment`: 1 to 32 jobs at once that watch manufacturing machines (NEPTUNE, IV.C).

A job is query 1 of the DEBS Grand Challenge of 2012 (edges, delays, alarms, trends) and the figures
by the second of query 2, on generated records of 66 fields.  Each has its own connection and its
own records on the wire; all run in one daemon with durability `volatile`, which keeps no log, or
each stage of them in one of four daemons, with links between (`equipment_chain`).

A rate is all records over the time from the first byte to the end of all jobs, files included.  CPU
seconds are those of the daemons, their memory is the highest of samples.  `equal` is true only if
every file of every job has the rows of DuckDB's queries over the same records.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from edged.bench import equipment_check as check
from edged.bench.equipment_chain import staged
from edged.bench.equipment_data import faulty_equipment_records
from edged.bench.equipment_flink import flink_python, measure_flink
from edged.bench.equipment_jobs import WRITTEN, equipment_job
from edged.bench.query4_arms import BOARD, board_joules
from edged.bench.relay_chain import bench_directory, family
from edged.bench.relay_report import write
from edged.bench.rig import cpu_s, machine
from edged.bench.tukey import tukey_p_values
from edged.config.code_directories import DIRECTORY_VARIABLE
from edged.console.figures import COLOURS, new_figure, save
from edged.control.door import ask
from edged.errors import EdgedError
from edged.job.durability import VOLATILE
from edged.platform.processes import ChildProcess, free_port

Say = Callable[[str], None]
EXAMPLES = Path(__file__).parents[2] / "examples" / "operators"
PROMISES = {"latency": "250ms", "memory": "64MiB", "durability": VOLATILE}
PATIENCE_S = 240
FLINK = "flink"


@dataclass(frozen=True)
class EquipmentScope:
    """What is in a run."""

    jobs: tuple[int, ...] = (1, 8, 32)
    rows: int = 1_600_000
    """Records of all jobs together."""
    runs: int = 3
    written: tuple[str, ...] = WRITTEN
    chains: tuple[int, ...] = ()
    """Numbers of jobs that run over four daemons."""
    flink_runs: int = 0
    flink: tuple[tuple[int, int], ...] = ((1, 20_000), (32, 2_000))
    """Its numbers of jobs, and the records of each."""


SCOPES = {
    "quick": EquipmentScope((2,), 30_000, 1, ("builtin", "kernel")),
    "default": EquipmentScope(chains=(32,), flink_runs=2),
    "full": EquipmentScope(rows=6_400_000, runs=10, chains=(1, 8, 32), flink_runs=10),
}


@dataclass
class Plant:
    """A daemon with so many jobs, or one for each stage of them, in a directory."""

    directory: Path
    written: str
    count: int
    daemons: int = 1
    parts: dict[str, ChildProcess] = field(default_factory=dict)
    stages: list[str] = field(default_factory=list)
    """The daemons."""

    def start(self, schema: pa.Schema) -> None:
        """Start daemons and load, connected."""
        targets = [f"127.0.0.1:{free_port()}" for _ in range(self.count)]
        jobs: dict[str, list[str]] = {}
        for i, target in enumerate(targets):
            out = str(self.directory / f"out{i}")
            document = equipment_job(self.written, f"machine{i}", target, out, schema, PROMISES)
            stages = {"daemon": document} if self.daemons == 1 else staged(document, _address)
            for stage, own in stages.items():
                path = self.directory / f"{stage}{i}.json"
                write(path, own)
                jobs.setdefault(stage, []).append(str(path))
        load = {"records": str(self.directory / "records.arrow"), "targets": targets,
                "begin": str(self.directory / "begin")}  # fmt: skip
        write(self.directory / "load.json", load)
        logs = self.directory / "logs"
        logs.mkdir()
        for stage, paths in reversed(jobs.items()):
            home = self.directory / stage
            home.mkdir()
            words = ["edged", "run", *paths, "--store", str(home / "store"),
                     "--door", str(home / "door"), "--device", stage, "--json"]  # fmt: skip
            self.parts[stage] = ChildProcess(stage, words, logs)
        self.stages = list(jobs)
        for part in self.parts.values():
            part.ready()
        load_words = ["edged.bench.equipment_load", str(self.directory / "load.json")]
        self.parts["load"] = ChildProcess("load", load_words, logs)
        self.parts["load"].ready()

    def measure(self) -> dict[str, float]:
        """Let the load begin; the time, CPU time and memory until all jobs have ended."""
        own = [process for stage in self.stages for process in family(self.parts[stage])]
        began, cpu, rss = time.monotonic(), sum(map(cpu_s, own)), 0
        (self.directory / "begin").touch()
        while True:
            rss = max(rss, sum(process.memory_info().rss for process in own))
            if self._ended():
                break
            for part in self.parts.values():
                part.check()
            if time.monotonic() > began + PATIENCE_S:
                raise EdgedError(f"the jobs have not ended within {PATIENCE_S} s")
            time.sleep(0.05)
        took_s, used_s = time.monotonic() - began, sum(map(cpu_s, own)) - cpu
        event = self.parts["load"].events.get(timeout=60)
        return {"rows": event["sent"], "took_s": took_s, "cpu_s": used_s, "rss": rss,
                "load_cpu_s": event["cpu_s"]}  # fmt: skip

    def _ended(self) -> bool:
        """Whether all jobs have."""
        states = [ask(self.directory / stage / "door", "status")["jobs"] for stage in self.stages]
        return all(job["ended"] for jobs in states for job in jobs.values())

    def stop(self) -> None:
        """End all processes; daemons finish their files."""
        for part in reversed(self.parts.values()):
            part.stop()


def _address() -> str:
    return f"127.0.0.1:{free_port()}"


def measure_once(
    written: str, jobs: int, records: pa.Table, want: check.Rows, daemons: int = 1
) -> dict[str, Any]:
    """A run of so many jobs of one form, checked."""
    with bench_directory() as directory:
        code = directory / "operators"
        shutil.copytree(EXAMPLES, code)
        os.environ[DIRECTORY_VARIABLE] = str(code)
        with pa.ipc.new_file(directory / "records.arrow", records.schema) as file:
            file.write_table(records)
        plant = Plant(directory, written, jobs, daemons)
        try:
            plant.start(records.schema)
            got = plant.measure()
        finally:
            plant.stop()
        differ = [
            check.differing(check.found(directory / f"out{i}", want), want) for i in range(jobs)
        ]
    return {
        "tuples_per_s": got["rows"] / got["took_s"], "rss_mb": got["rss"] / 1e6,
        "cpu_s_per_mtuple": got["cpu_s"] / got["rows"] * 1e6,
        "load_cpu_s_per_mtuple": got["load_cpu_s"] / got["rows"] * 1e6,
        "differ": sorted({sink for own in differ for sink in own}),
    }  # fmt: skip


def run(scope: EquipmentScope, say: Say) -> dict[str, Any]:
    """All forms by all numbers of jobs and daemons, in turns; medians.  Flink and `builtin` over
    the same, fewer records have rows of their own."""
    rows, left_out = [], dict(LEFT_OUT)
    for jobs in scope.jobs:
        records, want, truth = _records(scope.rows // jobs)
        arms = [(written, 1) for written in scope.written]
        arms += [(written, 4) for written in scope.written] if jobs in scope.chains else []
        runs: dict[tuple[str, int], list[dict[str, Any]]] = {arm: [] for arm in arms}
        for turn in range(scope.runs):
            for written, daemons in arms:
                say(f"{jobs} jobs in {daemons} daemons, {written}, run {turn + 1}")
                once = measure_once(written, jobs, records, want, daemons)
                runs[written, daemons].append(once)
        rows += [_row(*arm, jobs, records.num_rows, own) for arm, own in runs.items()]
    p_values = {"cpu": None, "memory": None}
    try:
        for jobs, each in scope.flink if scope.flink_runs else ():
            found, p_values = _beside_flink(jobs, each, scope.flink_runs, say)
            rows += found
    except EdgedError as problem:
        left_out[FLINK] = str(problem)
    return {
        "machine": machine(), "rows": rows, "p_values": p_values,
        "sinks": {sink: len(own) for sink, own in want.items()},
        "faults": dict(sorted(_counted(truth).items())),
        "left_out": left_out,
    }  # fmt: skip


def _records(rows: int) -> tuple[pa.Table, check.Rows, pa.Table]:
    """Records, what a job must find in them, and the faults."""
    batch, truth = faulty_equipment_records(rows)
    records = pa.Table.from_batches([batch])
    return records, check.expected(records), truth


def _beside_flink(
    jobs: int, each: int, runs: int, say: Say
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of Flink and of `builtin`, in turn over the same records, and p values."""
    python = flink_python(say)
    records, want, _ = _records(each)
    flink, builtin = [], []
    for turn in range(runs):
        say(f"{jobs} jobs of {each:,} records, {FLINK} and builtin, run {turn + 1}")
        flink.append(measure_flink(python, jobs, records, want))
        builtin.append(measure_once("builtin", jobs, records, want))
    pair = [_row(FLINK, 1, jobs, each, flink), _row("builtin", 1, jobs, each, builtin)]
    return [{**row, "beside_flink": True} for row in pair], p_values(builtin, flink)


def _counted(truth: pa.Table) -> dict[str, int]:
    counts = truth["fault"].value_counts()
    return {pair["values"].as_py(): pair["counts"].as_py() for pair in counts}


LEFT_OUT = {
    "query 2, raw records": "records around a peak are not kept",
}


def _row(
    written: str, daemons: int, jobs: int, records: int, own: list[dict[str, Any]]
) -> dict[str, Any]:
    def middle(key: str) -> float:
        return float(statistics.median(once[key] for once in own))

    differ = sorted({sink for once in own for sink in once["differ"]})
    return {
        "written": written, "jobs": jobs, "daemons": daemons, "records_of_a_job": records,
        "beside_flink": False,
        "tuples_per_s": round(middle("tuples_per_s")),
        "cpu_s_per_mtuple": round(middle("cpu_s_per_mtuple"), 4),
        "load_cpu_s_per_mtuple": round(middle("load_cpu_s_per_mtuple"), 4),
        "joules_per_mtuple": round(board_joules(middle("cpu_s_per_mtuple")), 3),
        "rss_mb": round(middle("rss_mb"), 1), "runs": len(own),
        "equal": not differ, "differ": differ,
    }  # fmt: skip


def p_values(builtin: list[dict[str, Any]], flink: list[dict[str, Any]]) -> dict[str, Any]:
    """Student's t-test of both over the same records, where there are two runs of each or more."""
    pair = [builtin, flink]
    found: dict[str, Any] = {"cpu": None, "memory": None}
    if min(map(len, pair)) < 2:
        return found
    for name, key in (("cpu", "cpu_s_per_mtuple"), ("memory", "rss_mb")):
        groups = {str(i): [once[key] for once in own] for i, own in enumerate(pair)}
        (found[name],) = tukey_p_values(groups).values()
    return found


def show(console: Any, result: dict[str, Any]) -> None:
    """Print the table."""
    from rich.table import Table

    table = Table(title="Machines' records, 66 fields each", title_justify="left")
    for heading in ("written", "jobs", "records each", "daemons", "M tuples/s", "CPU-s / M",
                    f"J / M ({BOARD}, simulated)", "RSS MB", "equal"):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "written" else "right")
    for r in result["rows"]:
        table.add_row(r["written"], str(r["jobs"]), f"{r['records_of_a_job']:,}", str(r["daemons"]),
                      f"{r['tuples_per_s'] / 1e6:.3f}", f"{r['cpu_s_per_mtuple']:.3f}",
                      f"{r['joules_per_mtuple']:.2f}", f"{r['rss_mb']:.0f}",
                      str(r["equal"]))  # fmt: skip
    console.print(table)
    for name, reason in result["left_out"].items():
        console.print(f"  left out: {name}: {reason}")


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the figure as PNG."""
    figure, axes = new_figure(1, 3, 3.8)
    parts = (("tuples_per_s", 1e6, "M tuples/s"), ("cpu_s_per_mtuple", 1, "CPU-s per M tuples"),
             ("rss_mb", 1, "memory (MB)"))  # fmt: skip
    lines: dict[str, list[dict[str, Any]]] = {}
    for r in (r for r in result["rows"] if r["daemons"] == 1):
        label = r["written"] + " beside it" * (r["beside_flink"] and r["written"] != FLINK)
        lines.setdefault(label, []).append(r)
    for i, (label, own) in enumerate(lines.items()):
        for one, (key, unit, text) in zip(axes, parts, strict=True):
            one.plot([r["jobs"] for r in own], [r[key] / unit for r in own], marker="o",
                     color=COLOURS[i % len(COLOURS)], label=label)  # fmt: skip
            one.set(xlabel="jobs", ylabel=text, xscale="log", ylim=(0, None))
    axes[0].legend(loc="best")
    save(figure, path)


@click.command(name="equipment")
@click.option("--quick", is_flag=True, help="Two small jobs: whether the benchmark runs at all.")
@click.option("--full", is_flag=True, help="Ten runs of four times as many records.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(quick: bool, full: bool, path: Path | None, plot: Path | None) -> None:
    """Jobs that watch manufacturing machines: built in, as kernels, and in SQL."""
    from rich.console import Console

    from edged.daemon.compilation import compile_kernels

    console = Console(stderr=True)
    if not EXAMPLES.is_dir():
        raise click.ClickException(f"the kernels are not there: {EXAMPLES}; run it in a checkout")
    compile_kernels(quiet=False)
    scope = SCOPES["quick" if quick else "full" if full else "default"]
    with console.status("starting") as line:
        result = run(scope, line.update if console.is_terminal else console.print)
    write(path, result)
    show(console, result)
    if plot is not None:
        draw(result, plot)
    if wrong := [r for r in result["rows"] if not r["equal"]]:
        raise click.ClickException(f"{len(wrong)} rows have results that DuckDB does not have")
