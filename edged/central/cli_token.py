"""`edged central token`: creates a device's token."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from edged.central.tokens import new_token, token_line
from edged.errors import ConfigError


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
        _append(tokens, line)
    if as_json:
        click.echo(json.dumps({"device": device, "token": token, "line": line}))
    else:
        click.echo(f"token of {device} (shown once): {token}\nline of the tokens file: {line}")


def _append(tokens: Path, line: str) -> None:
    """Append a line durably; the file's last line may lack its newline after manual editing."""
    try:
        fd = os.open(tokens, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "r+b", buffering=0) as file:
            size = os.fstat(fd).st_size
            ended = size == 0 or os.pread(fd, 1, size - 1) == b"\n"
            file.write((b"" if ended else b"\n") + line.encode() + b"\n")
            os.fsync(fd)
    except OSError as problem:
        raise ConfigError(f"--tokens {tokens}: {problem.strerror}") from problem
