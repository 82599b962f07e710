"""`edged central compact`: rewrites sealed segments of a landing as Parquet."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edged.central.cli_expire import age, require_owner
from edged.central.landing_option import existing_landing
from edged.errors import CentralError, ConfigError, PageError

if TYPE_CHECKING:
    from edged.central.compactor import Compaction
    from edged.central.expire import Expired


@click.command("compact")
@existing_landing
@click.option(
    "--group-bytes",
    default=512 << 20,
    show_default=True,
    type=click.IntRange(1),
    help="Page bytes that become one Parquet file a stream, about.",
)
@click.option("--every", metavar="DURATION", help="Keep running, with a run so often, e.g. 5m.")
@click.option(
    "--retire-after",
    metavar="DURATION",
    help="Delete segments that were compacted so long ago and that every consumer has read, "
    "e.g. 7d.  [default: keep them]",
)
@click.option(
    "--unread",
    multiple=True,
    metavar="STREAM",
    help="With --retire-after: a stream without consumers (repeatable).",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a run.")
def command(
    landing: Path,
    group_bytes: int,
    every: str | None,
    retire_after: str | None,
    unread: tuple[str, ...],
    as_json: bool,
) -> None:
    """Rewrite sealed segments as Parquet, which Spark reads as fast as any.

    Each row is visible once at every moment, also when this is killed.  Collectors and readers may
    run meanwhile.  See docs/central.md.  Exit code 65: segments with damaged pages stay as they
    are; 75: the disk has no room.
    """
    require_owner(landing)
    interval_us = None if every is None else age("--every", every)
    retire_us = None if retire_after is None else age("--retire-after", retire_after)
    if unread and retire_us is None:
        raise ConfigError("--unread belongs to --retire-after")
    if interval_us is None:
        _end(_once(landing, group_bytes, retire_us, unread, as_json))
        return
    ends = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # one that arrives stays until the wait
    while True:
        try:
            _once(landing, group_bytes, retire_us, unread, as_json)
        except CentralError as problem:  # another compactor, a consumer that cannot be read
            click.echo(f"edged: {problem}", err=True)
        if signal.sigtimedwait(ends, interval_us / 1e6) is not None:
            return


def _once(
    landing: Path, group_bytes: int, retire_us: int | None, unread: tuple[str, ...], as_json: bool
) -> Compaction:
    from edged.central.compactor import compact
    from edged.central.expire import Expired, retire_compacted

    done = compact(landing, group_bytes)
    gone = Expired()
    if retire_us is not None:
        gone = retire_compacted(landing, time.time_ns() // 1000 - retire_us, unread)
    if as_json:
        click.echo(json.dumps({**asdict(done), "retired": asdict(gone)}))
    else:
        _print(done, gone)
    return done


def _print(done: Compaction, gone: Expired) -> None:
    click.echo(
        f"{done.segments} segments compacted in {done.groups} groups: {done.rows:,} rows, "
        f"{done.page_bytes:,} bytes of pages, {done.parquet_bytes:,} of Parquet"
    )
    if gone.segments:
        click.echo(f"{len(gone.segments)} segments deleted: {gone.bytes:,} bytes of pages")
    for why, count in sorted(gone.kept.items()):
        click.echo(f"{count} compacted segments kept: {why}")
    if done.no_room:
        click.echo(f"no room: {done.no_room}")
    for name, why in sorted({**done.damaged, **done.waiting}.items()):
        click.echo(f"{name} stays: {why}")


def _end(done: Compaction) -> None:
    if done.no_room:
        raise CentralError(f"no room: {done.no_room}; free some, or give a smaller --group-bytes")
    if done.damaged:
        sys.exit(PageError.exit_code)
