"""`edged ab`: compare the power of two policies on a running job."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import click

from edged.cli._door import at_door
from edged.console import options as checks

UNITS = {"joules_per_mtuple": "J a million tuples", "watts": "W"}


@click.command(name="ab")
@click.option("--minutes", default=30.0, show_default=True, type=checks.ABOVE_ZERO,
              help="Duration of the comparison.")  # fmt: skip
@click.option("--a", "a", default="hands_off", show_default=True, help="Policy A.")
@click.option("--b", "b", default="race_to_idle", show_default=True, help="Policy B.")
@click.option("--a-set", multiple=True, metavar="KEY=VALUE", help="A setting of A.")
@click.option("--b-set", multiple=True, metavar="KEY=VALUE", help="A setting of B.")
@click.option("--block", "block_s", type=checks.ABOVE_ZERO,
              help="Seconds of a block; default: a 32nd of the duration, at least 15, and five"
                   " times --settle.")  # fmt: skip
@click.option("--settle", "settle_s", type=checks.Number(0), default=0.0,
              help="Seconds after a switch that are not counted; at least what the meter and two"
                   " beats take, as the daemon reports.")  # fmt: skip
@click.option("--json", "path", type=click.Path(path_type=Path, allow_dash=True),
              help="Write the figures here; - prints them.")  # fmt: skip
@at_door
def command(
    door: Path, minutes: float, a: str, b: str, a_set: tuple[str, ...], b_set: tuple[str, ...],
    block_s: float | None, settle_s: float, path: Path | None,
) -> None:  # fmt: skip
    """Compare the policies A and B on a running job, in the order A B B A.

    Reads the daemon's own meters while the job runs.  Afterwards the previous policy runs again,
    also after an interrupt, which ends the comparison with the results so far.
    """
    from rich.console import Console

    from edged.control import door as doors
    from edged.energy import policy_comparison
    from edged.energy.settings import setting

    arms = {
        "A": (a, dict(setting(pair, "--a-set") for pair in a_set)),
        "B": (b, dict(setting(pair, "--b-set") for pair in b_set)),
    }

    checks.output("--json", path)

    def ask(cmd: str, **more: Any) -> Any:
        return doors.ask(door, cmd, **more)

    settle_s = max(settle_s, policy_comparison.settle_s(ask))
    quads, each_s = policy_comparison.plan(minutes, settle_s, block_s)
    console = Console(highlight=False, stderr=path == Path("-"))
    experiment = policy_comparison.Experiment(ask, monotonic, sleep, arms, settle_s)
    try:
        with console.status("") as status:
            experiment.run(quads, each_s, status.update)
    except KeyboardInterrupt:
        console.print("interrupted: the figures are those of the completed blocks")
    result = policy_comparison.report(experiment.blocks, a, b, settle_s)
    _show(result, console)
    if path == Path("-"):
        click.echo(json.dumps(result, indent=1))
    elif path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


def _show(result: dict[str, Any], console: Any) -> None:
    from rich.table import Table

    a, b = result["a"], result["b"]
    percent = round(100 * result["confidence"])
    table = Table(title=f"{b} (B) less {a} (A): {result['provenance']}", title_justify="left")
    for heading in ("", "A", "B − A", f"{percent} % interval", "of A", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, unit in UNITS.items():
        d = result["difference"][name]
        if d is None:
            continue
        note = "" if d["told_from_zero"] else "not distinguishable from zero"
        part = f"{100 * d['mean'] / d['a_mean']:+.1f} %" if d["a_mean"] else ""
        table.add_row(unit, f"{d['a_mean']:.4g}", f"{d['mean']:+.4g}",
                      f"{d['low']:+.4g} … {d['high']:+.4g}", part, note)  # fmt: skip
    if table.row_count:
        console.print(table)
    else:
        console.print("no interval: fewer than two quads of blocks count")
    console.print(
        f"{result['blocks_counted']} blocks in {result['quads']} quads,"
        f" the first {result['settle_s']:.3g} s of each not counted,"
        f" {result['blocks_excluded']} blocks left out, gaps of {result['gap_s']:g} s in the meter;"
        f" joules are of {result['covers']}"
    )
    for reason in dict.fromkeys(x["excluded"] for x in result["blocks"] if x["excluded"]):
        console.print(f"left out with its quad: {reason}")
    if rest := len(result["blocks"]) % len(result["order"]):
        console.print(f"left out: the last {rest}, which are no whole {result['order']}")
    if result["provenance"] == "modelled":
        console.print("the joules are modelled, and so is the difference")
    console.print(f"[dim]{result['method']}[/]")
