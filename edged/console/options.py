"""Validation of options that several commands share; it runs before the command's work."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.errors import ConfigError
from governors.quantities import Quantity

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # not generic in click 8.1


class Number(click.FloatRange):
    """A finite number within a range; click's own range check lets `nan` pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Overrides click's conversion.  Raises click.BadParameter."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return found


class Board(_ParamType):
    """A board by the grammar of `governors.board_names`; `simulated`: profiles only."""

    name = "board"

    def __init__(self, simulated: bool = False) -> None:
        self.simulated = simulated

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Overrides click's conversion.  Raises ConfigError."""
        from governors import board_names

        parse = board_names.parse_profile if self.simulated else board_names.parse_board
        try:
            return parse(value)
        except board_names.BoardNameError as problem:
            raise ConfigError(f"--board: {problem}") from None


def board_option(
    text: str, *, default: str | None = None, simulated: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `--board`, with the same grammar and explanation in every command; `text` ends
    the help."""
    forms = (
        "A profile, NAME or simulated:NAME (`edged board --list`)."
        if simulated
        else "A board's tree (/: this machine), a simulated board (`edged board --list`), or none."
    )
    return click.option(
        "--board", default=default, type=Board(simulated), help=f"{forms}  {text}".rstrip(),
        metavar="NAME|simulated:NAME" if simulated else "DIR|simulated:NAME|none",
    )  # fmt: skip


class WithUnit(_ParamType):
    """A quantity: `5W`, `50Wh`; with `plain` also a number of its own unit."""

    def __init__(self, kind: Quantity, plain: bool = True) -> None:
        self.kind, self.plain = kind, plain
        self.name = kind.noun.partition(" ")[2]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Overrides click's conversion.  Raises ConfigError."""
        try:
            return self.kind.parse_text(value) if self.plain else self.kind.parse(value)
        except ValueError as problem:
            option = param.opts[0] if param is not None else self.name
            raise ConfigError(f"{option}: {value!r} {problem}") from None


ABOVE_ZERO = Number(0, min_open=True)


def directory(option: str, path: Path) -> Path:
    """The directory, created if it is missing.  Raises ConfigError where it is not writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ConfigError(f"{option} {path}: cannot be made: {problem.strerror}") from problem
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {path}: cannot be written")
    return path


def output(option: str, path: Path | None) -> None:
    """Check that a file can be written at `path`; creates its directory.  Raises ConfigError."""
    if path is None or path == Path("-"):
        return
    directory(option, path.parent)
    if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
        raise ConfigError(f"{option} {path}: cannot be written")
