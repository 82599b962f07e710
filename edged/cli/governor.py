"""`edged governor`: what may be set on this board, and putting it back after a crash."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import click

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
_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(name="governor")
def command() -> None:
    """Clocks and sleep states of this board."""


@command.command(name="show")
@_root
@_journal
@_helper
@_json
def show(root: Path, journal: Path, helper: Path, as_json: bool) -> None:
    """Show what can be set here, how it is set now, and who may set it."""
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


@command.command(name="restore")
@_root
@_journal
@_helper
@_json
@click.pass_context
def restore(ctx: click.Context, root: Path, journal: Path, helper: Path, as_json: bool) -> None:
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
    from governors.sysfs import Sysfs

    sysfs = Sysfs(root)
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


def _describe(root: Path, journal: Path, helper: Path) -> dict[str, Any]:
    from governors.actuators.base import Knob, Switch, findings
    from governors.actuators.writers import choose_writer
    from governors.detect import detect
    from governors.sysfs import Sysfs

    sysfs = Sysfs(root)
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
