"""edged: an energy-aware runtime for streams of small tuples on edge devices.

The way of a tuple, which is also the way through this package:

    sources → staging → beat (operators) → sinks → pages → store → uplink ═► central → Spark

`edged.read_landing` gives the landed rows as Arrow (`edged.central.landing_reader`); it is loaded
when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "read_landing":
        return import_module("edged.central.landing_reader").read_landing
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
