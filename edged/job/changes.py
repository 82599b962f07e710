"""Changes of a daemon's jobs, as records of the log, and the metadata of a job."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

RUNNING, PAUSED, DRAINING = "running", "paused", "draining"
API, CENTRE, FILE = "api", "centre", "file:"
"""Origins of a definition; FILE is followed by the path."""


@dataclass
class JobMetadata:
    """Metadata of a job beside its document and its state."""

    version: int = 1
    """Version of the document, from 1."""
    state: str = RUNNING
    ends: bool = False
    """Whether the job is removed once it is drained."""
    origin: str = FILE
    since_us: int = 0
    """Wall clock of the last change."""
    created_us: int = 0
    """Wall clock of the first definition; distinguishes a job from an earlier one of its name,
    whose versions began at 1 as well."""
    governor: dict[str, Any] | None = None
    """Policy and settings set by a command."""

    @property
    def from_file(self) -> bool:
        """Whether the definition comes from a file."""
        return self.origin.startswith(FILE)


@dataclass(frozen=True)
class Change:
    """One change of a job; the name of a field is its key in the log's record."""

    op: str
    name: str
    at_us: int
    document: dict[str, Any] | None = None
    origin: str = API
    state: str = RUNNING
    ends: bool = False
    governor: dict[str, Any] | None = None
    footprint: dict[str, Any] | None = None
    """Of a put document (`edged.job.footprint`)."""

    def to_json(self) -> dict[str, Any]:
        """The JSON form in the record."""
        return asdict(self)
