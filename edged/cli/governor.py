"""`edged governor`: what may be set on this board, which policy runs, and putting limits back."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from edged.errors import ConfigError

EX_DATAERR, EX_TEMPFAIL, EX_NOPERM = 65, 75, 77
"""sysexits.h: the journal or a write is at fault; a daemon runs with it; no right to write."""

_root = click.option(
    "--root",
    default="/",
    show_default=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The board's tree.",
)
_journal = click.option(
    "--journal",
    default="/var/lib/edged/limits.journal",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the daemon keeps what stood there before.",
)
_helper = click.option(
    "--helper",
    default="/run/edged/governor.sock",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The root helper's socket.",
)
_door = click.option(
    "--door", type=click.Path(path_type=Path), help="A running daemon's control socket."
)
_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(name="governor")
def command() -> None:
    """Clocks and sleep states of this board."""


@command.command(name="show")
@_root
@_journal
@_helper
@_door
@_json
def show(root: Path, journal: Path, helper: Path, door: Path | None, as_json: bool) -> None:
    """Show what can be set here, how it is set now, and who may set it; with --door what a running
    daemon does with it."""
    if door is not None:
        _show_running(door, as_json)
        return
    document = _describe(root, journal, helper)
    if as_json:
        click.echo(json.dumps(document))
        return
    board, writer = document["board"], document["writer"]
    click.echo(f"{board['name']} ({board['model'] or 'no model'}) {board['release']}".rstrip())
    click.echo(f"writes: {writer['name']} ({writer['why']})")
    for knob in document["knobs"]:
        now = knob["now"] or knob["problem"]
        steps = f"{knob['steps']} steps" if knob["steps"] else "continuous"
        asked = ", only if asked for" if knob["optional"] else ""
        click.echo(f"  {knob['name']}: {now}, of {knob['range']} ({steps}{asked})")
    for switch in document["switches"]:
        values = ", ".join(switch["values"])
        click.echo(f"  {switch['name']}: {switch['now']}, of {values} (only if asked for)")
    click.echo(f"journal: {document['journal']}")


@command.command(name="policy")
@click.argument("name")
@click.option("--door", required=True, type=click.Path(path_type=Path),
              help="The daemon's control socket (STORE/door).")  # fmt: skip
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="A setting of the policy.")
@click.option("--job", help="Of this job only; NAME `none` gives its choice up.")
@_json
def policy(name: str, door: Path, pairs: tuple[str, ...], job: str | None, as_json: bool) -> None:
    """Let a running daemon go on with the policy NAME, between two beats.

    Policies of several jobs are combined: the strictest intake, and clocks only where all agree.
    Exits with 77 where it may set nothing here: hands_off runs then.
    """
    from edged.door import ask
    from edged.energy.settings import setting

    settings = dict(setting(pair, "--set") for pair in pairs)
    answer = ask(door, "governor", policy=name, settings=settings, job=job)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        click.echo(f"{answer['policy']}, was {answer['was']}")
    if answer["problem"]:
        click.echo(f"edged: {answer['problem']}", err=True)
        click.get_current_context().exit(EX_NOPERM)


@command.command(name="restore")
@_root
@_journal
@_helper
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The daemon's configuration: its board, journal and helper are meant.",
)
@_json
@click.pass_context
def restore(
    ctx: click.Context, root: Path, journal: Path, helper: Path, config: Path | None, as_json: bool
) -> None:
    """Put back what a daemon that died had set; needs no daemon.

    Only files that still hold what edged wrote are touched.  Exits with 0 where nothing is left to
    be restored, 65 where the journal or a write is at fault, 75 while a daemon runs with it, 77
    without the right to write.
    """
    from governors.actuators.base import findings
    from governors.actuators.restoring import Owned
    from governors.actuators.restoring import restore as put_back
    from governors.actuators.writers import choose_writer
    from governors.detect import detect
    from governors.errors import ActuatorError, NotPermitted
    from governors.simulated.kernel import open_root

    if config is not None:
        root, journal, helper = _configured(config)
    sysfs = open_root(root)
    code, problem, lines = 0, "", []
    try:
        if journal.exists():
            writer = choose_writer(sysfs, findings(sysfs, detect(sysfs)), helper)
            with closing(writer):
                lines = put_back(sysfs, writer, journal)
    except Owned as raised:
        code, problem = EX_TEMPFAIL, str(raised)
    except NotPermitted as raised:
        code, problem = EX_NOPERM, str(raised)
    except ActuatorError as raised:
        code, problem = EX_DATAERR, str(raised)
    if as_json:
        click.echo(json.dumps({"restored": lines, "problem": problem}))
    else:
        for line in lines or ([] if problem else ["nothing to restore"]):
            click.echo(line)
    if problem and not as_json:
        click.echo(f"edged: {problem}", err=True)
    ctx.exit(code)


def _configured(path: Path) -> tuple[Path, Path, Path]:
    """Root, journal and helper of the daemon with this configuration."""
    from edged.config import load
    from edged.configured import board_of

    config = load(path)
    board, store = board_of(config), Path(config.store.directory)
    return board.root(store), board.journal(store), board.helper


def _show_running(door: Path, as_json: bool) -> None:
    """What a running daemon says of its limits and its policy."""
    from edged.door import ask

    energy = ask(door, "status")["energy"]
    if energy is None:
        raise ConfigError(f"the daemon at {door} watches no board; start it with --board")
    keys = ("board", "policy", "writer", "owned", "refused", "restored", "changes", "limits")
    if as_json:
        click.echo(json.dumps({key: energy[key] for key in keys}))
        return
    ran = energy["policy"]
    click.echo(f"{energy['board']['name']}: {ran['policy']} {ran['settings'] or ''}".rstrip())
    for line in (ran["reason"], ran["forecast"], ran["problem"]):
        if line:
            click.echo(f"  {line}")
    click.echo(f"writes: {energy['writer']['name']} ({energy['writer']['why']})")
    for name, limits in energy["limits"].items():
        clocks = (limits[key] for key in ("hz", "min_hz", "max_hz"))
        now, low, high = ("?" if hz is None else f"{hz / 1e6:g}" for hz in clocks)
        owned = ", owned" if name in energy["owned"] else ""
        click.echo(f"  {name}: {now} MHz, of {low} to {high}{owned}")
    for name, why in energy["refused"].items():
        click.echo(f"  {name}: not set: {why}")
    for line in energy["restored"]:
        click.echo(f"restored: {line}")
    for change in energy["changes"]:
        click.echo(f"changed: {change['text']}")


def _describe(root: Path, journal: Path, helper: Path) -> dict[str, Any]:
    from governors.actuators.base import Knob, Switch, findings
    from governors.actuators.writers import choose_writer
    from governors.detect import detect
    from governors.simulated.kernel import open_root

    sysfs = open_root(root)
    board = detect(sysfs)
    found = findings(sysfs, board)
    writer = choose_writer(sysfs, found, helper)
    writer.close()
    held = journal.exists()
    return {
        "board": {"name": board.name, "model": board.model, "release": board.release},
        "writer": {"name": writer.name, "why": writer.why},
        "knobs": [_knob(sysfs, knob) for knob in found if isinstance(knob, Knob)],
        "switches": [
            {"name": s.name, "values": s.values, "now": sysfs.get(s.path)}
            for s in found
            if isinstance(s, Switch)
        ],
        "journal": f"{journal}: limits are set by edged" if held else f"{journal}: none",
    }


def _knob(sysfs: Any, knob: Any) -> dict[str, Any]:
    from governors.actuators.base import Limits, limits_now
    from governors.errors import ActuatorError

    now, problem = None, ""
    try:
        now = limits_now(sysfs, knob)
    except ActuatorError as raised:
        problem = str(raised)
    return {
        "name": knob.name,
        "kind": knob.kind,
        "cores": knob.cores,
        "now": str(now) if now else None,
        "min_hz": now.min_hz if now else None,
        "max_hz": now.max_hz if now else None,
        "problem": problem,
        "range": str(Limits(knob.floor_hz, knob.ceiling_hz)),
        "steps": len(knob.table_hz),
        "optional": knob.optional,
    }
