"""The fault campaign: `python -m tests.campaign`, as `make faults` runs it.

Each class of faults runs a whole system, breaks it in its own way, and lets the oracle of
acknowledged ids judge what has landed (`tests/campaign/oracle.py`).  It ends with 1 where a promise
was broken; logs and landing of such a class stay in `build/faults/`.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.campaign import classes  # noqa: F401  (registers)
from tests.campaign.registry import CLASSES, FaultClass, Run
from tests.campaign.rig import Outcome

PLACE = Path("build/faults")
NAMES = (
    "kill_daemon", "kill_collector", "kill_uplink", "kill_api", "kill_spark", "power_device",
    "power_centre", "torn_sectors", "bit_flips", "eio", "enospc", "full_disk", "proxy", "clock",
    "freeze", "memory", "copied_store", "mixed",
)  # fmt: skip
"""All classes, in the order of the table."""
COUNTS = ("missing", "duplicates", "corrupted", "reordered")


@dataclasses.dataclass
class Result:
    """The sum over all rounds of one class."""

    name: str
    outcome: Outcome
    seeds: list[int]
    seconds: float = 0.0


class Campaign:
    """Rounds over the chosen classes until the time is over; one round without a limit."""

    def __init__(self, chosen, seed: int, minutes: float, lanes: int, console: Console):
        self.chosen: list[FaultClass] = chosen
        self.seed, self.minutes, self.lanes, self.console = seed, minutes, lanes, console
        self.results = {c.name: Result(c.name, Outcome(), []) for c in chosen}

    def run(self) -> None:
        """All rounds."""
        began, number = time.monotonic(), 0
        columns = (TextColumn("{task.description:16}"), BarColumn(), MofNCompleteColumn(),
                   TimeElapsedColumn(), TextColumn("{task.fields[state]}"))  # fmt: skip
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as bar:
            while number == 0 or time.monotonic() - began < 60 * self.minutes:
                seed = self.seed + number
                for each in (c for c in self.chosen if c.computes):
                    self._one(each, seed, bar)
                with ThreadPoolExecutor(self.lanes) as lanes:
                    waiting = [c for c in self.chosen if not c.computes]
                    list(lanes.map(lambda each, seed=seed: self._one(each, seed, bar), waiting))
                number += 1

    def _one(self, each: FaultClass, seed: int, bar: Progress) -> None:
        result = self.results[each.name]
        place = PLACE / f"{each.name}-{seed}"
        shutil.rmtree(place, ignore_errors=True)
        task = bar.add_task(each.name, total=each.runs, state=f"seed {seed}")
        outcome = Outcome()
        run = Run(place.absolute(), seed, each.runs, outcome, lambda: bar.advance(task))
        began = time.monotonic()
        try:
            each.make(run)
        except Exception:
            outcome.problems.append(traceback.format_exc())
        result.seconds += time.monotonic() - began
        result.seeds.append(seed)
        total = result.outcome
        total.runs += outcome.runs
        total.verdict.add(outcome.verdict)
        total.problems += [f"seed {seed}: {text}" for text in outcome.problems]
        total.new_id_s = max(total.new_id_s, outcome.new_id_s)
        bar.update(task, state=f"seed {seed}: {'FAILED' if outcome.failed else 'ok'}")
        bar.stop_task(task)
        if not self.console.is_terminal:
            state = "FAILED" if outcome.failed else "ok"
            took = f"{time.monotonic() - began:.0f} s"
            self.console.print(f"{each.name}: {outcome.runs} runs, seed {seed}, {took}: {state}")
        if not outcome.failed:
            shutil.rmtree(place, ignore_errors=True)

    def failed(self) -> bool:
        """Whether any class broke a promise."""
        return any(r.outcome.failed for r in self.results.values())


def table_of(results: dict[str, Result]) -> Table:
    """The result for a terminal; classes that did not run are named."""
    table = Table("class", box=None, pad_edge=False, caption="lost: reported with their extent")
    for heading in ("runs", "rows", *COUNTS, "lost", "new id", "seconds"):
        table.add_column(heading, justify="right")
    for name in NAMES:
        if name not in results:
            table.add_row(name, "not run", style="dim")
            continue
        found = results[name].outcome
        counts = [str(getattr(found.verdict, c)) for c in COUNTS]
        table.add_row(
            name, str(found.runs), str(found.verdict.landed), *counts, str(found.verdict.gaps),
            f"{found.new_id_s:.1f} s", f"{results[name].seconds:.0f}",
            style="red" if found.failed else "",
        )  # fmt: skip
    return table


def report_of(results: dict[str, Result], seconds: float) -> dict:
    """The content of build/faults.json."""
    rows = []
    for name in NAMES:
        found = results[name].outcome if name in results else Outcome()
        row = {"name": name, "runs": found.runs}
        row |= {c: getattr(found.verdict, c) for c in COUNTS}
        row |= {"reported_lost": found.verdict.gaps, "landed": found.verdict.landed,
                "new_id_s": round(found.new_id_s, 2), "problems": found.problems,
                "seconds": round(results[name].seconds, 1) if name in results else 0.0,
                "seeds": results[name].seeds if name in results else []}  # fmt: skip
        rows.append(row)
    return {"classes": rows, "seconds": round(seconds, 1)}


@click.command()
@click.option("--class", "names", multiple=True, type=click.Choice(NAMES), help="Only these.")
@click.option("--minutes", type=float, default=0.0, help="Repeat all classes for this long.")
@click.option("--runs", type=int, default=0, help="Faults of a class, instead of its own number.")
@click.option("--lanes", type=int, default=2, help="Classes at a time; they mostly wait.")
@click.option("--seed", type=int, help="Repeat the dice of an earlier campaign.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the result here.")
def main(names, minutes, runs, lanes, seed, path) -> None:
    """Break a whole system in every way and count what was acknowledged and is not there."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends all processes
    seed = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
    console.print(f"seed {seed}: repeat with --seed {seed}")
    chosen = [CLASSES[n] for n in NAMES if n in CLASSES and (not names or n in names)]
    if runs:
        chosen = [dataclasses.replace(c, runs=runs) for c in chosen]
    began = time.monotonic()
    campaign = Campaign(chosen, seed, minutes, lanes, console)
    try:
        campaign.run()
    finally:
        seconds = time.monotonic() - began
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(report_of(campaign.results, seconds), indent=1) + "\n")
        console.print(table_of(campaign.results))
        for result in campaign.results.values():
            for text in result.outcome.verdict.examples + result.outcome.problems:
                console.print(f"[red]{result.name}[/]", text, markup=False)
    console.print(f"{seconds:.0f} s; seed {seed}")
    sys.exit(1 if campaign.failed() else 0)


if __name__ == "__main__":
    main()
