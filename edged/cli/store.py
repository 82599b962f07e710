"""`edged store`: a device's store, while no daemon uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.store.migration import Pending

_directory = click.argument(
    "directory", metavar="STORE", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


@click.group(name="store")
def command() -> None:
    """The store of a device: what is damaged in it, and its format."""


@command.command("check")
@_directory
@_as_json
def check(directory: Path, as_json: bool) -> int:
    """Read all of STORE and report damage and what is lost with it; nothing is changed.

    A daemon may use the store meanwhile. Exit code 0: everything is whole. 10: something is damaged
    and nothing is lost; a start, or `edged store repair`, goes on past it. 65: something is lost;
    streams or jobs, numbers, beats and times are printed. 75: an unknown format.
    """
    from edged.console.damage_report import show
    from edged.store.inspection import inspect

    return show(inspect(_store(directory), _wall_us), as_json)


@command.command("repair")
@_directory
@_as_json
def repair(directory: Path, as_json: bool) -> int:
    """Do for STORE what a start does past damage, and print the report of `edged store check`.

    Run it as the daemon's user. Damaged bytes are kept in STORE/quarantine, and lost pages are
    recorded for the centre. Damage of the log is left to the next start, which knows the jobs. Exit
    code 0: everything is whole now. 10: the next start mends the rest. 65: something is lost. 73: a
    daemon uses the store; nothing was changed.
    """
    from edged.console.damage_report import show
    from edged.store.inspection import repair as mend

    return show(mend(_store(directory), _wall_us), as_json)


def _wall_us(facts: bytes) -> int | None:
    """The wall clock of a beat."""
    from edged.beat.record import BeatFacts

    try:
        return BeatFacts.decode(facts).wall_us
    except (ValueError, KeyError, TypeError):
        return None


@command.command("migrate")
@_directory
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@_as_json
def migrate(directory: Path, dry_run: bool, as_json: bool) -> None:
    """Bring STORE to the format of this version, as the next start of a daemon would.

    Prints the format that was found and the new one, what each step changes, and the room that it
    needs beside the old files. Exits with 73 where a daemon uses the store, 75 for an unknown
    format or too little room; then nothing was changed.
    """
    from edged.platform.disk import SystemDisk
    from edged.platform.overlay_disk import OverlayDisk
    from edged.store import identity, migration
    from edged.store.errors import StoreFull
    from edged.store.lock import take_lock

    store = _store(directory)
    epoch = identity.read_identity(OverlayDisk(), f"{store}/identity")
    found = identity.read_format(OverlayDisk(), f"{store}/identity")
    plan = migration.pending(OverlayDisk(), store, found)
    if not as_json:
        _print_plan(plan)
    if plan.bytes > plan.free:
        raise StoreFull(f"{store}: {plan.bytes} bytes are needed, {plan.free} are free")
    if not dry_run:
        lock = take_lock(SystemDisk(), store)
        try:
            steps = (lambda text: None) if as_json else click.echo
            migration.migrate(SystemDisk(), store, epoch, steps)
        finally:
            lock.close()
    if as_json:
        click.echo(json.dumps(_plan_json(store, plan, not dry_run)))


def _store(directory: Path) -> str:
    """The absolute path of a store.  Raises ConfigError where there is none."""
    if not any((directory / name).exists() for name in ("identity", "log", "snapshots")):
        raise ConfigError(f"{directory} is not a store: it has no file `identity`")
    return str(directory.absolute())


def _plan_json(store: str, plan: Pending, migrated: bool) -> dict[str, Any]:
    return {
        "store": store, "from": plan.found, "to": plan.target, "changes": list(plan.changes),
        "files": list(plan.files), "bytes": plan.bytes, "free": plan.free,
        "migrated": migrated and plan.found < plan.target,
    }  # fmt: skip


def _print_plan(plan: Pending) -> None:
    if plan.found == plan.target:
        click.echo(f"the store has format {plan.found}, this version's: there is nothing to do")
        return
    click.echo(f"format {plan.found} becomes {plan.target}")
    for number, changes in enumerate(plan.changes, plan.found + 1):
        click.echo(f"  {number}: {changes}")
    files = f"{len(plan.files)} files are rewritten" if plan.files else "no file is rewritten"
    click.echo(f"{files}; {plan.bytes} bytes are needed, {plan.free} are free")
