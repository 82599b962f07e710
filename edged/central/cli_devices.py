"""`edged central devices`: the fleet, device by device."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from edged.errors import ConfigError


@click.command("devices")
@click.option(
    "--landing",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The collectors' landing.",
)
@click.option("--forget", metavar="DEVICE", help="Forget a device until it is heard of again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a device.")
def command(landing: Path, forget: str | None, as_json: bool) -> None:
    """List the devices: when each was heard of, its backlog and watts, its desired state."""
    from edged.central.fleet import Fleet

    fleet = Fleet(landing)
    if forget is not None and not fleet.forget(forget):
        raise ConfigError(f"no device {forget} was heard of; `edged central devices` lists them")
    now_us = time.time_ns() // 1000
    rows = [_row(landing, device, now_us) for device in fleet.devices()]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    else:
        _print(rows)


def _row(landing: Path, device: Any, now_us: int) -> dict[str, Any]:
    from edged.centre_link.desired_state import read

    told = device.row or {}
    wanted = read(landing / "desired" / f"{device.name}.json").get("version", 0)
    return {
        "device": device.name,
        "up": device.up(now_us),
        "seen_s_ago": round((now_us - device.seen_us) / 1e6, 1),
        "version": told.get("version"),
        "state": told.get("state"),
        "rows": told.get("rows"),
        "backlog_bytes": told.get("backlog_bytes"),
        "backlog_age_s": told.get("backlog_age_s"),
        "watts": told.get("watts"),
        "energy_source": told.get("energy_source"),
        "desired": wanted,
        "received": told.get("desired_version"),
        "applied": told.get("applied_version"),
        "problem": told.get("desired_problem") or "",
    }


_TITLES = ("device", "seen", "state", "backlog", "watts", "wanted", "applied", "reason")


def _print(rows: list[dict[str, Any]]) -> None:
    lines = [_TITLES, *map(_cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_TITLES))]
    for line in lines:
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """What people are shown of a device; what it says of itself cannot steer their terminal."""
    seen = f"{row['seen_s_ago']:.0f} s ago" + ("" if row["up"] else ", silent")
    backlog = row["backlog_bytes"]
    cells = (
        row["device"], seen, row["state"] or "-",
        "-" if backlog is None else f"{backlog:,} bytes",
        "-" if row["watts"] is None else f"{row['watts']:.2f} ({row['energy_source']})",
        row["desired"] or "-", row["applied"] or "-", row["problem"],
    )  # fmt: skip
    return tuple("".join(c if c.isprintable() else "?" for c in str(cell)) for cell in cells)
