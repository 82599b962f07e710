"""How much of a request is read, and for how long."""

from __future__ import annotations

import asyncio
import time

from fastapi import Request
from starlette.types import Message

from api.problems import Problem

BODY_S = 30.0
"""How long a body may take to arrive."""


def limited(request: Request, ingests: bool) -> Request:
    """The request with its body bounded in size and time.  Raises Problem 413 at once where the
    length is told and too large; else while the body is read, and 408, or 415 for one that is
    compressed: it could unpack to any size."""
    most: int = request.app.state.limits[ingests]
    told = request.headers.get("content-length", "0")
    if told.isdecimal() and int(told) > most:
        raise too_large(most)
    encoding = request.headers.get("content-encoding", "").strip().lower()
    receive, deadline_s, size = request.receive, time.monotonic() + BODY_S, 0

    async def counted() -> Message:
        nonlocal size
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline_s - time.monotonic()))
        except asyncio.TimeoutError:
            raise Problem("timeout", f"the body did not arrive within {BODY_S:.0f} s") from None
        size += len(message.get("body", b""))
        if size > most:
            raise too_large(most)
        if size and encoding not in ("", "identity"):
            raise Problem(
                "unsupported-media-type", f"Content-Encoding {encoding[:80]!r} is not known here",
                "send the body as it is, without Content-Encoding",
            )  # fmt: skip
        return message

    return Request(request.scope, counted)


def too_large(most: int) -> Problem:
    """413."""
    return Problem("too-large", f"the body is larger than {most} bytes")
