"""The sender's tasks and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edged.uplink.send_queue import PageLocation


@dataclass(frozen=True, slots=True)
class RegisterSchema:
    """Task: PUT this schema."""

    stream: str
    version: int
    text: str


@dataclass(frozen=True, slots=True)
class SendPages:
    """Task: POST these pages, followed by a report."""

    places: Sequence[PageLocation]
    report: bytes = b""
    lost: tuple[str, int, int, int] | None = None
    """(stream, partition, first, last): the device has lost these for good, so that the first page
    follows."""
    begun_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """Result: the centre answered."""

    status: int
    body: dict[str, Any]
    sent_bytes: int = 0
    retry_after_s: float | None = None
    """Its header Retry-After."""


@dataclass(frozen=True, slots=True)
class NoReply:
    """Result: no answer arrived."""

    detail: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Result: nothing was sent, because the page at `place` is unreadable or another one."""

    place: PageLocation
    detail: str


LOST_HEADER = "X-Edged-Lost"
Task = RegisterSchema | SendPages
Result = Reply | NoReply | Unreadable


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    requests: int = 0
    pages: int = 0
    bytes: int = 0
    acked_pages: int = 0
    failures: int = 0
    reports: int = 0
    """Reports acknowledged."""
    alarms: int = 0
    """Answers that must not occur: other bytes under a page's name, or a second sending process."""
