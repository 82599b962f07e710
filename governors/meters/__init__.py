"""Meters, one file each; see `base` for what one is."""

from __future__ import annotations

import importlib
import pkgutil


def load_all() -> None:
    """Import every meter module, so that each registers itself."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
