"""`edged token`: bearer tokens of the API."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import click

from edged.documents.units import duration_us
from edged.http.api_tokens import SCOPES, Token, TokenFile
from edged.platform.clock import SystemClock

DEFAULT = "/etc/edged/api-tokens.json"

_file = click.option(
    "--tokens", "path", type=click.Path(dir_okay=False, path_type=Path),
    default=lambda: os.environ.get("EDGED_API__TOKENS_FILE") or DEFAULT,
    show_default=DEFAULT, help="The API's tokens_file.",
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="Answer as JSON.")


@click.group(name="token")
def command() -> None:
    """Create, list and revoke bearer tokens of the API.

    The API applies a change with the next request, without a restart.
    """


@command.command("create")
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, required=True, type=click.Choice(SCOPES),
    help="A permission; may be given several times.",
)  # fmt: skip
@click.option("--expires", default="90d", show_default=True, help="Duration, or `never`.")
@_file
@_json
def create(name: str, scopes: tuple[str, ...], expires: str, path: Path, as_json: bool) -> None:
    """Create a token called NAME and print it; it cannot be shown again."""
    now_us = SystemClock().wall_us()
    until = None if expires == "never" else now_us + duration_us("--expires", expires)
    token, text = TokenFile(path).create(name, scopes, now_us, until)
    if as_json:
        click.echo(json.dumps({**_row(token, now_us), "token": text}))
        return
    click.echo(f"{text}\n", nl=False)
    click.echo(f"token {token.id} of {name} ({', '.join(token.scopes)}), shown once", err=True)


@command.command("list")
@_file
@_json
def list_(path: Path, as_json: bool) -> None:
    """List the tokens."""
    now_us = SystemClock().wall_us()
    rows = [_row(one, now_us) for one in TokenFile(path).tokens()]
    if as_json:
        click.echo(json.dumps({"tokens": rows}))
        return
    if not rows:
        click.echo(f"no token in {path}", err=True)
    for row in rows:
        until = row["expires"] or "never expires"
        scopes = ",".join(row["scopes"])
        click.echo(f"{row['id']}  {row['state']:<8}  {scopes:<20}  {until:<25}  {row['name']}")


@command.command("revoke")
@click.argument("token", metavar="ID|NAME")
@_file
@_json
def revoke(token: str, path: Path, as_json: bool) -> None:
    """Revoke the token of an id, or all of a name."""
    now_us = SystemClock().wall_us()
    rows = [_row(one, now_us) for one in TokenFile(path).revoke(token, now_us)]
    if as_json:
        click.echo(json.dumps({"tokens": rows}))
    else:
        click.echo(f"revoked {', '.join(row['id'] for row in rows)}")


def _row(token: Token, now_us: int) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": list(token.scopes),
        "state": token.state(now_us),
        "created": _moment(token.created_us),
        "expires": None if token.expires_us is None else _moment(token.expires_us),
    }


def _moment(us: int) -> str:
    moment = datetime.datetime.fromtimestamp(us // 1_000_000, datetime.timezone.utc)
    return moment.isoformat().replace("+00:00", "Z")
