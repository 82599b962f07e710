"""Changes of a daemon's jobs: the records of the log, and what is kept of a job beside its
document."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

RUNNING, PAUSED, DRAINING = "running", "paused", "draining"
API, CENTRE, FILE = "api", "centre", "file:"
"""Origins of a definition; behind FILE stands the path."""


@dataclass
class About:
    """What is kept of a job beside its document and its state."""

    version: int = 1
    """Of the document, from 1."""
    state: str = RUNNING
    ends: bool = False
    """Whether it goes when it is drained."""
    origin: str = FILE
    since_us: int = 0
    """Wall clock of the last change."""
    created_us: int = 0
    """Wall clock of its first definition: another one than an earlier job's of its name, whose
    versions began at 1 as well."""
    governor: dict[str, Any] | None = None
    """Policy and settings that a command chose."""

    @property
    def from_file(self) -> bool:
        """Whether a file holds the definition."""
        return self.origin.startswith(FILE)


@dataclass(frozen=True)
class Change:
    """One change; fields as in the module's docstring."""

    op: str
    name: str
    at_us: int
    document: dict[str, Any] | None = None
    origin: str = API
    state: str = RUNNING
    ends: bool = False
    governor: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)
