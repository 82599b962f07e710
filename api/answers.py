"""Building answers (`edged.rest.answers`) from parts of the daemon's snapshot."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

from edged.rest.answers import Figures

_Answer = TypeVar("_Answer")


def validated(kind: type[_Answer], values: Any) -> _Answer:
    """The answer with these values: defaults filled in, unknown keys dropped.

    Raises pydantic's ValidationError if a value is missing or has the wrong type.
    """
    found: _Answer = _adapter(cast(Hashable, kind)).validate_python(values)
    return found


def keys(kind: type[Any]) -> frozenset[str]:
    """The names of an answer's fields."""
    return frozenset(kind.__annotations__)


def figures(part: dict[str, Any], kind: type[Any] | None = None) -> Figures:
    """The plain values of a part of the snapshot, without those that are fields of `kind`."""
    fields = frozenset() if kind is None else keys(kind)
    return {
        key: value
        for key, value in part.items()
        if key not in fields and (value is None or isinstance(value, (int, float, bool, str)))
    }


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, kind))
    return adapter
