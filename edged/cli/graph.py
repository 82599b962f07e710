"""`edged graph`: a graph document, its jobs on several daemons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.cli._api import as_json
from edged.errors import JobError

if TYPE_CHECKING:
    from edged.graph.check import PlacedGraph
    from edged.graph.daemons import DaemonView
    from edged.graph.rollout import RolloutOutcome

EX_DATAERR, EX_UNAVAILABLE, EX_TEMPFAIL = 65, 69, 75
_document = click.argument("document", type=click.Path(dir_okay=False, path_type=Path))


@click.group(name="graph")
def command() -> None:
    """Graphs: one document for a stream job over several daemons.

    Uses the daemons' REST APIs.  Exits with 65 for a wrong document, 69 where a daemon does not
    answer, 75 where a deployment cannot go on, 77 where a token does not permit it.
    """


@command.command("validate")
@_document
@as_json
@click.pass_context
def validate(ctx: click.Context, document: Path, as_json: bool) -> None:
    """Check DOCUMENT without asking a daemon, and list all faults with their paths."""
    from edged.graph.check import check
    from edged.graph.document import load_graph

    try:
        placed, wrong = check(load_graph(document))
    except JobError as problem:
        placed, wrong = None, [problem]
    notes = [] if placed is None else placed.warnings
    if as_json:
        rows = [{"path": f.path, "problem": f.problem, "advice": f.advice} for f in wrong]
        verdict = {"graph": str(document), "valid": not wrong, "faults": rows, "warnings": notes}
        click.echo(json.dumps(verdict, indent=2))
    else:
        for fault in wrong:
            click.echo(f"edged: {fault}", err=True)
        for note in notes:
            click.echo(f"edged: warning: {note}", err=True)
        count = "1 fault" if len(wrong) == 1 else f"{len(wrong)} faults"
        text = f"edged: {document}: {count}" if wrong else f"{document} is valid"
        click.echo(text, err=bool(wrong))
    ctx.exit(EX_DATAERR if wrong else 0)


@command.command("plan")
@_document
@click.option("--offline", is_flag=True, help="Ask no daemon: all count as idle.")
@click.option("--jobs", "directory", type=click.Path(file_okay=False, path_type=Path),
              help="Write each daemon's jobs as DIRECTORY/DAEMON/JOB.json.")  # fmt: skip
@as_json
def plan(document: Path, offline: bool, directory: Path | None, as_json: bool) -> None:
    """Show the jobs of DOCUMENT, where they run, their links, and latencies added up."""
    from edged.graph.show import describe, lines

    placed, _ = _placed(document, offline)
    if directory is not None:
        for job in placed.jobs:
            path = directory / job.daemon / f"{job.name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(job.document, indent=2) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(describe(placed), indent=2))
        return
    for line in lines(placed):
        click.echo(line)


@command.command("deploy")
@_document
@click.option("--landing", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="As desired state of the daemons' devices, through the centre.")  # fmt: skip
@as_json
def deploy(document: Path, landing: Path | None, as_json: bool) -> None:
    """Bring DOCUMENT's jobs to its daemons, downstream first, and remove those it lacks.

    A second deployment changes nothing; one that was killed goes on where it stood.
    """
    from edged.graph import rollout

    if landing is not None:
        from edged.graph import desired

        placed, _ = _placed(document, offline=True)
        _print(desired.deploy(placed, landing), placed, "is the desired state", as_json)
        return
    placed, views = _placed(document)
    _print(rollout.deploy(placed, views, _progress), placed, "is deployed", as_json)


@command.command("scale")
@_document
@click.argument("counts", nargs=-1, required=True, metavar="PART=INSTANCES...")
@as_json
def scale(document: Path, counts: tuple[str, ...], as_json: bool) -> None:
    """Give parts of DOCUMENT another number of instances, with their state, under load.

    The same numbers belong into the document: a later deployment compares with it.  A scaling that
    was killed goes on when the same command is given again; DOCUMENT.rescale holds the state
    meanwhile.
    """
    from edged.graph import rescale

    wanted = dict(_count(text) for text in counts)
    placed, views = _placed(document, change=lambda given: rescale.scaled(given, wanted))
    outcome = rescale.rescale(placed, views, _journal(document), _progress)
    if not as_json:
        click.echo(f"senders waited {outcome.pause_s:.3f} s, {outcome.state_bytes} bytes of state")
    _print(outcome, placed, "is rescaled", as_json)


def _count(text: str) -> tuple[str, int]:
    part, _, number = text.partition("=")
    if not number.isdecimal() or int(number) < 1:
        raise click.UsageError(f"{text!r}: write PART=INSTANCES, e.g. mean=3")
    return part, int(number)


@command.command("status")
@_document
@as_json
@click.pass_context
def status(ctx: click.Context, document: Path, as_json: bool) -> None:
    """Compare the daemons with DOCUMENT.  Exits with 75 where they differ or a job has failed."""
    from edged.graph import status as graph_status

    placed, views = _placed(document)
    found = graph_status.status(placed, views)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        version = "" if found["version"] is None else f", version {found['version']}"
        click.echo(f"{found['graph']}: {found['state']}{version}")
        for daemon in found["daemons"]:
            click.echo(f"  {daemon['name']}: {daemon['problem'] or daemon['state'] or 'unused'}")
        for job in found["jobs"]:
            rows = sum(stream.get("rows", 0) for stream in job["streams"].values())
            text = f"  {job['name']} on {job['daemon']}: {job['state'] or '–'}, {job['document']}"
            click.echo(f"{text}, {rows} rows{'  ' + job['problem'] if job['problem'] else ''}")
        for name in found["left_over"]:
            click.echo(f"  left over: {name}")
    unreachable = any(view.problem for view in views.values())
    whole = graph_status.is_whole(found)
    ctx.exit(EX_UNAVAILABLE if unreachable else 0 if whole else EX_TEMPFAIL)


@command.command("simulate")
@_document
@click.option("--cores", default=2.0, show_default=True, type=click.FloatRange(0, min_open=True),
              help="Of each daemon's machine.")  # fmt: skip
@click.option("--mbit", default=1000.0, show_default=True,
              type=click.FloatRange(0, min_open=True),
              help="Mbit/s of its port, in each direction.")  # fmt: skip
@click.option("--text", "text_bytes", default=16, show_default=True, type=click.IntRange(0),
              help="Bytes of a text or binary value.")  # fmt: skip
@as_json
def simulate(document: Path, cores: float, mbit: float, text_bytes: int, as_json: bool) -> None:
    """The largest steady rate of DOCUMENT on such machines, and what bounds it.

    Every figure is simulated; docs/graph.md has the assumptions.
    """
    from edged.graph.flow import DaemonMachine, steady_flow

    placed, _ = _placed(document, offline=True)
    flow = steady_flow(placed, DaemonMachine(cores, bits_per_s=mbit * 1e6, text_bytes=text_bytes))
    if as_json:
        click.echo(json.dumps(flow.to_json(), indent=2))
        return
    click.echo(f"{flow.rows_per_s:.3g} rows/s of each stream, bound by {flow.bound_by}")
    click.echo(f"{flow.taken_per_s:.3g} rows/s over all hops, {flow.wire_bytes_per_s:.3g} bytes/s")
    for name, used in flow.used.items():
        shares = ", ".join(f"{what} {100 * share:.0f} %" for what, share in used.items())
        click.echo(f"  {name}: {shares}")


@command.command("stop")
@_document
@as_json
def stop(document: Path, as_json: bool) -> None:
    """Drain all jobs, upstream first; `edged graph deploy` continues from there."""
    from edged.graph import rollout

    placed, views = _placed(document)
    _print(rollout.stop(placed, views, _progress), placed, "is stopped", as_json)


@command.command("remove")
@_document
@click.option("--now", is_flag=True,
              help="Do not close windows; data that is not in a page is lost.")  # fmt: skip
@as_json
def remove(document: Path, now: bool, as_json: bool) -> None:
    """End all jobs, upstream first, as if their producers had ended, and delete them."""
    from edged.graph import rollout

    placed, views = _placed(document)
    outcome = rollout.remove(placed, views, now, _progress)
    _journal(document).unlink(missing_ok=True)  # its versions begin again at 1
    _print(outcome, placed, "is removed", as_json)


def _journal(document: Path) -> Path:
    """The file that holds state while the graph is rescaled."""
    return document.with_name(f"{document.name}.rescale")


def _placed(
    document: Path, offline: bool = False, change: Callable[[Any], Any] = lambda given: given
) -> tuple[PlacedGraph, dict[str, DaemonView]]:
    """The document, placed by what its daemons run.  Raises JobError with all faults."""
    from edged.graph.check import load
    from edged.graph.daemons import loads, observe
    from edged.graph.document import load_graph

    given = change(load_graph(document))
    placed = load(given)
    if offline:
        return placed, {}
    open_choice = any(not stage.on for stage in placed.cut.stages.values())
    views = observe(placed.plan, watch=open_choice)
    if open_choice:
        placed = load(given, loads(placed.plan, views))
    return placed, views


def _progress(text: str) -> None:
    click.echo(f"edged: {text}", err=True)


def _print(outcome: RolloutOutcome, placed: PlacedGraph, what: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"graph": placed.plan.name, **outcome.to_json()}))
        return
    click.echo(f"{placed.plan.name} {what}, version {outcome.version}")
