"""Literals: numbers, timestamps, intervals and time units in DuckDB's syntax.

All functions raise ValueError with a readable message; the binder adds the path.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from fractions import Fraction

from edged.expressions import types as t
from edged.expressions.runtime_time import US_PER_DAY
from edged.expressions.tree import Const
from edged.expressions.types import SqlType

US_PER_MONTH = 30 * US_PER_DAY
"""Microseconds of a month in comparisons of intervals."""

_UNITS: dict[str, tuple[str, ...]] = {
    "microsecond": ("us", "usec", "usecs", "usecond", "microseconds"),
    "millisecond": ("ms", "msec", "msecs", "milliseconds"),
    "second": ("s", "sec", "secs", "seconds"),
    "minute": ("m", "min", "mins", "minutes"),
    "hour": ("h", "hr", "hrs", "hours"),
    "day": ("d", "days", "dayofmonth"),
    "week": ("w", "weeks", "weekofyear"),
    "month": ("mon", "mons", "months"),
    "quarter": ("quarters",),
    "year": ("y", "yr", "yrs", "years"),
    "dow": ("weekday", "dayofweek"),
    "isodow": (),
    "doy": ("dayofyear",),
    "epoch": (),
}
_ALIASES = {alias: unit for unit, names in _UNITS.items() for alias in (unit, *names)}
FIXED_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": US_PER_DAY,
    "week": 7 * US_PER_DAY,
}
MONTHS = {"month": 1, "quarter": 3, "year": 12}
TRUNC_UNITS = (*FIXED_US, *MONTHS)
"""Units that date_trunc takes."""
PART_UNITS = tuple(_UNITS)
"""Parts that extract takes."""

_TIMESTAMP = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?\s*(?:Z|UTC|\+00(?::?00)?)?)?"
)
_INTERVAL_PART = re.compile(r"\s*(-?\d+)(?:\.(\d+))?\s*([A-Za-z]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def number(text: str) -> Const:
    """A numeric literal: an integer of the least type from INTEGER on, DECIMAL or DOUBLE."""
    if text.isdigit():
        value = int(text)
        return Const(t.of_integer(value), False, value, literal=True)
    kind = t.DOUBLE if "e" in text.lower() else t.DECIMAL
    return Const(kind, False, repr(float(text)), literal=True)


def timestamp(text: str) -> int:
    """Microseconds since 1970 of `YYYY-MM-DD[ HH:MM[:SS[.ffffff]]]`, always UTC."""
    match = _TIMESTAMP.fullmatch(text)
    if text == "epoch":
        return 0
    if match is None:
        raise ValueError(f"'{text}' is not a timestamp: YYYY-MM-DD [HH:MM[:SS[.ffffff]]], in UTC")
    year, month, day, hour, minute, second, fraction = match.groups()
    us = int((fraction or "0").ljust(6, "0")[:6])
    try:
        day_start = datetime(int(year), int(month), int(day), tzinfo=timezone.utc)
        time = datetime.min.replace(
            hour=int(hour or 0), minute=int(minute or 0), second=int(second or 0), microsecond=us
        )
    except ValueError as problem:
        raise ValueError(f"'{text}' is not a timestamp: {problem}") from None
    return (day_start - _EPOCH + (time - datetime.min)) // timedelta(microseconds=1)


def unit(text: str, allowed: tuple[str, ...]) -> str:
    """The canonical name of a time unit, any of DuckDB's spellings."""
    name = _ALIASES.get(text.lower(), "")
    if name not in allowed:
        raise ValueError(f"'{text}' is not a part of a time ({', '.join(allowed)})")
    return name


def interval(text: str) -> tuple[int, int]:
    """(months, microseconds) of `'1 hour 30 minutes'`: numbers and units, decimals up to weeks."""
    months, us, at = 0, 0, 0
    while match := _INTERVAL_PART.match(text, at):
        whole, fraction, name = match.groups()
        of = unit(name, TRUNC_UNITS)
        if of in MONTHS and fraction:
            raise ValueError(f"a fraction of a {of} is not a fixed time in INTERVAL '{text}'")
        if of in MONTHS:
            months += int(whole) * MONTHS[of]
        else:
            us += _micros(whole, fraction, FIXED_US[of], text)
        at = match.end()
    if at == 0 or text[at:].strip():
        raise ValueError(f"INTERVAL '{text}' is not like '5 minutes' or '1 hour 30 minutes'")
    if abs(us) >= 2**62 or abs(months) > 12 * 300_000:
        raise ValueError(f"INTERVAL '{text}' is too long")
    return months, us


def _micros(whole: str, fraction: str | None, us_per_unit: int, text: str) -> int:
    exact = Fraction(f"{whole}.{fraction or 0}") * us_per_unit
    if exact.denominator != 1:
        raise ValueError(f"INTERVAL '{text}' is not a whole number of microseconds")
    return int(exact)


def convert(value: Const, to: SqlType) -> Const:
    """A string literal as a constant of another type."""
    if not isinstance(value.value, bytes):
        raise ValueError("not a string")
    text = value.value.decode()
    if to.kind == "timestamp":
        return Const(to, False, timestamp(text))
    if to.kind == "date":
        if not re.fullmatch(r"\d{4}-\d{1,2}-\d{1,2}", text):
            raise ValueError(f"'{text}' is not a date: YYYY-MM-DD")
        return Const(to, False, timestamp(text))
    if to.kind == "interval":
        months, us = interval(text)
        return Const(to, False, us, months=months)
    if to.kind == "blob" and text.isascii() and "\\" not in text:
        return Const(to, False, value.value)
    if to.kind == "bool" and text.lower() in _BOOLS:
        return Const(to, False, _BOOLS[text.lower()])
    if to.integer and re.fullmatch(r"\s*[+-]?\d+\s*", text) and to.holds(int(text)):
        return Const(to, False, int(text))
    if to.kind == "float" and _is_float(text):
        return Const(to, False, repr(float(text)))
    raise ValueError(f"'{text}' is not a {to}")


_BOOLS = dict.fromkeys(("true", "t", "yes", "y", "1"), True) | dict.fromkeys(
    ("false", "f", "no", "n", "0"), False
)


def _is_float(text: str) -> bool:
    try:
        return "_" not in text and (not math.isnan(float(text)) or text.lower() == "nan")
    except ValueError:
        return False
