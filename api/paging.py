"""Paging of long lists: at most `limit` items after `cursor`, in the order of their keys."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

from fastapi import Query

from api.problems import ApiProblem, ProblemFault

LIMIT_MAX = 1000

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Maximum number of items")]
Cursor = Annotated[
    str | None,
    Query(
        max_length=512,
        pattern=r"^[A-Za-z0-9_-]*$",
        description="`next` of the previous page",
    ),
]
_Item = TypeVar("_Item")


def cut(
    items: Iterable[_Item], key: Callable[[_Item], str], cursor: str | None, limit: int
) -> tuple[list[_Item], str | None]:
    """The page after `cursor`, and the cursor of the next page.  Raises ApiProblem 422."""
    after = decode(cursor)
    ordered = sorted((item for item in items if after is None or key(item) > after), key=key)
    page = ordered[:limit]
    return page, encode(key(page[-1])) if len(ordered) > limit else None


def encode(key: str) -> str:
    """A key as an opaque, URL-safe cursor."""
    return base64.urlsafe_b64encode(key.encode()).rstrip(b"=").decode()


def decode(cursor: str | None) -> str | None:
    """A cursor's key.  Raises ApiProblem 422 for an invalid cursor."""
    if not cursor:
        return None
    try:
        return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        fault = ProblemFault("query.cursor", "is not a cursor", "send `next` of the page before")
        raise ApiProblem("invalid", "the cursor is not one of ours", errors=(fault,)) from None
