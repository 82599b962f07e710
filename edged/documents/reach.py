"""What a source or sink of a job reaches outside the daemon: files, addresses, programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Reach:
    """All that a part reaches, each by the key of its table that names it."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Paths that it reads or writes; a relative one starts at the working directory."""
    listens: Mapping[str, str] = field(default_factory=dict)
    """Addresses `host:port` that it listens on."""
    connects: Mapping[str, str] = field(default_factory=dict)
    """Addresses `host:port` that it connects to."""
    programs: tuple[str, ...] = ()
    """Keys that name a program which it runs."""
