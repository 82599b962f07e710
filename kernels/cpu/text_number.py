"""Floats from texts and as texts, beside pyarrow, which finds the nearest float and its digits.

Makers as in `kernels.cpu.text_make`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.mem import load_u8, store_u8
from kernels.cpu.text_make import MAKER, number_at, put, text_at
from kernels.registry import device, kernel


@device
def _space(byte: Any) -> Any:
    return byte == 32 or (byte >= 9 and byte <= 13)


@device
def _digit(text: Any, size: Any, at: Any) -> Any:
    return at < size and load_u8(text + at) >= 48 and load_u8(text + at) <= 57


@device
def _digits(text: Any, size: Any, at: Any) -> Any:
    """Position after digits with single underscores between them; -1: an underscore elsewhere."""
    while _digit(text, size, at):
        at += 1
        if at < size and load_u8(text + at) == 95:
            at += 1
            if not _digit(text, size, at):
                return -1
    return at


@device
def _word(text: Any, size: Any, at: Any, word: Any, letters: Any) -> Any:
    """Whether an ASCII word, packed into an integer, stands at `at` in any case."""
    same = at + letters <= size
    for i in range(letters if same else 0):
        same = same and load_u8(text + at + i) | 32 == (word >> (8 * i)) & 0xFF
    return same


@device
def _special(text: Any, size: Any, at: Any) -> Any:
    """Position after inf, infinity, nan or nan(…); `at` where none stands there."""
    if _word(text, size, at, 0x7974696E69666E69, 8):
        return at + 8
    if _word(text, size, at, 0x666E69, 3):
        return at + 3
    if not _word(text, size, at, 0x6E616E, 3):
        return at
    stop = at + 3
    if stop < size and load_u8(text + stop) == 40:
        i = stop + 1
        while i < size and (
            _digit(text, size, i)
            or load_u8(text + i) == 95
            or (load_u8(text + i) | 32 >= 97 and load_u8(text + i) | 32 <= 122)
        ):
            i += 1
        if i < size and load_u8(text + i) == 41:
            return i + 1
    return stop


@device
def _number(text: Any, size: Any, at: Any) -> Any:
    """Position after digits, a fraction and an exponent; -1: no number."""
    first = at
    at = _digits(text, size, at)
    some = at > first
    if at >= 0 and at < size and load_u8(text + at) == 46:
        begin = at + 1
        at = _digits(text, size, begin)
        some = some or at > begin
    if at < 0 or not some:
        return -1
    if at < size and load_u8(text + at) | 32 == 101:
        begin = at + 1
        if begin < size and (load_u8(text + begin) == 43 or load_u8(text + begin) == 45):
            begin += 1
        at = _digits(text, size, begin) if _digit(text, size, begin) else -1
    return at


@device
def _extent(text: Any, size: Any) -> Any:
    """(start, stop) of a float in a text, without spaces and plus; stop -1: it is none."""
    start = 0
    while start < size and _space(load_u8(text + start)):
        start += 1
    if start < size and load_u8(text + start) == 43:
        start += 1
    at = start
    if at < size and load_u8(text + at) == 45:
        at += 1
    stop = _special(text, size, at)
    if stop == at:
        stop = _number(text, size, at)
    end = stop
    while end >= 0 and end < size and _space(load_u8(text + end)):
        end += 1
    return start, (stop if end == size else -1)


@kernel(MAKER, reference="tests.naive.text_number.plain_float")
def plain_float(operands: Any, valid: Any, extra: Any, offsets: Any, target: Any, bad: Any) -> Any:
    """A float as DuckDB's cast reads it, in the form that pyarrow reads; error: it is none.

    Spaces around it, a plus, single underscores between digits and what stands in parentheses
    after nan are left out.  Null rows and errors are empty.
    """
    at = 0
    for row in range(valid.size):
        if target == 0:
            offsets[row] = at
        if valid[row] == 0:
            continue
        text, size = text_at(operands, 0, row)
        start, stop = _extent(text, size)
        if stop < 0:
            bad[row] = 1
            continue
        for i in range(start, stop):
            byte = load_u8(text + i)
            if byte == 40:
                break
            if byte != 95:
                at = put(target, at, text + i, 1)
    if target == 0:
        offsets[valid.size] = at
    return at


@device
def _byte(target: Any, at: Any, byte: Any) -> Any:
    if target != 0:
        store_u8(target + at, byte)
    return at + 1


@device
def _scan(text: Any, size: Any, digits: Any) -> Any:
    """(number of significant digits, decimal exponent of the first) of a float's text.

    The digits go to `digits`, without zeros at either end; 0 has none.
    """
    count, exponent, point, i = 0, 0, -1, 0
    places = 0
    while i < size and load_u8(text + i) | 32 != 101:
        byte = load_u8(text + i)
        if byte == 46:
            point = places
        elif byte != 45:
            if count > 0 or byte != 48:
                if count == 0:
                    exponent = places
                digits[count] = byte
                count += 1
            places += 1
        i += 1
    point = places if point < 0 else point
    shift = 0
    if i < size:
        i += 1
        minus = load_u8(text + i) == 45
        while i < size:
            if _digit(text, size, i):
                shift = shift * 10 + load_u8(text + i) - 48
            i += 1
        shift = -shift if minus else shift
    while count > 0 and digits[count - 1] == 48:
        count -= 1
    return count, (point - 1 - exponent + shift if count > 0 else 0)


@device
def _fixed(target: Any, at: Any, digits: Any, count: Any, exponent: Any) -> Any:
    """Digits with a decimal point and at least one digit on each side of it."""
    for place in range(max(exponent, 0), min(exponent - count + 1, -1) - 1, -1):
        if place == -1:
            at = _byte(target, at, 46)
        i = exponent - place
        at = _byte(target, at, digits[i] if i >= 0 and i < count else 48)
    return at


@device
def _scientific(target: Any, at: Any, digits: Any, count: Any, exponent: Any) -> Any:
    """One digit, the others after a point, and an exponent of two digits or three."""
    at = _byte(target, at, digits[0])
    for i in range(1, count):
        if i == 1:
            at = _byte(target, at, 46)
        at = _byte(target, at, digits[i])
    at = _byte(target, at, 101)
    at = _byte(target, at, 45 if exponent < 0 else 43)
    size = abs(exponent)
    if size >= 100:
        at = _byte(target, at, 48 + size // 100)
    at = _byte(target, at, 48 + size // 10 % 10)
    return _byte(target, at, 48 + size % 10)


@kernel(MAKER, reference="tests.naive.text_number.float_layout")
def float_layout(operands: Any, valid: Any, extra: Any, offsets: Any, target: Any, bad: Any) -> Any:
    """A float's shortest digits, as pyarrow lays them out, in DuckDB's layout.

    The second operand is 1 where the sign bit is set.  From 1e-4 on and below 1e16 there is a
    decimal point; else an exponent of at least two digits.
    """
    at = 0
    digits = np.empty(400, np.uint8)
    for row in range(valid.size):
        if target == 0:
            offsets[row] = at
        if valid[row] == 0:
            continue
        text, size = text_at(operands, 0, row)
        first = load_u8(text + (1 if load_u8(text) == 45 else 0))
        if number_at(operands, 1, row) != 0:
            at = _byte(target, at, 45)
        if first > 57:
            at = put(target, at, text + (size - 3), 3)
            continue
        count, exponent = _scan(text, size, digits)
        if exponent >= -4 and exponent < 16:
            at = _fixed(target, at, digits, count, exponent)
        else:
            at = _scientific(target, at, digits, count, exponent)
    if target == 0:
        offsets[valid.size] = at
    return at
