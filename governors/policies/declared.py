"""Settings that a policy declares: how each is read, its default and its meaning.

The declarations parse the settings of configuration, job documents, commands and the REST API, and
the documentation and `edged governor policies` are made from them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from governors.quantities import Quantity


@dataclass(frozen=True, slots=True)
class SettingKind:
    """A kind of value that is not a number."""

    described: str
    """For documentation."""
    parse: Callable[[Any], Any]
    """Raises ValueError with a text that follows the quoted value."""


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """One setting of a policy."""

    kind: Quantity | SettingKind
    default: Any
    """None: not set."""
    text: str
    """Its meaning, in a sentence."""
    required: bool = False

    @property
    def default_text(self) -> str:
        """The default as TOML; `required`, or empty where it is not set."""
        if self.required:
            return "required"
        if self.default is None:
            return ""
        return str(self.default).lower() if isinstance(self.default, bool) else f"{self.default:g}"


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("is not true or false")
    return value


def _time_of_day(value: object) -> int:
    match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", str(value))
    if match is None:
        raise ValueError("is no time; write e.g. 06:00")
    return (int(match[1]) * 60 + int(match[2])) * 60_000_000


FLAG = SettingKind("true or false", _flag)
TIME_OF_DAY = SettingKind("time of day, e.g. 06:00", _time_of_day)
"""Parsed: µs after midnight."""
