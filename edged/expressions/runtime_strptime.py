"""strptime in kernels: a text read by a format, as DuckDB reads it.

A program is the format's bytes, with 0xFF before the letter of a specifier.  A run of spaces
matches one of any length.  Without a year it is 1900.
"""

from __future__ import annotations

from typing import Any

from edged.expressions.intrinsics import load_uint8, sadd, smul
from edged.expressions.runtime import helper
from edged.expressions.runtime_number import is_digit, is_space
from edged.expressions.runtime_time import US_PER_DAY, days

MARK = 0xFF
"""Stands before a specifier's letter in a program; UTF-8 has no such byte."""


@helper
def _spaces(a: Any, size: Any, at: Any) -> Any:
    while at < size and is_space(load_uint8(a, at)):
        at += 1
    return at


@helper
def _digits(a: Any, size: Any, at: Any, width: Any) -> Any:
    """(position after, number) of at most `width` digits; position -1: none."""
    first, value = at, 0
    while at < size and at < first + width and is_digit(load_uint8(a, at)):
        value = value * 10 + load_uint8(a, at) - 48
        at += 1
    return (at, value) if at > first else (-1, 0)


@helper
def _named(a: Any, size: Any, at: Any, names: Any, first: Any, count: Any, most: Any) -> Any:
    """(position after, index) of a name in any case, by its first `most` letters; -1: none."""
    for k in range(count):
        i = 0
        while (
            i < most
            and at + i < size
            and load_uint8(names, 9 * (first + k) + i) != 32
            and (load_uint8(a, at + i) | 32) == (load_uint8(names, 9 * (first + k) + i) | 32)
        ):
            i += 1
        if i == most or load_uint8(names, 9 * (first + k) + i) == 32:
            return at + i, k
    return -1, 0


@helper
def _half(a: Any, size: Any, at: Any) -> Any:
    """(position after, 0 for AM or 12 for PM); -1: neither."""
    if at + 2 > size or (load_uint8(a, at + 1) | 32) != 109:
        return -1, 0
    first = load_uint8(a, at) | 32
    if first != 97 and first != 112:
        return -1, 0
    return at + 2, 12 if first == 112 else 0


@helper
def _fraction(a: Any, size: Any, at: Any, width: Any) -> Any:
    """(position after, µs) of a fraction of at most `width` digits."""
    stop, value = _digits(a, size, at, width)
    for _ in range(6 - (stop - at)):
        value *= 10
    return stop, value


@helper
def _specifier(a: Any, size: Any, at: Any, letter: Any, names: Any) -> Any:
    """(position after, value) of one specifier; -1: the text does not fit."""
    if letter == 98 or letter == 66:
        stop, index = _named(a, size, at, names, 0, 12, 3 if letter == 98 else 9)
        return stop, index + 1
    if letter == 97 or letter == 65:
        return _named(a, size, at, names, 12, 7, 3 if letter == 97 else 9)
    if letter == 112:
        return _half(a, size, at)
    if letter == 102 or letter == 103:
        return _fraction(a, size, at, 6 if letter == 102 else 3)
    stop, value = _digits(a, size, at, 4 if letter == 89 else 2)
    low, high = 0, 59
    if letter == 89 or letter == 121:
        low, high = 0, 9999
    elif letter == 109 or letter == 73:
        low, high = 1, 12
    elif letter == 100:
        low, high = 1, 31
    elif letter == 72:
        high = 23
    return (stop if low <= value <= high else -1), value


@helper
def _moment(year: Any, month: Any, day: Any, us: Any) -> Any:
    """(µs since 1970, error) of a date and a time of day; error: there is no such day."""
    first = days(year, month, 1)
    length = days(year + month // 12, month % 12 + 1, 1) - first
    start, bad = smul(first + day - 1, US_PER_DAY)
    moment, past = sadd(start, us)
    return moment, day > length or bad or past


@helper
def text_time(a: Any, size: Any, form: Any, form_size: Any, names: Any, names_size: Any) -> Any:
    """(µs since 1970, error) of a text in a format."""
    year, month, day, hour, us, half = 1900, 1, 1, 0, 0, -1
    at, j = _spaces(a, size, 0), 0
    while j < form_size:
        byte = load_uint8(form, j)
        if byte != MARK and is_space(byte):
            stop = _spaces(a, size, at)
            if stop == at:
                return 0, True
            at, j = stop, _spaces(form, form_size, j)
            continue
        if byte != MARK:
            if at >= size or load_uint8(a, at) != byte:
                return 0, True
            at, j = at + 1, j + 1
            continue
        letter = load_uint8(form, j + 1)
        at, value = _specifier(a, size, at, letter, names)
        j += 2
        if at < 0:
            return 0, True
        if letter == 89:
            year = value
        elif letter == 121:
            year = value + (1900 if value >= 69 else 2000)
        elif letter == 109 or letter == 98 or letter == 66:
            month = value
        elif letter == 100:
            day = value
        elif letter == 72 or letter == 73:
            hour = value
        elif letter == 112:
            half = value
        elif letter == 77:
            us += value * 60_000_000
        elif letter == 83:
            us += value * 1_000_000
        elif letter == 102 or letter == 103:
            us += value
    if half >= 0:
        hour = hour % 12 + half
    moment, bad = _moment(year, month, day, us + hour * 3_600_000_000)
    return moment, bad or _spaces(a, size, at) < size
