"""A sealed page and its key."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageKey:
    """The key of a page within a device and epoch; `seq` counts from 1 per (stream, partition)."""

    stream: str
    partition: int
    seq: int


@dataclass(frozen=True, slots=True)
class SealedPage:
    """A sealed page: its key and its bytes exactly as sent, valid until they are committed."""

    key: PageKey
    data: bytes | memoryview
