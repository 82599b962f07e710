"""Limits on the size and duration of request bodies, and strict JSON."""

from __future__ import annotations

import json
import time
from typing import Any

from anyio import fail_after
from fastapi import Request
from starlette.types import Message

from api.problems import ApiProblem

_I_JSON = "send UTF-8, whole characters, finite numbers, and nothing nested deeply"
BODY_S = 30.0
"""Longest time for a body to arrive."""


def limited(request: Request, ingests: bool) -> Request:
    """The request with its body limited in size and time.  Raises ApiProblem 413 at once if
    Content-Length is too large, else while the body is read; 408 for a slow body; 415 for a
    compressed one, which could expand to any size."""
    most: int = request.app.state.limits[ingests]
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise too_large(most)
    encoding = request.headers.get("content-encoding", "").strip().lower()
    receive, deadline_s, size = request.receive, time.monotonic() + BODY_S, 0

    async def counted() -> Message:
        nonlocal size
        try:
            with fail_after(max(0.0, deadline_s - time.monotonic())):
                message = await receive()
        except TimeoutError:
            raise ApiProblem("timeout", f"the body did not arrive within {BODY_S:.0f} s") from None
        size += len(message.get("body", b""))
        if size > most:
            raise too_large(most)
        if size and encoding not in ("", "identity"):
            raise ApiProblem(
                "unsupported-media-type", f"Content-Encoding {encoding[:80]!r} is not known here",
                "send the body as it is, without Content-Encoding",
            )  # fmt: skip
        return message

    return _Limited(request.scope, counted)


class _Limited(Request):
    async def json(self) -> Any:
        """The body as I-JSON (RFC 7493): UTF-8, finite numbers, and text that is valid Unicode, so
        that an answer can repeat it.  Raises ApiProblem 400, and JSONDecodeError."""
        try:
            value = json.loads((await self.body()).decode())
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except json.JSONDecodeError:
            raise
        except (ValueError, RecursionError):
            raise ApiProblem("malformed", "the body is not JSON", _I_JSON) from None
        return value


def too_large(most: int) -> ApiProblem:
    """413."""
    return ApiProblem("too-large", f"the body is larger than {most} bytes")
