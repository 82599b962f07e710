"""`edged explain`: the plan of a job, without running it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edged.console import options as checks
from edged.errors import ConfigError
from governors.quantities import POWER


@click.command(name="explain")
@click.argument("job", type=click.Path())
@click.option(
    "--store",
    "directory",
    type=click.Path(path_type=Path),
    help="A calibrated store: show the kernels that would run there.",
)
@checks.board_option("Show the job's simulated cost there.", simulated=True)
@click.option("--rate", default=10_000.0, show_default=True,
              type=click.FloatRange(0, min_open=True),
              help="Tuples/s of each stream, for --board.")  # fmt: skip
@click.option("--policy", help="For --board.  [default: the job's own, else hands_off]")
@click.option("--suspend-watts", type=checks.WithUnit(POWER, plain=False),
              help="Of the suspended board, e.g. 150mW: show from which promise on a suspend"
              " between beats pays.  [default: the board's profile]")  # fmt: skip
@click.option("--door", type=click.Path(path_type=Path),
              help="A running daemon's socket: show the job's actual cost beside it, and what its"
              " tables' merges are due.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The plan as JSON.")
def command(
    job: str, directory: Path | None, board: str | None, rate: float, policy: str | None,
    suspend_watts: float | None, door: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Print what JOB (a TOML or JSON document) will do: graph, operators, state, schemas.

    Relative paths are shown as they lead from the working directory.  With --board also its watts
    and joules per million tuples there; simulated.
    """
    from edged.platform.libraries import use_libraries

    use_libraries()
    from rich.console import Console

    from edged.control.table_debts import debts
    from edged.job.explain import explain, show
    from edged.job.plan import load_job
    from edged.placement.profile import load_profile
    from edged.tables.costs import MergePricing, load_costs, outline

    plan = load_job(job)
    profile = None if directory is None else load_profile(directory)
    tables = any(stream.table is not None for stream in plan.streams.values())
    if door is not None and board is None and not tables:
        raise ConfigError("--door: needs --board: measured figures stand beside its prediction")
    energy = None
    if board is not None:
        from edged.energy import predict

        energy = {
            "predicted": predict.predict(plan, board, rate, policy, suspend_watts or 0.0),
            "measured": None if door is None else predict.measured(door, plan),
        }
    if as_json:
        more = {} if energy is None else {"energy": energy}
        click.echo(json.dumps({**explain(plan, profile, Path.cwd()), **more}, indent=2))
        return
    console = Console(highlight=False)
    show(plan, console, profile, Path.cwd())
    if tables:
        costs = MergePricing() if directory is None else load_costs(directory)
        for line in [outline(costs), *([] if door is None else debts(door, plan.name))]:
            console.print(line, markup=False, soft_wrap=True)
    if energy is not None and energy["predicted"] is not None:
        console.print()
        for line in predict.lines(energy["predicted"], energy["measured"]):
            console.print(line, markup=False, soft_wrap=True)
