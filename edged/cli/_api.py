"""What the commands share that speak to a running daemon: they are clients of its REST API."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edged.errors import ConfigError
from edged.rest import DEFAULT, ApiError, Client

Snapshot = dict[str, Any]
as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def on_api(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--api` and who asks; its first argument is the open client."""

    @click.option("--api", "address", envvar="EDGED_API", default=DEFAULT, show_default=True,
                  metavar="SOCKET|URL", help="The daemon's REST API; also EDGED_API.")  # fmt: skip
    @click.option("--token-file", envvar="EDGED_TOKEN_FILE", type=click.Path(path_type=Path),
                  help="File with a bearer token; also EDGED_TOKEN_FILE, or the token itself in "
                  "EDGED_TOKEN.")  # fmt: skip
    @click.option("--ca", envvar="EDGED_CA", type=click.Path(exists=True, dir_okay=False),
                  help="PEM file that the API's certificate is checked by.")  # fmt: skip
    @click.option("--cert", envvar="EDGED_CERT", type=click.Path(exists=True, dir_okay=False),
                  help="PEM file, with its key, to be recognised by.")  # fmt: skip
    @functools.wraps(command)
    def asked(
        *args: Any, address: str, token_file: Path | None, ca: str | None, cert: str | None,
        **options: Any,
    ) -> None:  # fmt: skip
        with Client(address, _token(token_file), ca=ca, cert=cert) as client:
            command(client, *args, **options)

    return asked


def snapshot(client: Client) -> Snapshot:
    """The daemon's state now (docs/control.md).  Raises ApiError (exit 69) where it is down."""
    for message in client.live():
        if message.kind == "snapshot":
            found: Snapshot = message.data
            return found
        if message.kind == "daemon" and not message.data["up"]:
            break
    raise ApiError(
        {
            "status": 503,
            "detail": f"the API at {client.address} lives, but its daemon does not answer",
            "do": "`systemctl status edged`",
        }
    )


def _token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get("EDGED_TOKEN") or None
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"--token-file {path}: {problem}") from problem
