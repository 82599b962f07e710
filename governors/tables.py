"""TOML tables read strictly: what is wrong, missing or not known is an error that says where.

A key that nobody asked for is refused with the nearest one that is known, so that a mistyped figure
is never silently left out.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from governors.errors import ProfileError

UNKNOWN = "unknown"
"""Written for a value that is not public."""
T = TypeVar("T")
_KINDS = {float: "a number", int: "an integer", str: "a text", dict: "a table", list: "a list"}


@dataclass
class Table:
    """A table that is taken apart key by key; what is left over is an error."""

    content: Mapping[str, Any]
    where: str
    """The file, and the tables on the way to this one."""
    asked: set[str] = field(default_factory=set)

    def fail(self, key: str, problem: str) -> ProfileError:
        """The error that says where."""
        return ProfileError(f"{self.where}: {key} {problem}")

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A value of that kind; an integer passes for a number.  Raises ProfileError."""
        self.asked.add(key)
        value = self.content.get(key, default)
        if value is None:
            left = [other for other in self.content if other not in self.asked]
            near = difflib.get_close_matches(key, left, 1, cutoff=0.85)
            if near:
                raise self.fail(near[0], f"is not known; did you mean {key}?")
            raise self.fail(key, "is missing")
        if kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.fail(key, f"is {value!r}, not {_KINDS.get(kind, kind.__name__)}")
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """None where it is written as unknown."""
        self.asked.add(key)
        return None if self.content.get(key) == UNKNOWN else self.take(key, kind)

    def many(self, key: str, kind: type[T]) -> tuple[T, ...]:
        """A list of values of that kind.  Raises ProfileError."""
        values: list[Any] = self.take(key, list)
        one = Table({str(i): v for i, v in enumerate(values)}, f"{self.where}: {key}")
        return tuple(one.take(str(i), kind) for i in range(len(values)))

    def source(self) -> str:
        """Where the table's values are from.  Raises ProfileError where it is left out or empty."""
        text = self.take("source", str)
        if not text.strip():
            raise self.fail("source", "is empty: say where the figures are from, or why unknown")
        return text

    def table(self, key: str) -> Table:
        """A table within.  Raises ProfileError."""
        return Table(self.take(key, dict), f"{self.where}: {key}")

    def each(self, key: str, read: Callable[[Table], T]) -> tuple[T, ...]:
        """An array of tables, which may be left out."""
        found = []
        for i, content in enumerate(self.take(key, list, [])):
            if not isinstance(content, dict):
                raise self.fail(key, f"[{i}] is {content!r}, not a table")
            found.append(Table(content, f"{self.where}: {key}[{i}]").read(read))
        return tuple(found)

    def read(self, read: Callable[[Table], T]) -> T:
        """Take it apart, and refuse what nobody asked for."""
        result = read(self)
        for key in self.content:
            if key not in self.asked:
                near = difflib.get_close_matches(key, sorted(self.asked), 1)
                hint = f"did you mean {near[0]}?" if near else f"known: {sorted(self.asked)}"
                raise self.fail(key, f"is not known; {hint}")
        return result
