"""Consoles that show tables of figures."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_MIN = 160
"""Columns of tables where the output is no terminal: a file or a pipe has no width of its own."""


def figures_console(stderr: bool = True) -> Console:
    """Where figures are shown; numbers are not coloured."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDTH_MIN
    return Console(stderr=stderr, highlight=False, width=width)
