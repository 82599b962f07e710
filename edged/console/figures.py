"""Figures of all commands: one palette, and fonts that stay legible at the width of a web page.

matplotlib is imported when the first figure is made, not when this module is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

BLUE, RED, GREEN, PURPLE = "#0b6e99", "#d1495b", "#2a9d5c", "#8a5cb8"
ORANGE, GREY = "#e0a030", "#6b7280"
COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, GREY)
WIDTH_IN = 11.0
"""Width of every figure in inches: 1650 pixels."""
_DPI = 150
_STYLE = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlepad": 10,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.dpi": _DPI,
}


def new_figure(rows: int, columns: int, height_in: float, **options: Any) -> tuple[Any, Any]:
    """An empty figure of `rows` × `columns` axes, and those axes as `pyplot.subplots` gives them.

    `options` are those of `pyplot.subplots`.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(_STYLE)
    size = (WIDTH_IN, height_in)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", **options)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    """Write the figure as PNG and release it.  Creates missing directories.  Raises OSError."""
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
