"""Reads job documents: TOML or JSON of one shape, and typed access to the values of a table.

`load_document` returns plain JSON values (a TOML date becomes ISO 8601 text), so that both
notations and the Python builder give the same document.  Sources, operators and sinks read their
tables with the getters below.  A getter takes the dotted path of the table and raises JobError at
`path.key` for a key that is missing or of the wrong type.

Not on msgspec or pydantic.  In a trial the table `promises` took 45 lines instead of 33: durations
and sizes need a decoder each.  msgspec also stops at the first fault of a table; a job reports all.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from edged.documents.bounds import check_json, check_toml
from edged.documents.units import duration_us, size_bytes
from edged.errors import JobError
from governors.suggestions import did_you_mean as did_you_mean  # noqa: PLC0414

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ID = re.compile(r"[a-z][a-z0-9_-]{0,62}")
"""Names of jobs, streams, operators and sinks."""
_HALVES = re.compile("[\ud800-\udfff]")
DOCUMENT_BYTES_MAX = 512 << 10
"""Three times the size of a job with 6000 columns."""

REQUIRED: Any = object()
"""Default of a getter whose key is mandatory."""

_T = TypeVar("_T")


def load_document(path: str | Path) -> dict[str, Any]:
    """The document in a file; `.json` or a leading brace means JSON, anything else TOML.

    Raises JobError where the file cannot be read or does not parse.
    """
    name = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise JobError(name, f"cannot be read: {reason}", "give the path of a job") from None
    _check_size(name, len(data))
    try:
        text = data.decode()
    except UnicodeDecodeError as problem:
        raise JobError(name, f"is not UTF-8 text: {problem}") from None
    return loads(text, name, json_text=name.endswith(".json") or text.lstrip()[:1] == "{")


def loads(text: str, name: str = "job", *, json_text: bool = False) -> dict[str, Any]:
    """The document in `text`, TOML unless `json_text`.

    Takes time in proportion to `text`, of which DOCUMENT_BYTES_MAX are read.  Raises JobError at
    `name`.
    """
    parsed: Any
    _check_size(name, len(text))
    (check_json if json_text else check_toml)(name, text)
    try:
        if json_text:
            parsed = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        else:
            parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise JobError(name, f"is not TOML: {problem}") from None
    except ValueError as problem:  # also a number of too many digits
        raise JobError(name, f"is not {'JSON' if json_text else 'TOML'}: {problem}") from None
    except RecursionError:
        raise JobError(name, "is nested too deeply", "this is not a job document") from None
    if not isinstance(parsed, dict):
        raise JobError(name, "is not a table", "a job is an object with name, streams and sinks")
    document: dict[str, Any] = plain(parsed)
    return document


def _check_size(name: str, size: int) -> None:
    if size > DOCUMENT_BYTES_MAX:
        most = f"is larger than {DOCUMENT_BYTES_MAX >> 10} KiB"
        raise JobError(name, most, "this is not a job document")


def plain(value: Any) -> Any:
    """A deep copy as plain JSON values.

    Raises JobError for a value that JSON cannot hold: a number that is not finite (TOML allows
    them) or has more than 64 bits, or text that is not Unicode (half of a surrogate pair).
    """
    if isinstance(value, Mapping):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if value is None or (isinstance(value, int) and -(2**63) <= value < 2**64):
        return value
    if isinstance(value, int):
        raise JobError("job", f"holds an integer of {value.bit_length()} bits", "at most 64 bits")
    if isinstance(value, float) and isfinite(value):
        return value
    if isinstance(value, str) and not _HALVES.search(value):
        return value
    raise JobError("job", f"{value!r} has no place in a job document")


def below(path: str, key: str) -> str:
    """The dotted path of `key` in the table at `path` (`""` is the document itself)."""
    return f"{path}.{key}" if path else key


def refuse_unknown(path: str, document: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise JobError for the first key of the table that is not in `known`."""
    names = set(known)
    for key in document:
        if key not in names:
            raise JobError(below(path, key), "unknown key", did_you_mean(key, names))


def is_id(path: str, value: object) -> str:
    """`value` if it is a valid id of a job, stream, operator or sink.  Raises JobError."""
    if not isinstance(value, str) or not ID.fullmatch(value):
        advice = "lower-case letters, digits, _ and -, a letter first, at most 63"
        raise JobError(path, f"{value!r} is not a name", advice)
    return value


def table(
    path: str, document: Mapping[str, Any], key: str, default: Any = REQUIRED
) -> dict[str, Any]:
    """A sub-table."""
    value: dict[str, Any] = _get(path, document, key, default, dict, "a table")
    return value


def text(path: str, document: Mapping[str, Any], key: str, default: Any = REQUIRED) -> str:
    """A string that is not empty."""
    value: str = _get(path, document, key, default, str, "text")
    if value == "" and value is not default:
        raise JobError(below(path, key), "is empty")
    return value


def boolean(path: str, document: Mapping[str, Any], key: str, default: Any = REQUIRED) -> bool:
    """True or false."""
    value: bool = _get(path, document, key, default, bool, "true or false")
    return value


def integer(
    path: str,
    document: Mapping[str, Any],
    key: str,
    default: Any = REQUIRED,
    *,
    least: int = -(2**63),
    most: int = 2**63 - 1,
) -> int:
    """An integer within `least..most`."""
    value: int = _get(path, document, key, default, int, "an integer")
    if value is not default and not least <= value <= most:
        raise JobError(below(path, key), f"{value} is out of range", f"{least} to {most}")
    return value


def number(
    path: str,
    document: Mapping[str, Any],
    key: str,
    default: Any = REQUIRED,
    *,
    least: float = float("-inf"),
    most: float = float("inf"),
) -> float:
    """A finite integer or float within `least..most`."""
    value: float = _get(path, document, key, default, (int, float), "a number")
    if value is not default and not (least <= value <= most and isfinite(value)):
        raise JobError(below(path, key), f"{value} is out of range", f"{least} to {most}")
    return value


def choice(
    path: str,
    document: Mapping[str, Any],
    key: str,
    choices: Sequence[str],
    default: Any = REQUIRED,
) -> str:
    """One of `choices`."""
    value = text(path, document, key, default)
    if value is not default and value not in choices:
        advice = did_you_mean(value, choices, otherwise=f"one of {', '.join(choices)}")
        raise JobError(below(path, key), f"{value!r} is not a choice", advice)
    return value


def names(
    path: str, document: Mapping[str, Any], key: str, default: Any = REQUIRED
) -> tuple[str, ...]:
    """A list of distinct strings, not empty."""
    value = _get(path, document, key, default, (list, tuple), "a list of names")
    if value is default:
        return tuple(value)
    where = below(path, key)
    for i, item in enumerate(value):
        if not isinstance(item, str) or not item:
            raise JobError(f"{where}[{i}]", f"{item!r} is not a name")
        if item in value[:i]:
            raise JobError(f"{where}[{i}]", f"{item} is named twice")
    if not value:
        raise JobError(where, "is empty", "name at least one")
    return tuple(value)


def duration(
    path: str, document: Mapping[str, Any], key: str, default: Any = REQUIRED, *, least: int = 0
) -> int:
    """A duration in microseconds, at least `least`.  `default` is in a document's notation."""
    return duration_us(below(path, key), _present(path, document, key, default), least=least)


def size(
    path: str, document: Mapping[str, Any], key: str, default: Any = REQUIRED, *, least: int = 0
) -> int:
    """A size in bytes, at least `least`.  `default` is in a document's notation."""
    return size_bytes(below(path, key), _present(path, document, key, default), least=least)


def _present(path: str, document: Mapping[str, Any], key: str, default: Any) -> Any:
    if key in document:
        return document[key]
    if default is REQUIRED:
        raise JobError(below(path, key), "is missing")
    return default


def _get(
    path: str, document: Mapping[str, Any], key: str, default: Any, kind: Any, what: str
) -> Any:
    value = _present(path, document, key, default)
    if value is default:
        return value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise JobError(below(path, key), f"{value!r} is not {what}")
    return value


def _unique(pairs: list[tuple[str, _T]]) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")
