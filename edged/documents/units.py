"""Durations and sizes with units.

Durations are whole microseconds: `250ms`, `1s`, `5min`, `1h30min`, `1.5s`, or an integer of
microseconds.  Units: `us ms s min h d`.  Sizes are whole bytes: `512MiB`, `1.5GiB`, or an integer
of bytes.  Units: `B KiB MiB GiB`.  A string without a unit is refused, because its unit is
ambiguous.
"""

from __future__ import annotations

import re
from fractions import Fraction

from edged.errors import JobError

DURATION_UNITS_US = {
    "us": 1,
    "µs": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
SIZE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
DURATION_US_MAX = 36_525 * DURATION_UNITS_US["d"]
"""A hundred years; a longer duration is taken for a mistake."""
SIZE_BYTES_MAX = 1 << 50
TEXT_CHARS_MAX = 100
"""Longest text of a duration or a size: six parts of 16 digits."""

_DURATION_ADVICE = "write e.g. 250ms, 1s, 5min, 1h30min or an integer of microseconds"
_SIZE_ADVICE = "write e.g. 64KiB, 512MiB, 1GiB or an integer of bytes"
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]+)\s*")


def duration_us(path: str, value: object, *, least: int = 0, negative: bool = False) -> int:
    """Microseconds of a duration in a job document.

    `least` is the smallest duration allowed; `negative=True` allows a leading minus instead.
    Raises JobError at `path`.
    """
    number = _whole(path, value, DURATION_UNITS_US, "a duration", _DURATION_ADVICE)
    if abs(number) > DURATION_US_MAX:
        raise JobError(path, f"{value!r} is longer than a hundred years", _DURATION_ADVICE)
    if not negative and number < least:
        raise JobError(path, f"{value!r} is too short", f"at least {show_duration(least)}")
    return number


def size_bytes(path: str, value: object, *, least: int = 0, most: int = SIZE_BYTES_MAX) -> int:
    """Bytes of a size in a job document, within `least..most`.  Raises JobError at `path`."""
    number = _whole(path, value, SIZE_UNITS, "a size", _SIZE_ADVICE)
    if not least <= number <= most:
        limits = f"between {show_size(least)} and {show_size(most)}"
        raise JobError(path, f"{value!r} is out of range", limits)
    return number


def show_duration(us: int) -> str:
    """The shortest exact way to write a duration: `90000000` is `1min30s`."""
    if us == 0:
        return "0s"
    sign, rest, parts = "-" if us < 0 else "", abs(us), []
    for unit in ("d", "h", "min", "s", "ms", "us"):
        count, rest = divmod(rest, DURATION_UNITS_US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return sign + "".join(parts)


def show_size(size: int) -> str:
    """A size in the largest unit that divides it: `536870912` is `512MiB`."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % SIZE_UNITS[unit] == 0:
            return f"{size // SIZE_UNITS[unit]}{unit}"
    return f"{size}B"


def _whole(path: str, value: object, units: dict[str, int], what: str, advice: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise JobError(path, f"{value!r} is not {what}", advice)
    if len(value) > TEXT_CHARS_MAX:
        raise JobError(path, f"{value[:20]!r}... is not {what}", advice)
    text = value.strip()
    sign = -1 if text.startswith("-") else 1
    text = text.removeprefix("-")
    total, at, seen = Fraction(0), 0, set()
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in units or part[2] in seen:
            raise JobError(path, f"{value!r} is not {what}", advice)
        seen.add(part[2])
        total += Fraction(part[1]) * units[part[2]]
        at = part.end()
    if at == 0:
        raise JobError(path, f"{value!r} is not {what}", advice)
    if total.denominator != 1:
        raise JobError(
            path, f"{value!r} is finer than {min(units, key=lambda u: units[u])}", advice
        )
    return sign * int(total)
