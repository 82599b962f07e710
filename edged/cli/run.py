"""`edged run`: the daemon in the foreground, under systemd or in a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.console import options as checks
from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.config import Config
    from edged.daemon.daemon import Daemon
    from edged.events.log import LineLog

_FLAGS = {
    "directory": ("store.directory", "--store"),
    "device": ("device.name", "--device"),
    "workers": ("run.workers", "--workers"),
    "url": ("uplink.url", "--uplink"),
    "token_file": ("uplink.token_file", "--token-file"),
    "ca": ("uplink.ca", "--ca"),
    "plain_token": ("uplink.plain_token", "--plain-token"),
    "door": ("run.door", "--door"),
    "store_bytes_max": ("store.bytes_max", "--store-max"),
    "snapshot_bytes": ("store.snapshot_bytes", "--snapshot-bytes"),
    "trace": ("run.trace", "--trace"),
    "board": ("energy.board", "--board"),
    "power_model": ("energy.power_model", "--power-model"),
    "policy": ("energy.policy", "--policy"),
    "helper": ("energy.helper", "--helper"),
}
"""By argument: the setting that it overrides, and the flag."""


@click.command(name="run")
@click.argument("jobs", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration, see docs/config.md; arguments and flags override it.",
)
@click.option(
    "--store",
    "directory",
    type=click.Path(file_okay=False),
    help="Directory of the durable state; created if missing.",
)
@click.option(
    "--device",
    help="Name under which the centre knows this device.  [default: (host name)]",
)
@click.option(
    "--workers", type=click.IntRange(1, 1024), help="Kernel threads; default: one a core."
)
@click.option("--uplink", "url", help="URL of the collector, e.g. https://central:7500.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File with this device's token.",
)
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False),
    help="Certificates of the authorities of the collector's.",
)
@click.option(
    "--plain-token", is_flag=True, help="Send the token without TLS beyond loopback, to http://."
)
@click.option("--door", type=click.Path(), help="Unix socket for control; default: STORE/door.")
@click.option(
    "--store-max",
    "store_bytes_max",
    type=int,
    help="Bytes that the store may take; the sources wait when it is full.",
)
@click.option(
    "--snapshot-bytes",
    type=click.IntRange(min=1 << 16),
    help="Log between snapshots; bounds the recovery time.",
)
@click.option("--trace", type=click.Path(), help="Append one JSON line a beat: sizes, stage times.")
@checks.board_option("A simulated board's tree is STORE/board.  [default: /]")
@click.option(
    "--power-model",
    metavar="NAME",
    help="Board profile whose figures stand in where this machine has none: generic-x86.",
)
@click.option("--policy", help="Energy policy.  [default: hands_off]")
@click.option(
    "--governor",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the policy; allow=emc,offline:WATTS,gpu_pm enables optional settings.",
)
@click.option(
    "--meters",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML with a table [meters]: labels, external meters, the radio.",
)
@click.option("--helper", type=click.Path(), help="The root helper's socket.")
@click.option(
    "--until-end",
    is_flag=True,
    help="End with 0 when all sources have ended and everything is delivered.",
)
@click.option("--quiet", is_flag=True, help="Print warnings and errors only.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print `ready`, with --until-end also `ended`, as JSON on standard output.",
)
def command(
    jobs: tuple[str, ...],
    config_file: Path | None,
    pairs: tuple[str, ...],
    meters: Path | None,
    until_end: bool,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Run JOBS (TOML or JSON documents), or those of --config, until SIGTERM.

    After a crash the same command resumes.  A changed document keeps the state of every operator
    whose id, type and schema are unchanged.  On a terminal the command shows what it does.

    With --until-end it ends when all sources have ended, all windows are closed, all files are
    written, and the centre, where there is an uplink, has acknowledged all pages.  A file ends with
    its last row, a generator with `rows`; a tcp stream when every producer that was seen has said
    end of stream.  A source that never ends is refused.  A stop before the end exits with 75, a
    source that cannot be read with 65.
    """
    from edged.platform.libraries import fallback, restart_with_libraries, use_libraries

    use_libraries()
    from edged.config import load
    from edged.config.code_directories import set_code_directories
    from edged.daemon import configuration
    from edged.daemon.compilation import compile_kernels
    from edged.daemon.daemon import Daemon
    from edged.daemon.reload import ConfigSource
    from edged.daemon.systemd import SystemdService
    from edged.daemon.until_end import refuse_endless
    from edged.events.journal import writer
    from edged.events.log import LineLog
    from edged.job.changes import FILE
    from edged.job.coexistence import check_hearing
    from edged.platform.clock import SystemClock

    flags = _flags(jobs, pairs, meters, given)
    config = load(config_file, flags=flags)
    set_code_directories(config)
    configuration.confine_cpus(config)
    _require_targets(config, config_file)
    files = configuration.job_files(config)
    plans, faulty = configuration.plans_and_faults(files, Path(config.store.directory))
    check_hearing(plans, config.energy.suspend)
    origins = {str(file.document.get("name")): f"{FILE}{file.path}" for file in files}
    if until_end and plans:
        refuse_endless(plans)
    settings = configuration.settings(config)
    service = SystemdService(SystemClock())
    source = ConfigSource(config, config_file, flags)
    log = LineLog(writer(), "warning" if quiet else config.log.level)
    if line := fallback():
        log(*line)
    compile_kernels(as_json or quiet, plans, service.starting, _say_compiling(log))
    restart_with_libraries()
    daemon = Daemon(settings, plans, log, service, origins, source, until_end, faulty)
    if until_end:
        _refuse_endless(daemon)
    daemon.start()
    _print_ready(daemon, as_json, quiet)
    with _view(daemon, as_json or quiet):
        daemon.run()
    _print_end(daemon, as_json, quiet)


def _flags(
    jobs: tuple[str, ...], pairs: tuple[str, ...], meters: Path | None, given: dict[str, Any]
) -> dict[str, tuple[str, Any]]:
    """Settings of the command line: by key, the flag and the value."""
    from edged.energy.settings import ALLOW, meters_table, setting

    flags = {key: (flag, given[name]) for name, (key, flag) in _FLAGS.items() if given[name]}
    if jobs:
        flags["run.jobs"] = ("JOBS", list(jobs))
    policy = dict(setting(pair, "--governor") for pair in pairs)
    if allowed := str(policy.pop(ALLOW, "")):
        flags["energy.allow"] = ("--governor", [name for name in allowed.split(",") if name])
    if policy:
        flags["energy.settings"] = ("--governor", policy)
    if meters is not None:
        flags["energy.meters"] = ("--meters", meters_table(meters))
    return flags


def _require_targets(config: Config, config_file: Path | None) -> None:
    """Raise where neither a configuration nor a store and jobs are given: /var/lib/edged is never
    an implicit choice."""
    if config_file is None and not config.run.jobs:
        raise click.UsageError("Missing argument 'JOBS...', or --config.")
    if config_file is None and config.origin("store.directory") == "default":
        raise click.UsageError("Missing option '--store', or --config.")


def _say_compiling(log: LineLog) -> Callable[[str], None] | None:
    """Where the progress of a compilation is logged; None: a terminal shows a bar."""
    return None if _on_terminal() else partial(log, "info")


def _refuse_endless(daemon: Daemon) -> None:
    """Also the jobs of the store must be able to end."""
    from edged.daemon.until_end import refuse_endless

    try:
        refuse_endless(job.plan for job in daemon.parts.heart.jobs)
    except ConfigError:
        daemon.close()
        raise


def _on_terminal() -> bool:
    """Whether standard error is a terminal that can draw, and not the journal."""
    capable = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return capable and sys.stderr.isatty() and "JOURNAL_STREAM" not in os.environ


def _view(daemon: Daemon, silent: bool) -> AbstractContextManager[None]:
    """The live view on a terminal, else nothing."""
    if silent or not _on_terminal():
        return nullcontext()
    from edged.cli._run_view import live_view

    return live_view(daemon.door.path, daemon.parts.event_loop)


def _print_end(daemon: Daemon, as_json: bool, quiet: bool) -> None:
    """The summary.  Raises EdgedError where --until-end has not reached the end."""
    from edged.cli import _run_report

    ends, status = daemon.until_end, daemon.last_status
    delivered = ends is not None and daemon.parts.heart.drained
    if status is not None and as_json and ends is not None:
        click.echo(json.dumps({"ended": delivered, **_run_report.totals(status)}))
    elif status is not None and not as_json and not quiet and (ends is not None or _on_terminal()):
        click.echo(f"edged: {_run_report.end(status, delivered)}", err=True)
    if ends is not None:
        ends.check()


def _print_ready(daemon: Daemon, as_json: bool, quiet: bool) -> None:
    from edged.cli import _run_report

    recovered = daemon.parts.recovered
    facts = {
        "ready": True,
        "pid": os.getpid(),
        "device": daemon.parts.settings.device,
        "door": str(daemon.door.path),
        "sources": [dict(s.counters()) for s in daemon.sources],
        "recovered_beat": recovered.beat,
        "replayed_beats": recovered.replayed_beats,
        "notes": recovered.notes,
    }
    if as_json:
        click.echo(json.dumps(facts))
    elif not quiet and "JOURNAL_STREAM" not in os.environ:  # the event log has it there
        for line in _run_report.begin(daemon):
            click.echo(f"edged: {line}", err=True)
    sys.stdout.flush()
