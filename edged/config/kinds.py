"""Kinds of settings: how a value is read from TOML, and from the text of a variable or a flag.

Readers take a TOML value and raise ValueError whose text completes the sentence "store.bytes_max:
…".

Not on msgspec: it covers 5 of the 12 kinds, some 40 lines here, and the translation of its messages
takes as many. The same holds for `edged.config.read`: each value keeps its origin and line, and all
faults of file, drop-ins, environment and flags are reported together.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

from edged.documents.units import size_bytes
from edged.errors import JobError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ValueKind:
    """One kind of value."""

    name: str
    """The name in documentation."""
    read: Callable[[Any], Any]
    """Checks a value from TOML and returns it.  Raises ValueError."""
    from_text: Callable[[str], Any] = str
    """Turns the text of a variable or a flag into a value for `read`."""
    path: bool = False
    """Whether the value is a path; a relative one counts from the directory of its file."""


def text() -> ValueKind:
    """Text that may be empty, which means "not set"."""
    return ValueKind("text", lambda value: _is(value, str, "text"))


def path() -> ValueKind:
    """A file or directory; empty means "not set"."""
    return ValueKind("path", lambda value: _is(value, str, "a path"), path=True)


def paths() -> ValueKind:
    """A list of files."""
    return ValueKind("list of paths", lambda value: _texts(value), _list, path=True)


def names() -> ValueKind:
    """A list of texts."""
    return ValueKind("list of texts", lambda value: _texts(value), _list)


def boolean() -> ValueKind:
    """True or false."""
    return ValueKind("true or false", lambda value: _is(value, bool, "true or false"), _boolean)


def integer(least: int, most: int) -> ValueKind:
    """A whole number in `least..most`."""

    def read(value: Any) -> int:
        return int(_within(_is(value, int, "a whole number"), least, most))

    return ValueKind(f"whole number, {least} to {most}", read, _number)


def number(least: float, most: float) -> ValueKind:
    """A finite number in `least..most`."""

    def read(value: Any) -> float:
        return float(_within(_is(value, (int, float), "a number"), least, most))

    return ValueKind(f"number, {least:g} to {most:g}", read, _number)


def size(least: int = 0) -> ValueKind:
    """Bytes, as `512MiB` or a whole number."""

    def read(value: Any) -> int:
        try:
            return size_bytes("", value, least=least)
        except JobError as problem:
            advice = f" ({problem.advice})" if problem.advice else ""
            raise ValueError(f"{problem.problem}{advice}") from None

    return ValueKind("size", read, lambda given: int(given) if given.isdigit() else given)


def choice(words: Sequence[str]) -> ValueKind:
    """One of a few words."""

    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"{value!r} is none of {', '.join(words)}")
        return str(value)

    return ValueKind(" | ".join(words), read)


def table() -> ValueKind:
    """A table whose keys another module checks."""
    return ValueKind("table", lambda value: dict(_is(value, dict, "a table")), _table)


def address() -> ValueKind:
    """`HOST:PORT` or `[IPv6]:PORT`; empty means "not set"."""

    def read(value: Any) -> str:
        given = str(_is(value, str, "an address"))
        found = _HOST_PORT.fullmatch(given)
        if given and (found is None or int(found[2]) > 65535):
            raise ValueError(f"{given!r} is not HOST:PORT; write e.g. 127.0.0.1:9464 or [::1]:9464")
        return given

    return ValueKind("HOST:PORT", read)


def url() -> ValueKind:
    """`http://…` or `https://…`; empty means "not set"."""

    def read(value: Any) -> str:
        given = str(_is(value, str, "a URL"))
        if given and not _is_http(given):
            raise ValueError(f"{given!r} is not a URL; write e.g. https://centre.example:7500")
        return given

    return ValueKind("URL", read)


def _is_http(given: str) -> bool:
    try:
        parts = urlsplit(given)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # not a port, or not an address
        return False


def _is(value: Any, kind: Any, what: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{value!r} is not {what}")
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{value!r} contains a NUL character")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and v for v in value):
        raise ValueError(f"{value!r} is not a list of texts")
    return tuple(_is(v, str, "a text") for v in value)


def _within(value: Any, least: float, most: float) -> Any:
    if not (isfinite(value) and least <= value <= most):
        raise ValueError(f"{value} is not within {least:g} to {most:g}")
    return value


def _number(given: str) -> Any:
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    return given


def _boolean(given: str) -> Any:
    return {"true": True, "false": False}.get(given, given)


def _list(given: str) -> Any:
    """A list separated by commas, or TOML in brackets."""
    if given.lstrip().startswith("["):
        return _toml(given)
    return [part.strip() for part in given.split(",") if part.strip()]


def _table(given: str) -> Any:
    """An inline table, with or without braces."""
    return _toml(given if given.lstrip().startswith("{") else f"{{{given}}}")


def _toml(given: str) -> Any:
    try:
        return tomllib.loads(f"value = {given}")["value"]
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"{given!r} is not TOML: {problem}") from None
