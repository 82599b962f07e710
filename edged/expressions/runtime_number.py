"""Integers and booleans read from texts in kernels, as DuckDB's casts read them.

An integer has spaces around it, a sign, digits with single underscores between them, a fraction
that is rounded half away from zero, and an exponent; or it is 0x… or 0b….  The algorithm is
DuckDB's, with its limits: a result and a fraction of 64 bits each.
"""

from __future__ import annotations

from typing import Any

from edged.expressions.intrinsics import load_uint8, sadd, sdiv, smul, srem
from edged.expressions.runtime import helper

_NINE, _ZERO = 57, 48


@helper
def is_space(byte: Any) -> Any:
    """Whether a byte is one of C's isspace."""
    return byte == 32 or (9 <= byte <= 13)


@helper
def is_digit(byte: Any) -> Any:
    """Whether a byte is a decimal digit."""
    return (byte >= _ZERO) & (byte <= _NINE)


@helper
def _digit_of(byte: Any) -> Any:
    """The value of a hexadecimal digit; 99 for any other byte."""
    if is_digit(byte):
        return byte - _ZERO
    low = byte | 32
    return low - 87 if 97 <= low <= 102 else 99


@helper
def _skip_spaces(a: Any, size: Any, at: Any) -> Any:
    while at < size and is_space(load_uint8(a, at)):
        at += 1
    return at


@helper
def _based(a: Any, size: Any, at: Any, base: Any) -> Any:
    """(value, error) of the digits of a base at `at`, to the end."""
    value, bad = 0, at >= size
    while at < size and not bad:
        digit = _digit_of(load_uint8(a, at))
        at += 1
        product, over = smul(value, base)
        value, past = sadd(product, digit)
        bad = digit >= base or over or past
        if at < size and load_uint8(a, at) == 95:
            at += 1
            bad = bad or at == size or _digit_of(load_uint8(a, at)) >= base
    return value, bad


@helper
def _digits(a: Any, size: Any, at: Any, value: Any, sign: Any) -> Any:
    """(position after, value, error) of decimal digits added to `value` with a sign."""
    bad = False
    while at < size and is_digit(load_uint8(a, at)) and not bad:
        product, over = smul(value, 10)
        value, past = sadd(product, sign * (load_uint8(a, at) - _ZERO))
        bad = over or past
        at += 1
        if at < size and load_uint8(a, at) == 95:
            at += 1
            bad = bad or at == size or not is_digit(load_uint8(a, at))
    return at, value, bad


@helper
def _fraction(a: Any, size: Any, at: Any) -> Any:
    """(position after, digits as an integer, their number, error); digits beyond 64 bits fall."""
    value, count, bad = 0, 0, False
    while at < size and is_digit(load_uint8(a, at)) and not bad:
        product, over = smul(value, 10)
        if not over:
            value, count = product + (load_uint8(a, at) - _ZERO), count + 1
        at += 1
        if at < size and load_uint8(a, at) == 95:
            at += 1
            bad = at == size or not is_digit(load_uint8(a, at))
    return at, value, count, bad


@helper
def _scaled(value: Any, fraction: Any, count: Any, power: Any, sign: Any) -> Any:
    """(value, fraction, its digits, error) moved by a power of ten."""
    if power < 0:
        while power < 0 and (value != 0 or fraction != 0):
            fraction = abs(srem(value, 10))
            value = sdiv(value, 10)
            power += 1
        return value, fraction, 1, False
    bad, left = False, power
    while value != 0 and left > 0 and not bad:
        value, bad = smul(value, 10)
        left -= 1
    if fraction == 0 or bad:
        return value, fraction, count, bad
    left, rest = power - count, 0
    if left < 0:
        if -left <= 18:
            scale = 1
            for _ in range(-left):
                scale *= 10
            rest = srem(fraction, scale)
            fraction = sdiv(fraction, scale)
        else:
            fraction = 0
    while left > 0 and not bad:
        fraction, bad = smul(fraction, 10)
        left -= 1
    value, past = sadd(value, sign * fraction)
    return value, rest, count - power, bad or past


@helper
def _exponent(a: Any, size: Any, at: Any) -> Any:
    """(position after, exponent, error) of the digits after `e`; 16 bits."""
    sign = 1
    if at < size and (load_uint8(a, at) == 45 or load_uint8(a, at) == 43):
        sign = -1 if load_uint8(a, at) == 45 else 1
        at += 1
    stop, power, bad = _digits(a, size, at, 0, sign)
    bad = bad or stop == at or power < -32768 or power > 32767
    return stop, power, bad


@helper
def text_integer(a: Any, size: Any, low: Any, high: Any) -> Any:
    """(integer, error) of a text, within `low` and `high`."""
    at = _skip_spaces(a, size, 0)
    negative = at < size and load_uint8(a, at) == 45
    if at + 1 < size and load_uint8(a, at) == 48:
        mark = load_uint8(a, at + 1) | 32
        if mark == 120 or mark == 98:
            value, bad = _based(a, size, at + 2, 16 if mark == 120 else 2)
            return value, bad or value < low or value > high
    if negative or (at < size and load_uint8(a, at) == 43):
        at += 1
    sign, first = -1 if negative else 1, at
    if negative and low == 0:
        while at < size and load_uint8(a, at) == 48:
            at += 1
        return 0, at < size or at == first
    at, value, bad = _digits(a, size, at, 0, sign)
    some, fraction, count = at > first, 0, 0
    if at < size and load_uint8(a, at) == 46 and not bad:
        begin = at + 1
        at, fraction, count, bad = _fraction(a, size, begin)
        some = some or at > begin
    if not some or bad:
        return 0, True
    if at < size and (load_uint8(a, at) | 32) == 101:
        at, power, bad = _exponent(a, size, at + 1)
        if not bad:
            value, fraction, count, bad = _scaled(value, fraction, count, power, sign)
    bad = bad or _skip_spaces(a, size, at) < size or value < low or value > high
    while fraction > 10:
        fraction, count = sdiv(fraction, 10), count - 1
    if count == 1 and fraction >= 5 and not bad:
        value, bad = sadd(value, sign)
        bad = bad or value < low or value > high
    return value, bad


@helper
def _spells(a: Any, size: Any, word: Any, letters: Any) -> Any:
    """Whether the text is the ASCII word packed into an integer, without regard to case."""
    same = size == letters
    for i in range(letters if same else 0):
        same = same and (load_uint8(a, i) | 32) == (word >> (8 * i)) & 0xFF
    return same


@helper
def text_boolean(a: Any, size: Any) -> Any:
    """(boolean, error): t, true, y, yes, 1 and f, false, n, no, 0 in any case."""
    first = load_uint8(a, 0) if size > 0 else 0
    if size == 1 and (first == 48 or first == 49):
        return first == 49, False
    true = (
        _spells(a, size, 0x74, 1) or _spells(a, size, 0x79, 1)
        or _spells(a, size, 0x736579, 3) or _spells(a, size, 0x65757274, 4)
    )  # fmt: skip
    false = (
        _spells(a, size, 0x66, 1) or _spells(a, size, 0x6E, 1)
        or _spells(a, size, 0x6F6E, 2) or _spells(a, size, 0x65736C6166, 5)
    )  # fmt: skip
    return true, not (true or false)
