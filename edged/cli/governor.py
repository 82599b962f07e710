"""`edged governor`: settable clocks and sleep states, the running policy, restoring limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.cli import _api
from edged.console import options as checks
from edged.errors import ConfigError
from edged.rest import Client

if TYPE_CHECKING:
    from rich.console import Console

    from governors.sysfs import Sysfs

EX_DATAERR, EX_TEMPFAIL, EX_NOPERM = 65, 75, 77
"""sysexits.h: fault of the journal or of a write; a daemon runs with the journal; no permission."""

_root = click.option("--root", hidden=True, type=checks.Board())
"""The older name of `--board`."""
_journal = click.option(
    "--journal",
    default="/var/lib/edged/limits.journal",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The daemon's journal of previous values.",
)
_helper = click.option(
    "--helper",
    default="/run/edged/governor.sock",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The root helper's socket.",
)


@click.group(name="governor")
def command() -> None:
    """Clocks and sleep states of this board."""


@command.command(name="show")
@click.option("--board", is_flag=False, flag_value="/", type=checks.Board(),
              metavar="[DIR|simulated:NAME]",
              help="Show what can be set on a board's tree (this machine's without a value) or on a"
              " simulated board (`edged board --list`); needs no daemon.")  # fmt: skip
@_root
@_journal
@_helper
@_api.on_api
@_api.as_json
def show(
    client: Client, board: str | None, root: str | None, journal: Path, helper: Path, as_json: bool
) -> None:  # fmt: skip
    """Show a running daemon's clocks and policy.  With --board, which needs no daemon, show what
    can be set there, its current value, and the permission for it."""
    from edged.cli.board import opened

    named = board or root
    if named is None:
        _show_running(client, as_json)
        return
    with opened(named) as sysfs:
        document = _describe(sysfs, journal, helper)
    if as_json:
        click.echo(json.dumps(document))
        return
    found, writer = document["board"], document["writer"]
    click.echo(f"{found['name']} ({found['model'] or 'no model'}) {found['release']}".rstrip())
    click.echo(f"writes: {writer['name']} ({writer['why']})")
    for knob in document["knobs"]:
        now = knob["now"] or knob["problem"]
        steps = f"{knob['steps']} steps" if knob["steps"] else "continuous"
        optional = ", only if enabled" if knob["optional"] else ""
        click.echo(f"  {knob['name']}: {now}, of {knob['range']} ({steps}{optional})")
    for switch in document["switches"]:
        values = ", ".join(switch["values"])
        click.echo(f"  {switch['name']}: {switch['now']}, of {values} (only if enabled)")
    click.echo(f"journal: {document['journal']}")


@command.command(name="policy")
@click.argument("name")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="A setting of the policy.")
@click.option("--job", help="For this job only; NAME `none`: the document's policy.")
@_api.on_api
@_api.as_json
@click.pass_context
def policy(
    ctx: click.Context, client: Client, name: str, pairs: tuple[str, ...], job: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Switch a running daemon to the policy NAME, between two beats.

    The choice survives restarts, until the configuration changes or NAME is `none`: then the
    centre's policy applies, or the configuration's.  Policies of several jobs are combined: the
    strictest intake, and clocks only where all agree. Exits with 77 where the policy has no
    permission here: hands_off runs then.
    """
    from edged.energy.settings import setting

    settings = dict(setting(pair, "--set") for pair in pairs)
    answer = client.set_governor(name, settings=settings, job=job)
    if as_json:
        click.echo(json.dumps(answer))
    else:
        click.echo(_named(answer))
    if answer["problem"]:
        click.echo(f"edged: {answer['problem']}", err=True)
        ctx.exit(EX_NOPERM)


@command.command(name="policies")
@click.argument("name", required=False)
@_api.as_json
def policies(name: str | None, as_json: bool) -> None:
    """The policies, or the one called NAME, and their settings; needs no daemon."""
    from rich.console import Console

    from edged.config.energy_tables import settings_of
    from governors.errors import GovernorError
    from governors.policies.base import find_policy, load_all

    try:
        found = {name: find_policy(name)} if name else dict(sorted(load_all().items()))
    except GovernorError as problem:
        raise ConfigError(str(problem)) from problem
    document = [
        {
            "policy": called,
            "text": (kind.__doc__ or "").partition("\n")[0],
            "needs_model": kind.needs_model,
            "settings": [
                dict(zip(("key", "value", "default", "meaning"), row, strict=True))
                for row in settings_of(kind)
            ],
        }
        for called, kind in found.items()
    ]
    if as_json:
        click.echo(json.dumps(document))
    else:
        _show_policies(document, Console(markup=False, highlight=False))


@command.command(name="restore")
@checks.board_option("A simulated board's tree is STORE/board.  [default: /]")
@_root
@_journal
@_helper
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The daemon's configuration, which names board, journal and helper.",
)
@_api.as_json
@click.pass_context
def restore(
    ctx: click.Context, board: str | None, root: str | None, journal: Path, helper: Path,
    config: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Restore the values from before a daemon that died; needs no daemon.

    Writes only files that still hold the value that edged wrote.  Exits with 0 where nothing is
    left to restore, 65 on a fault of the journal or of a write, 75 while a daemon runs with it, 77
    without permission.
    """
    from governors.actuators.base import findings
    from governors.actuators.journal import OwnedElsewhere
    from governors.actuators.restoring import restore as put_back
    from governors.actuators.writers import choose_writer
    from governors.detect import detect
    from governors.errors import ActuatorError, NotPermitted
    from governors.simulated.kernel import open_root

    tree = _tree(board or root or "/")
    if config is not None:
        tree, journal, helper = _configured(config)
    sysfs = open_root(tree)
    code, problem, lines = 0, "", []
    try:
        if journal.exists():
            writer = choose_writer(sysfs, findings(sysfs, detect(sysfs)), helper)
            with closing(writer):
                lines = put_back(sysfs, writer, journal)
    except OwnedElsewhere as raised:
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


def _tree(board: str) -> Path:
    """The tree of a board whose limits are restored.  Raises ConfigError for one without."""
    from governors.board_names import NONE, SIMULATED

    if board == NONE or board.startswith(SIMULATED):
        raise ConfigError(
            f"--board: {board} has no tree by itself; name STORE/board of its daemon, or --config"
        )
    return Path(board)


def _configured(path: Path) -> tuple[Path, Path, Path]:
    """Root, journal and helper of the daemon with this configuration.

    Clocks must be restorable although the file is faulty: its faults are printed, and the rest of
    it applies.
    """
    from edged.config import read
    from edged.daemon.configuration import board_of

    config, wrong = read(path)
    for fault in wrong:
        click.echo(f"edged: {fault}", err=True)
    board, store = board_of(config), Path(config.store.directory)
    return board.root(store), board.journal(store), board.helper


def _show_running(client: Client, as_json: bool) -> None:
    """Limits and policy of a running daemon."""
    board = client.board()
    if not board["present"]:
        raise ConfigError("the daemon has no board: set energy.board, or --board")
    ran = client.governor()
    if as_json:
        click.echo(json.dumps({**ran, "board": board["name"], "writer": board["writer"]}))
        return
    mark = " (simulated)" if ran["simulated"] else ""
    click.echo(f"{board['name']}{mark}: {_named(ran)}")
    for line in (ran["reason"], ran["forecast"], ran["problem"]):
        if line:
            click.echo(f"  {line}")
    if ran["awaited"]:
        click.echo(f"  {ran['awaited']} starts as soon as possible")
    if own := ran["own"]:
        click.echo(f"  daemon: {_named(own)} ({own['origin']})")
    for job, chosen in ran["jobs"].items():
        click.echo(
            f"  job {job}: {_named(chosen)} ({chosen['origin']}) {chosen['problem']}".rstrip()
        )
    click.echo(f"writes: {board['writer']['name']} ({board['writer']['why']})")
    for domain in ran["clocks"]:
        hz = (domain["hz"], domain["min_hz"], domain["max_hz"])
        now, low, high = ("?" if one is None else f"{one / 1e6:g}" for one in hz)
        owned = ", owned" if domain["name"] in ran["owned"] else ""
        click.echo(f"  {domain['name']}: {now} MHz, of {low} to {high}{owned}{mark}")
    for name, why in ran["refused"].items():
        click.echo(f"  {name}: not set: {why}")
    for text in ran["restored"]:
        click.echo(f"restored: {text}")
    for change in ran["changes"]:
        click.echo(f"changed: {change['text']}")


def _show_policies(document: list[dict[str, Any]], console: Console) -> None:
    """Each policy with a table of its settings."""
    from rich.table import Table

    for policy in document:
        console.print(f"{policy['policy']}: {policy['text']}", style="bold")
        if not policy["settings"]:
            console.print("  no settings")
            continue
        table = Table(box=None, pad_edge=False)
        for column in ("  setting", "value", "default", "meaning"):
            table.add_column(column, overflow="fold")
        for setting in policy["settings"]:
            key, *others = setting.values()
            table.add_row(f"  {key}", *others)
        console.print(table)


def _named(chosen: Mapping[str, Any]) -> str:
    """A policy with its settings, as text."""
    return f"{chosen['policy']} {chosen['settings'] or ''}".rstrip()


def _describe(sysfs: Sysfs, journal: Path, helper: Path) -> dict[str, Any]:
    from governors.actuators.base import Knob, Switch, findings
    from governors.actuators.writers import choose_writer
    from governors.detect import detect

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
    from governors.actuators.base import ClockLimits, limits_now
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
        "range": str(ClockLimits(knob.floor_hz, knob.ceiling_hz)),
        "steps": len(knob.table_hz),
        "optional": knob.optional,
    }
