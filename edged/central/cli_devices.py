"""`edged central devices`: lists the devices of the fleet."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from edged.central.landing_option import existing_landing
from edged.errors import ConfigError


@click.command("devices")
@existing_landing
@click.option("--forget", metavar="DEVICE", help="Forget a device until its next contact.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per device.")
def command(landing: Path, forget: str | None, as_json: bool) -> None:
    """List the devices: last contact, backlog and watts, desired state."""
    from edged.central import landing_format
    from edged.central.fleet import Fleet

    landing_format.require(landing)
    fleet = Fleet(landing)
    if forget is not None and not fleet.forget(forget):
        raise ConfigError(
            f"there is no device {forget}; `edged central devices` lists the known ones"
        )
    now_us = time.time_ns() // 1000
    rows = [_row(landing, device, now_us) for device in fleet.devices()]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    else:
        _print(rows)


def _row(landing: Path, device: Any, now_us: int) -> dict[str, Any]:
    from edged.centre_link.desired_state import read

    report = device.row or {}
    wanted = read(landing / "desired" / f"{device.name}.json").get("version", 0)
    return {
        "device": device.name,
        "up": device.up(now_us),
        "seen_s_ago": round((now_us - device.seen_us) / 1e6, 1),
        "version": report.get("version"),
        "state": report.get("state"),
        "rows": report.get("rows"),
        "backlog_bytes": report.get("backlog_bytes"),
        "backlog_age_s": report.get("backlog_age_s"),
        "watts": report.get("watts"),
        "energy_source": report.get("energy_source"),
        "desired": wanted,
        "received": report.get("desired_version"),
        "applied": report.get("applied_version"),
        "problem": report.get("desired_problem") or "",
    }


_TITLES = ("device", "seen", "state", "backlog", "watts", "wanted", "applied", "reason")


def _print(rows: list[dict[str, Any]]) -> None:
    lines = [_TITLES, *map(_cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_TITLES))]
    for line in lines:
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """The table cells of a device; control characters in its report are replaced."""
    seen = f"{row['seen_s_ago']:.0f} s ago" + ("" if row["up"] else ", silent")
    backlog = row["backlog_bytes"]
    cells = (
        row["device"], seen, row["state"] or "-",
        "-" if backlog is None else f"{backlog:,} bytes",
        "-" if row["watts"] is None else f"{row['watts']:.2f} ({row['energy_source']})",
        row["desired"] or "-", row["applied"] or "-", row["problem"],
    )  # fmt: skip
    return tuple("".join(c if c.isprintable() else "?" for c in str(cell)) for cell in cells)
