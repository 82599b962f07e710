"""Typed access to the values of a request at the control door, none of which is trusted."""

from __future__ import annotations

from typing import Any

from edged.errors import CommandError

Request = dict[str, Any]


def integer(request: Request, key: str, default: int | None, least: int, most: int) -> int:
    """A whole number of a request.  Raises CommandError."""
    value = request.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        allowed = f"a whole number of {least} to {most}"
        raise CommandError("invalid", f"{value!r} is not {allowed}", where=key)
    return value


def text(request: Request, key: str) -> str:
    """A text of a request.  Raises CommandError."""
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise CommandError("invalid", f"{value!r} is not a text", where=key)
    return value
