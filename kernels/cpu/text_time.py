"""Times as texts: strftime.  A maker as in `kernels.cpu.text_make`.

A format is a program of int64: a byte stands for itself, `SPECIFIER + c` for `%c`, `BARE + c` for
`%-c`.  Times are µs since 1970-01-01 UTC in the proleptic Gregorian calendar.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.mem import store_u8
from kernels.cpu.text_make import MAKER, number_at
from kernels.registry import device, kernel

SPECIFIER, BARE = 1_000, 2_000
FRACTION, DATE = 3_000, 3_001
"""The fraction of a second without zeros at its end, and the date as CAST writes it (years before 1
are counted from 1 BC)."""
_DAY = 86_400_000_000
_NAMES = np.frombuffer(
    b"January  February March    April    May      June     July     August   September"
    b"October  November December Sunday   Monday   Tuesday  WednesdayThursday Friday   Saturday ",
    np.uint8,
).copy()
"""Months and weekdays, nine letters each."""


@device
def _civil(day: Any) -> Any:
    """(year, month, day of the month) of a day counted from 1970-01-01 (Howard Hinnant)."""
    z = day + 719_468
    era = z // 146_097
    doe = z - era * 146_097
    yoe = (doe - doe // 1_460 + doe // 36_524 - doe // 146_096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    month = mp + 3 if mp < 10 else mp - 9
    return yoe + era * 400 + (1 if month <= 2 else 0), month, doy - (153 * mp + 2) // 5 + 1


@device
def _year_start(year: Any) -> Any:
    """The day of January 1, counted from 1970-01-01."""
    y = year - 1
    return 365 * y + y // 4 - y // 100 + y // 400 - 719_162


@device
def _iso_week(day: Any) -> Any:
    """(year, week) of ISO 8601: those of the week's Thursday."""
    thursday = day - (day + 3) % 7 + 3
    year = _civil(thursday)[0]
    return year, (thursday - _year_start(year)) // 7 + 1


@device
def _byte(target: Any, at: Any, byte: Any) -> Any:
    if target != 0:
        store_u8(target + at, byte)
    return at + 1


@device
def _number(target: Any, at: Any, value: Any, width: Any) -> Any:
    """A decimal number with zeros in front up to `width` digits; negative ones have a sign."""
    if value < 0:
        at = _byte(target, at, 45)
        value = -value
        width = 1
    scale, digits = 1, 1
    while digits < width or value // scale >= 10:
        scale *= 10
        digits += 1
    while scale > 0:
        at = _byte(target, at, 48 + value // scale % 10)
        scale //= 10
    return at


@device
def _name(target: Any, at: Any, index: Any, letters: Any) -> Any:
    for i in range(letters):
        byte = _NAMES[9 * index + i]
        if byte != 32:
            at = _byte(target, at, byte)
    return at


@device
def _date(target: Any, at: Any, day: Any) -> Any:
    year, month, dom = _civil(day)
    at = _number(target, at, year if year > 0 else 1 - year, 4)
    at = _number(target, _byte(target, at, 45), month, 2)
    at = _number(target, _byte(target, at, 45), dom, 2)
    if year <= 0:
        for byte in (32, 40, 66, 67, 41):
            at = _byte(target, at, byte)
    return at


@device
def _day_part(letter: Any, day: Any) -> Any:
    """(value, digits) of a specifier of the date; digits 0: there is none."""
    year, month, dom = _civil(day)
    doy = day - _year_start(year)
    weekday = (day + 4) % 7
    if letter == 89:  # Y
        return year, 4
    if letter == 121:  # y
        return abs(year) % 100, 2
    if letter == 109:  # m
        return month, 2
    if letter == 100:  # d
        return dom, 2
    if letter == 106:  # j
        return doy + 1, 3
    if letter == 119:  # w
        return weekday, 1
    if letter == 117:  # u
        return (day + 3) % 7 + 1, 1
    if letter == 85:  # U
        return (doy + 7 - weekday) // 7, 2
    if letter == 87:  # W
        return (doy + 7 - (day + 3) % 7) // 7, 2
    if letter == 71:  # G
        return _iso_week(day)[0], 4
    if letter == 86:  # V
        return _iso_week(day)[1], 2
    return 0, 0


@device
def _time_part(letter: Any, us: Any) -> Any:
    """(value, digits) of a specifier of the time of day."""
    hour = us // 3_600_000_000
    if letter == 72:  # H
        return hour, 2
    if letter == 73:  # I
        return (hour + 11) % 12 + 1, 2
    if letter == 77:  # M
        return us // 60_000_000 % 60, 2
    if letter == 83:  # S
        return us // 1_000_000 % 60, 2
    if letter == 103:  # g
        return us // 1_000 % 1_000, 3
    return us % 1_000_000, 6  # f


@device
def _fraction(target: Any, at: Any, us: Any) -> Any:
    rest, digits = us % 1_000_000, 6
    if rest == 0:
        return at
    while rest % 10 == 0:
        rest //= 10
        digits -= 1
    return _number(target, _byte(target, at, 46), rest, digits)


@device
def _one(target: Any, at: Any, code: Any, time: Any) -> Any:
    """Write what one code of a program stands for."""
    day, us = time // _DAY, time % _DAY
    letter = code % 1_000
    if code < SPECIFIER:
        return _byte(target, at, code)
    if code == FRACTION:
        return _fraction(target, at, us)
    if code == DATE:
        return _date(target, at, day)
    if letter == 97 or letter == 65:  # a, A
        return _name(target, at, 12 + (day + 4) % 7, 3 if letter == 97 else 9)
    if letter == 98 or letter == 66:  # b, B
        return _name(target, at, _civil(day)[1] - 1, 3 if letter == 98 else 9)
    if letter == 112:  # p
        return _byte(target, _byte(target, at, 65 if us < _DAY // 2 else 80), 77)
    value, digits = _day_part(letter, day)
    if digits == 0:
        value, digits = _time_part(letter, us)
    return _number(target, at, value, 1 if code >= BARE else digits)


@kernel(MAKER, reference="tests.naive.text_time.format_time")
def format_time(operands: Any, valid: Any, extra: Any, offsets: Any, target: Any, bad: Any) -> Any:
    """A time in the format of the program `extra`."""
    at = 0
    for row in range(valid.size):
        if target == 0:
            offsets[row] = at
        if valid[row] == 0:
            continue
        time = number_at(operands, 0, row)
        for code in extra:
            at = _one(target, at, code, time)
    if target == 0:
        offsets[valid.size] = at
    return at
