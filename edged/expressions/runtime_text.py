"""Text in kernels: comparison by bytes, LIKE, length.  A text is an address and a length."""

from __future__ import annotations

from typing import Any

from edged.expressions.intrinsics import load_uint8
from edged.expressions.runtime import helper
from edged.expressions.tree import ANY, ONE

_ANY, _ONE = ANY, ONE


@helper
def text_same(a: Any, a_size: Any, b: Any, b_size: Any) -> Any:
    """Whether two texts are equal."""
    if a_size != b_size:
        return False
    i = 0
    while i < a_size and load_uint8(a, i) == load_uint8(b, i):
        i += 1
    return i == a_size


@helper
def text_order(a: Any, a_size: Any, b: Any, b_size: Any) -> Any:
    """Negative, 0 or positive as a < b, a = b, a > b, by bytes."""
    for i in range(min(a_size, b_size)):
        difference = load_uint8(a, i) - load_uint8(b, i)
        if difference != 0:
            return difference
    return a_size - b_size


@helper
def text_starts(a: Any, a_size: Any, b: Any, b_size: Any) -> Any:
    """Whether a starts with b."""
    return a_size >= b_size and text_same(a, b_size, b, b_size)


@helper
def text_ends(a: Any, a_size: Any, b: Any, b_size: Any) -> Any:
    """Whether a ends with b."""
    return a_size >= b_size and text_same(a + a_size - b_size, b_size, b, b_size)


@helper
def text_contains(a: Any, a_size: Any, b: Any, b_size: Any) -> Any:
    """Whether a contains b."""
    last = a_size - b_size
    at = 0
    while at <= last and not text_same(a + at, b_size, b, b_size):
        at += 1
    return at <= last


@helper
def text_length(a: Any, a_size: Any) -> Any:
    """Code points: the bytes that do not continue one."""
    count = 0
    for i in range(a_size):
        count += (load_uint8(a, i) & 0xC0) != 0x80
    return count


@helper
def _next(a: Any, a_size: Any, at: Any) -> Any:
    """Position of the code point after the one at `at`."""
    at += 1
    while at < a_size and (load_uint8(a, at) & 0xC0) == 0x80:
        at += 1
    return at


@helper
def text_like(a: Any, a_size: Any, p: Any, p_size: Any) -> Any:
    """Whether a matches the pattern p: greedy, backtracking to the last `%` only."""
    i = j = 0
    star, resume = -1, 0
    while i < a_size:
        token = load_uint8(p, j) if j < p_size else -1
        if token == _ANY:
            star, resume = j, i
            j += 1
        elif token == _ONE:
            i, j = _next(a, a_size, i), j + 1
        elif token >= 0 and token == load_uint8(a, i):
            i, j = i + 1, j + 1
        elif star >= 0:
            resume = _next(a, a_size, resume)
            i, j = resume, star + 1
        else:
            return False
    while j < p_size and load_uint8(p, j) == _ANY:
        j += 1
    return j == p_size
