"""A sealed page and its key."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageKey:
    """What names a page within a device and epoch; `seq` counts from 1 per stream, partition."""

    stream: str
    partition: int
    seq: int


@dataclass(frozen=True, slots=True)
class SealedPage:
    """A sealed page's bytes (exactly as they go over the wire) and its name."""

    key: PageKey
    data: bytes
