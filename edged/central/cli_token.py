"""`edged central token`: make a device's token."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from edged.central.tokens import new_token, token_line


@click.command("token")
@click.argument("device")
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Add the line to this file (made with mode 0600 if missing).",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(device: str, tokens: Path | None, as_json: bool) -> None:
    """Make a token for DEVICE.  The token goes to the device, its line to the collector's file."""
    token = new_token()
    line = token_line(device, token)
    if tokens is not None:
        fd = os.open(tokens, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    if as_json:
        click.echo(json.dumps({"device": device, "token": token, "line": line}))
    else:
        click.echo(f"token of {device} (shown once): {token}\nline of the tokens file: {line}")
