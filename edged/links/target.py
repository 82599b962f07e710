"""Where a link leads and how: what the sending process needs of a checked `edge` sink."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LinkTarget:
    """A link's receivers; instance i is at address `to[i]`."""

    name: str
    """Of its pages (`edged.links.page.link_name`)."""
    job: str
    sink: str
    stream: str
    """Stream of the next job."""
    to: tuple[str, ...]
    version: int
    """Of the schema."""
    schema: str
    """JSON form of the schema."""
    high: int
    low: int
    spool: bool
    """Whether the store takes what is in flight above `high`."""
    token_file: str = ""
    tls: bool = False
    ca: str = ""
    forwards: str = ""
    """The producer that its messages come from, of a hop that only passes them on."""
    logs: bool = True
    """Whether its numbers outlive this run of the daemon."""

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)
