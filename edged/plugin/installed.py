"""What is installed: the kinds of every group, their origins, and the plug-ins that failed."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from edged.expressions.functions import FUNCTIONS
from edged.operators.base import OPERATORS
from edged.sinks.base import SINKS
from edged.sources.base import SOURCES
from governors.meters.base import OPENERS
from governors.policies.base import POLICIES
from governors.registry import Failure, Registry

REGISTRIES: tuple[Registry[object], ...] = (
    SOURCES, OPERATORS, SINKS, OPENERS, POLICIES, FUNCTIONS,
)  # type: ignore[assignment]  # fmt: skip


@dataclass(frozen=True, slots=True)
class InstalledKind:
    """One registered kind, or a plug-in that failed."""

    group: str
    name: str
    module: str
    distribution: str
    version: str
    problem: str = ""
    """Why a plug-in did not load; empty where it did."""

    def to_json(self) -> dict[str, str]:
        """For `edged plugins --json`."""
        return asdict(self)


def installed() -> list[InstalledKind]:
    """All kinds by group and name; loads every registry."""
    found = []
    for registry in REGISTRIES:
        for name in sorted(registry.load()):
            origin = registry.origin(name)
            found.append(
                InstalledKind(
                    registry.group, name, origin.module, origin.distribution, origin.version
                )
            )
    return found + [
        InstalledKind(
            f.group, f.name, f.origin.module, f.origin.distribution, f.origin.version, f.problem
        )
        for f in failures()
    ]


def failures() -> list[Failure]:
    """Every plug-in that failed to load; loads every registry."""
    return [f for registry in REGISTRIES for f in _loaded(registry).failures.values()]


def _loaded(registry: Registry[object]) -> Registry[object]:
    registry.load()
    return registry
