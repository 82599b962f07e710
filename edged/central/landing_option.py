"""The option `--landing` of the commands that work on a landing."""

from __future__ import annotations

from pathlib import Path

import click

existing_landing = click.option(
    "--landing",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The collectors' landing.",
)
