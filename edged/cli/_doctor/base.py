"""Findings, and the registry of checks."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.config import Config
    from edged.errors import EdgedError

AREAS = {
    "run": "to run jobs",
    "measure": "to measure energy",
    "set": "to set clocks and sleep states",
    "centre": "to reach the centre, or to be one",
    "services": "what runs now",
}
"""By area: its title."""
ANSWER_S = 3.0
"""Time for a peer or a program to answer."""


class Verdict(str, Enum):
    """Whether something works."""

    OK = "ok"
    OPTIONAL = "optional"
    """Absent, and not needed: nothing is wrong."""
    WARNING = "warning"
    """edged works, but loses something that this machine could give."""
    FAILURE = "failure"
    """edged does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    state: Verdict
    text: str
    remedy: str = ""
    """A command, or what to do; empty where nothing mends it."""


@dataclass(frozen=True)
class Machine:
    """What is examined."""

    board: str
    """`/`, a board's tree, or simulated:NAME."""
    store: Path
    config: Config
    faults: tuple[EdgedError, ...]
    """Of the configuration."""
    config_file: Path | None
    root: Path = Path("/")
    """Root of /etc, /proc, /run and /var; tests give another."""

    @cached_property
    def described(self) -> dict[str, Any]:
        """What `edged board` finds."""
        from edged.cli.board import describe
        from edged.energy.settings import HELPER, SIMULATED
        from governors.simulated.board import from_name
        from governors.simulated.kernel import open_root

        helper = Path(self.config.energy.helper or HELPER)
        if not self.board.startswith(SIMULATED):
            return describe(open_root(Path(self.board)), helper, simulated=False)
        with TemporaryDirectory(prefix="edged-board-") as directory:
            return describe(from_name(self.board, Path(directory)).sysfs, helper, simulated=True)


Check = Callable[[Machine], Iterator[Finding]]
CHECKS: list[tuple[str, Check]] = []
"""Area and check, in the order of their modules."""


def check(area: str) -> Callable[[Check], Check]:
    """Decorator: register a check of an area."""

    def register(function: Check) -> Check:
        CHECKS.append((area, function))
        return function

    return register


def load() -> list[tuple[str, Check]]:
    """All checks, in the order of `AREAS`."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
    return sorted(CHECKS, key=lambda row: list(AREAS).index(row[0]))


def ok(name: str, text: str) -> Finding:
    """It works."""
    return Finding(name, Verdict.OK, text)


def optional(name: str, text: str, remedy: str = "") -> Finding:
    """It is absent and not needed."""
    return Finding(name, Verdict.OPTIONAL, text, remedy)


def warning(name: str, text: str, remedy: str = "") -> Finding:
    """edged works with less."""
    return Finding(name, Verdict.WARNING, text, remedy)


def failure(name: str, text: str, remedy: str = "") -> Finding:
    """edged does not work."""
    return Finding(name, Verdict.FAILURE, text, remedy)
