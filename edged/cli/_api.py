"""Common part of the commands that control a running daemon as clients of its REST API."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from edged.errors import ConfigError
from edged.platform.backoff import after, jitter
from edged.rest import DEFAULT, ApiError, Client, LiveMessage

Snapshot = dict[str, Any]
RETRY_S = 2.0
as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def on_api(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--api` and credential options to a command; its first argument is the open client."""

    @click.option("--api", "address", envvar="EDGED_API", default=DEFAULT, show_default=True,
                  metavar="SOCKET|URL", help="The daemon's REST API; also EDGED_API.")  # fmt: skip
    @click.option("--token-file", envvar="EDGED_TOKEN_FILE", type=click.Path(path_type=Path),
                  help="File with a bearer token; also EDGED_TOKEN_FILE, or the token itself in "
                  "EDGED_TOKEN.")  # fmt: skip
    @click.option("--ca", envvar="EDGED_CA", type=click.Path(exists=True, dir_okay=False),
                  help="PEM file of the authority that signed the API's certificate.")  # fmt: skip
    @click.option("--cert", envvar="EDGED_CERT", type=click.Path(exists=True, dir_okay=False),
                  help="PEM file with this client's certificate and key.")  # fmt: skip
    @click.option("--plain-token", envvar="EDGED_PLAIN_TOKEN", is_flag=True,
                  help="Send the token without TLS beyond loopback, to an http:// address; also "
                  "EDGED_PLAIN_TOKEN=1.")  # fmt: skip
    @functools.wraps(command)
    def with_client(
        *args: Any, address: str, token_file: Path | None, ca: str | None, cert: str | None,
        plain_token: bool, **options: Any,
    ) -> None:  # fmt: skip
        if "://" in address and not address.startswith(("http://", "https://")):
            raise ConfigError(f"--api {address}: give a socket's path, http://… or https://…")
        token = _token(token_file)
        with Client(address, token, ca=ca, cert=cert, plain_token=plain_token) as client:
            command(client, *args, **options)

    return with_client


def snapshot(client: Client) -> Snapshot:
    """The daemon's current state (docs/control.md).  Raises ApiError (exit 69) where it is down."""
    for message in client.live():
        if message.kind == "snapshot":
            found: Snapshot = message.data
            return found
        if message.kind == "daemon" and not message.data["up"]:
            break
    raise ApiError(
        {
            "status": 503,
            "detail": f"the API at {client.address} answers, but its daemon does not",
            "do": "`systemctl status edged`",
        }
    )


def follow_live(client: Client, last: str) -> Iterator[LiveMessage | str]:
    """Live messages after the id `last`, for ever.  A text instead of a message says why the
    connection was lost; messages continue once the API is back.  Raises ApiError where the API
    refuses this client."""
    while True:
        pause_s, why = RETRY_S, f"the API at {client.address} has ended"
        try:
            for message in client.live(last):
                last = message.id or last
                yield message
        except ApiError as problem:
            if problem.status in (401, 403):
                raise
            pause_s, why = max(RETRY_S, problem.retry_after_s or 0), str(problem)
        yield why
        time.sleep(after(pause_s, jitter))


def _token(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get("EDGED_TOKEN") or None
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"--token-file {path}: {problem}") from problem
