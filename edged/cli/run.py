"""`edged run`: the daemon in the foreground; systemd or a person keeps it."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import click


@click.command(name="run")
@click.argument("jobs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--store",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the durable state; created if missing.",
)
@click.option(
    "--device",
    default=socket.gethostname,
    show_default="host name",
    help="Name under which the centre knows this device.",
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
    help="Certificates that the collector's must be signed by.",
)
@click.option(
    "--door", type=click.Path(path_type=Path), help="Unix socket for control; default: STORE/door."
)
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
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Append one JSON line a beat: sizes and stage times.",
)
@click.option(
    "--board",
    help="The board's tree, simulated:NAME (kept in STORE/board), or none.  [default: this one's]",
)
@click.option("--policy", default="hands_off", show_default=True, help="Who decides on clocks.")
@click.option(
    "--governor",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the policy; allow=emc: a clock that is set only if asked for.",
)
@click.option(
    "--meters",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML with a table [meters]: labels, external meters, the radio.",
)
@click.option("--helper", type=click.Path(path_type=Path), help="The root helper's socket.")
@click.option("--json", "as_json", is_flag=True, help="Say `ready` as JSON on standard output.")
def command(
    jobs: tuple[str, ...],
    directory: Path,
    device: str,
    workers: int | None,
    url: str | None,
    token_file: str | None,
    ca: str | None,
    door: Path | None,
    store_bytes_max: int | None,
    snapshot_bytes: int | None,
    trace: Path | None,
    board: str | None,
    policy: str,
    pairs: tuple[str, ...],
    meters: Path | None,
    helper: Path | None,
    as_json: bool,
) -> None:
    """Run JOBS (TOML or JSON documents) until SIGTERM.

    After a crash the same command goes on where it was.  A changed document keeps the state of
    every operator whose id, type and schema are unchanged.
    """
    from edged.beat.heart import SNAPSHOT_BYTES
    from edged.cli._compile import compile_kernels
    from edged.daemon import Daemon, Settings
    from edged.energy.settings import HELPER, asked
    from edged.job.plan import load_job

    plans = [load_job(path) for path in jobs]
    energy = asked(board, policy, pairs, meters, helper or HELPER)
    compile_kernels(quiet=not sys.stderr.isatty())
    settings = Settings(
        directory=directory.absolute(),
        device=device,
        workers=workers or len(os.sched_getaffinity(0)),
        door=door,
        uplink_url=url,
        uplink_token=Path(token_file).read_text().strip() if token_file else "",
        uplink_ca=ca,
        store_bytes_max=store_bytes_max,
        snapshot_bytes=snapshot_bytes or SNAPSHOT_BYTES,
        trace=trace,
        energy=energy,
    )
    daemon = Daemon(settings, plans)
    facts = {
        "ready": True,
        "pid": os.getpid(),
        "device": device,
        "door": str(daemon.door.path),
        "sources": [dict(s.counters()) for s in daemon.sources],
        "recovered_beat": daemon.recovered.beat,
        "replayed_beats": daemon.recovered.replayed_beats,
        "notes": daemon.recovered.notes,
    }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        click.echo(f"edged: ready, door {daemon.door.path}, beat {daemon.recovered.beat}", err=True)
        for note in daemon.recovered.notes:
            click.echo(f"edged: {note}", err=True)
    sys.stdout.flush()
    daemon.run()
