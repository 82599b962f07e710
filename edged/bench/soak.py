"""`edged bench soak`: whether a daemon and a collector stay as they are over hours of work.

Memory, descriptors, threads and files of the store are sampled at equal intervals while both
streams of the benchmark's join come in at a fixed rate and its pages go to the collector.  A figure
is flat where the median of the last third of the run is within its tolerance of the median of the
second third; the first third is warm-up.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil

from edged.bench.load import Load
from edged.bench.rig import Rig, join_job, machine, rig

SAMPLES = 180
"""Samples of a run."""
TOLERANCES = {"rss_mb": 0.05, "descriptors": 0.0, "threads": 0.0, "files": 0.25}
"""Growth that passes as flat, as a share.  The files of the store come and go with snapshots and
parts of the log."""
SLACK = {"rss_mb": 8.0, "descriptors": 2.0, "threads": 1.0, "files": 4.0}
"""Growth that passes whatever its share."""
WINDOW = 100_000


def measure(seconds: float, rate: int, say: Any) -> dict[str, Any]:
    """Run for `seconds` at `rate` tuples/s of both streams together; returns samples and
    verdicts."""
    with rig() as bench:
        bench.start(join_job(bench.address, int(2e6 * WINDOW / rate), "1s"))
        load = Load(bench.address, 4, max(1, rate // 400), 10 * WINDOW, mode="rate",
                    seconds=seconds + 10, rate=rate / 2, tick_s=0.05)  # fmt: skip
        bench.load(load)
        samples: list[dict[str, Any]] = []
        started = time.monotonic()
        for number in range(1, SAMPLES + 1):
            time.sleep(max(0.0, started + number * seconds / SAMPLES - time.monotonic()))
            samples.append({"at_s": round(time.monotonic() - started, 2), **sample(bench)})
            for part in bench.parts.values():
                part.check()
            own = samples[-1]["daemon"]
            say(f"{samples[-1]['at_s']:.0f} of {seconds:.0f} s   {own['rss_mb']:.0f} MB, "
                f"{own['descriptors']} descriptors, {own['threads']} threads, "
                f"{own['files']} files")  # fmt: skip
    return {
        "machine": machine(),
        "seconds": seconds,
        "tuples_per_s": rate,
        "samples": samples,
        "growth": {name: growth(samples, name) for name in ("daemon", "collector")},
    }


def sample(bench: Rig) -> dict[str, dict[str, float]]:
    """What the daemon, with its uplink, and the collector hold now."""
    found: dict[str, dict[str, float]] = {}
    for name, directory in (("daemon", bench.directory / "store"), ("collector", bench.landing)):
        process = psutil.Process(bench.parts[name].process.pid)
        family = [process, *process.children(recursive=True)]
        found[name] = {
            "rss_mb": round(sum(p.memory_info().rss for p in family) / 1e6, 1),
            "descriptors": sum(p.num_fds() for p in family),
            "threads": sum(p.num_threads() for p in family),
        }
        if name == "daemon":  # a landing grows with what lands
            found[name]["files"] = sum(1 for path in directory.rglob("*") if path.is_file())
    return found


def growth(samples: list[dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    """By figure of a process: its medians in the second and the last third, and whether it is
    flat."""
    third = len(samples) // 3
    found: dict[str, dict[str, Any]] = {}
    for key in samples[0][name]:
        before = median(s[name][key] for s in samples[third : 2 * third])
        after = median(s[name][key] for s in samples[2 * third :])
        most = before + max(SLACK[key], before * TOLERANCES[key])
        found[key] = {"before": before, "after": after, "flat": after <= most}
    return found


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the figure: each quantity over time, a line a process."""
    from edged.console.figures import BLUE, RED, new_figure, save

    figure, axes = new_figure(2, 2, 6.0, sharex=True)
    minutes = [s["at_s"] / 60 for s in result["samples"]]
    for own, key in zip(axes.flat, TOLERANCES, strict=True):
        for name, colour in (("daemon", BLUE), ("collector", RED)):
            values = [s[name].get(key) for s in result["samples"]]
            if values[0] is not None:
                own.plot(minutes, values, color=colour, label=name)
        own.set(title=key.replace("_mb", " (MB)"), ylim=(0, None))
    for own in axes[1]:
        own.set(xlabel="minutes")
    axes[0][0].legend()
    rate, cpu = result["tuples_per_s"], result["machine"]["cpu"]
    figure.suptitle(f"measured at {rate:,} tuples/s on {cpu}", fontsize=10)
    save(figure, path)


@click.command(name="soak")
@click.option("--minutes", default=30.0, show_default=True, help="Length of the run.")
@click.option("--rate", default=100_000, show_default=True, help="Tuples/s of both streams.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the figures here (PNG).")
def command(minutes: float, rate: int, path: Path | None, plot: Path | None) -> None:
    """Memory, descriptors, threads and files under a steady load; exits with 1 where one grows."""
    from rich.table import Table

    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    console = figures_console()
    compile_kernels(quiet=False)
    with console.status("starting") as line:
        result = measure(60 * minutes, rate, line.update)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    if plot is not None:
        draw(result, plot)
    table = Table("process", "figure", "second third", "last third", "flat")
    rows = [(n, k, r) for n, figures in result["growth"].items() for k, r in figures.items()]
    for name, key, r in rows:
        table.add_row(name, key, f"{r['before']:,.1f}", f"{r['after']:,.1f}", str(r["flat"]))
    console.print(table)
    if not all(r["flat"] for *_, r in rows):
        sys.exit(1)
