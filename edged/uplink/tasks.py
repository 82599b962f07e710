"""What a sender wants done, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edged.uplink.send_queue import Place


@dataclass(frozen=True, slots=True)
class Register:
    """Task: PUT this schema."""

    stream: str
    version: int
    text: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Task: POST these pages, and behind them a report."""

    places: Sequence[Place]
    report: bytes = b""
    begun_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """Result: the centre answered."""

    status: int
    body: dict[str, Any]
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NoReply:
    """Result: it did not."""

    detail: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Result: nothing was sent, because the page at `place` cannot be read as what it should be."""

    place: Place
    detail: str


Task = Register | Batch
Result = Reply | NoReply | Unreadable


@dataclass(slots=True)
class Counters:
    """What has been done since the start."""

    requests: int = 0
    pages: int = 0
    bytes: int = 0
    acked_pages: int = 0
    failures: int = 0
    reports: int = 0
    """Reports acknowledged."""
    alarms: int = 0
    """Answers that should never come: other bytes under a page's name, or another process."""
