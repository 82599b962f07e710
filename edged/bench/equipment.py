"""`edged bench equipment`: 1 to 32 jobs at once that watch manufacturing machines (NEPTUNE, IV.C).

A job is query 1 of the DEBS Grand Challenge of 2012 (edges, delays, alarms, trends) and the figures
by the second of query 2, on generated records of 66 fields; with kernels also its raw records
around a peak.  Each has its own connection and its own records on the wire; all run in one daemon
with durability `volatile`, which keeps no log, or each stage of them in one of four daemons, with
links between (`equipment_chain`).  Flink runs the largest number of jobs (`equipment_flink`).

A rate is all records over the time from the first byte to the end of all jobs, files included.  CPU
seconds are those of the daemons, their memory is the highest of samples.  `equal` is true only if
every file of every job has the rows of DuckDB's queries over the same records.  `p_values` compare
the runs of `builtin` at the largest number of jobs with Flink's, which are slices of one run of a
warm cluster (`equipment_slices`).
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from edged.bench import equipment_check as check
from edged.bench.equipment_chain import staged
from edged.bench.equipment_data import faulty_equipment_records
from edged.bench.equipment_flink import FLINK, measure_flink
from edged.bench.equipment_jobs import KERNEL, WRITTEN, equipment_job, sinks_of
from edged.bench.equipment_slices import RunSample, as_whole, in_slices
from edged.bench.flink_peer import flink_python
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
Figures = dict[str, float]
Arm = tuple[str, int]
"""How the job is written, and the number of daemons."""
EXAMPLES = Path(__file__).parents[2] / "examples" / "operators"
PROMISES = {"latency": "250ms", "memory": "64MiB", "durability": VOLATILE}
PATIENCE_S, EVERY_S = 240, 0.1
"""For a run, and between two samples of it."""


@dataclass(frozen=True)
class EquipmentScope:
    """What is in a run."""

    jobs: tuple[int, ...] = (1, 8, 32)
    rows: int = 1_056_000
    """Records of all jobs together, those of the first slice included."""
    runs: int = 1
    runs_most: Mapping[str, int] = field(default_factory=lambda: {"builtin": 10, KERNEL: 4})
    """At the largest number of jobs in one daemon; of Flink the slices of its run."""
    slices: int = 10
    written: tuple[str, ...] = WRITTEN
    chains: tuple[int, ...] = ()
    """Numbers of jobs that run over four daemons."""
    flink: bool = True


SCOPES = {
    "quick": EquipmentScope((2,), 30_000, 1, {}, written=("builtin", KERNEL), flink=False),
    "default": EquipmentScope(chains=(32,)),
    "full": EquipmentScope(runs=10, runs_most={}, chains=(1, 8, 32)),
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
    _ports: set[int] = field(default_factory=set)

    def start(self, schema: pa.Schema) -> None:
        """Start daemons and load, connected."""
        targets = [self._address() for _ in range(self.count)]
        jobs: dict[str, list[str]] = {}
        for i, target in enumerate(targets):
            out = str(self.directory / f"out{i}")
            document = equipment_job(self.written, f"machine{i}", target, out, schema, PROMISES)
            stages = {"daemon": document} if self.daemons == 1 else staged(document, self._address)
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

    def measure(self) -> list[RunSample]:
        """Let the load begin; samples until all jobs have ended."""
        own = [process for stage in self.stages for process in family(self.parts[stage])]
        began, load = time.monotonic(), self.parts["load"].events

        def sample(rows: int = 0) -> RunSample:
            rss = sum(process.memory_info().rss for process in own)
            return RunSample(time.monotonic(), rows, sum(map(cpu_s, own)), rss)

        samples = [sample()]
        (self.directory / "begin").touch()
        while load.empty() or not self._ended():  # to ask costs the daemon time
            samples.append(sample())
            for part in self.parts.values():
                part.check()
            if time.monotonic() > began + PATIENCE_S:
                raise EdgedError(f"the jobs have not ended within {PATIENCE_S} s")
            time.sleep(EVERY_S)
        return [*samples, sample(load.get()["sent"])]

    def _address(self) -> str:
        """An address that no other stream of this run has."""
        while (port := free_port()) in self._ports:
            pass
        self._ports.add(port)
        return f"127.0.0.1:{port}"

    def _ended(self) -> bool:
        """Whether all jobs have."""
        states = [ask(self.directory / stage / "door", "status")["jobs"] for stage in self.stages]
        return all(job["ended"] for jobs in states for job in jobs.values())

    def stop(self) -> None:
        """End all processes; daemons finish their files."""
        for part in reversed(self.parts.values()):
            part.stop()


def measure_once(
    written: str, jobs: int, records: pa.Table, want: check.Rows, daemons: int = 1
) -> tuple[list[RunSample], list[str]]:
    """A run of so many jobs of one form, and the sinks that differ."""
    with bench_directory(in_memory=True) as directory:
        code = directory / "operators"
        shutil.copytree(EXAMPLES, code)
        os.environ[DIRECTORY_VARIABLE] = str(code)
        with pa.ipc.new_file(directory / "records.arrow", records.schema) as file:
            file.write_table(records)
        plant = Plant(directory, written, jobs, daemons)
        try:
            plant.start(records.schema)
            samples = plant.measure()
        finally:
            plant.stop()
        differ = [
            check.differing(check.found(directory / f"out{i}", want), want) for i in range(jobs)
        ]
    return samples, sorted({sink for own in differ for sink in own})


def run(scope: EquipmentScope, say: Say) -> dict[str, Any]:
    """All forms by all numbers of jobs and daemons, in turns; medians."""
    rows, left_out, found = [], dict(LEFT_OUT), dict[Arm, list[Figures]]()
    for jobs in scope.jobs:
        records, want, truth = _records(scope.rows // jobs)
        arms = _arms(scope, jobs)
        found, differ = {arm: [] for arm in arms}, {arm: set[str]() for arm in arms}
        for turn in range(max(arms.values())):
            for arm in (arm for arm, runs in arms.items() if turn < runs):
                say(f"{jobs} jobs in {arm[1]} daemons, {arm[0]}, run {turn + 1} of {arms[arm]}")
                try:
                    samples, wrong = _measured(arm, jobs, records, want, say)
                except EdgedError as problem:
                    if arm[0] != FLINK:
                        raise
                    left_out[FLINK] = str(problem)
                    continue
                slices = arm[0] == FLINK
                found[arm] += in_slices(samples, scope.slices) if slices else [as_whole(samples)]
                differ[arm] |= set(wrong)
        rows += [
            _row(*arm, jobs, records.num_rows, own, sorted(differ[arm]))
            for arm, own in found.items()
            if own
        ]
    return {
        "machine": machine(), "rows": rows,
        "p_values": p_values(found.get(("builtin", 1), []), found.get((FLINK, 1), [])),
        "sinks": {sink: len(own) for sink, own in want.items()},
        "faults": dict(sorted(_counted(truth).items())),
        "left_out": left_out,
    }  # fmt: skip


def _arms(scope: EquipmentScope, jobs: int) -> dict[Arm, int]:
    """Forms and numbers of daemons, and how many runs each has."""
    most = scope.runs_most if jobs == max(scope.jobs) else {}
    arms: dict[Arm, int] = {(form, 1): most.get(form, scope.runs) for form in scope.written}
    if jobs in scope.chains:
        arms |= {(form, 4): scope.runs for form in scope.written}
    if scope.flink and jobs == max(scope.jobs):
        arms[FLINK, 1] = 1
    return arms


def _measured(
    arm: Arm, jobs: int, records: pa.Table, want: check.Rows, say: Say
) -> tuple[list[RunSample], list[str]]:
    """A run of an arm, and the sinks that differ."""
    written, daemons = arm
    own = {sink: want[sink] for sink in sinks_of(written)}
    if written == FLINK:
        return measure_flink(flink_python(say), jobs, records, own)
    return measure_once(written, jobs, records, own, daemons)


def _records(rows: int) -> tuple[pa.Table, check.Rows, pa.Table]:
    """Records, what a job must find in them, and the faults."""
    batch, truth = faulty_equipment_records(rows)
    records = pa.Table.from_batches([batch])
    return records, check.expected(records), truth


def _counted(truth: pa.Table) -> dict[str, int]:
    counts = truth["fault"].value_counts()
    return {pair["values"].as_py(): pair["counts"].as_py() for pair in counts}


LEFT_OUT = {
    "query 2, raw records around a peak": "an output of the kernels only",
}


def _row(
    written: str,
    daemons: int,
    jobs: int,
    records: int,
    own: list[Figures],
    differ: list[str],
) -> dict[str, Any]:
    middle = {key: float(statistics.median(one[key] for one in own)) for key in own[0]}
    return {
        "written": written, "jobs": jobs, "daemons": daemons, "records_of_a_job": records,
        "tuples_per_s": round(middle["tuples_per_s"]),
        "cpu_s_per_mtuple": round(middle["cpu_s_per_mtuple"], 4),
        "joules_per_mtuple": round(board_joules(middle["cpu_s_per_mtuple"]), 3),
        "rss_mb": round(middle["rss_mb"], 1), "runs": len(own),
        "equal": not differ, "differ": differ,
    }  # fmt: skip


def p_values(builtin: list[dict[str, Any]], flink: list[dict[str, Any]]) -> dict[str, Any]:
    """Student's t-test of both, where there are two runs of each or more."""
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
    for name, p in result["p_values"].items():
        if p is not None:
            console.print(f"  {name} of builtin and {FLINK} at the most jobs: p = {p:.2g}")
    for name, reason in result["left_out"].items():
        console.print(f"  left out: {name}: {reason}")


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the figure as PNG."""
    figure, axes = new_figure(3, 1, 8.5, sharex=True)
    parts = (("tuples_per_s", 1e6, "M tuples/s"), ("cpu_s_per_mtuple", 1, "CPU-s per M tuples"),
             ("rss_mb", 1, "memory (MB)"))  # fmt: skip
    groups = list(dict.fromkeys((r["daemons"], r["jobs"]) for r in result["rows"]))
    groups.sort()
    forms = list(dict.fromkeys(r["written"] for r in result["rows"]))
    width = 0.8 / len(forms)
    for one, (key, unit, text) in zip(axes, parts, strict=True):
        for i, form in enumerate(forms):
            own = [r for r in result["rows"] if r["written"] == form]
            at = [groups.index((r["daemons"], r["jobs"])) + (i - len(forms) / 2 + 0.5) * width
                  for r in own]  # fmt: skip
            values = [r[key] / unit for r in own]
            bars = one.bar(at, values, width, label=form, color=COLOURS[i % len(COLOURS)])
            shown = [f"{v:.0f}" if v >= 100 else f"{v:.2g}" for v in values]
            one.bar_label(bars, shown, fontsize=9, padding=1)
        one.set_ylabel(text)
        one.margins(y=0.12)
    figure.align_ylabels()
    names = [f"{jobs} job{'s' * (jobs > 1)}" + (f",\n{daemons} daemons" * (daemons > 1))
             for daemons, jobs in groups]  # fmt: skip
    axes[-1].set_xticks(range(len(groups)), names)
    labelled = axes[0].get_legend_handles_labels()
    figure.legend(*labelled, loc="outside lower center", ncols=len(forms))
    axes[0].set_title("Machines that are watched at once, 66 fields a record")
    save(figure, path)


@click.command(name="equipment")
@click.option("--quick", is_flag=True, help="Two small jobs: whether the benchmark runs at all.")
@click.option(
    "--full", is_flag=True, help="Three runs of each, and all numbers of jobs over four daemons."
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(quick: bool, full: bool, path: Path | None, plot: Path | None) -> None:
    """Jobs that watch manufacturing machines: built in, as kernels, and in SQL."""
    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    console = figures_console()
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
