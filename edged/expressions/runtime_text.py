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
def text_next(a: Any, a_size: Any, at: Any) -> Any:
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
            i, j = text_next(a, a_size, i), j + 1
        elif token >= 0 and token == load_uint8(a, i):
            i, j = i + 1, j + 1
        elif star >= 0:
            resume = text_next(a, a_size, resume)
            i, j = resume, star + 1
        else:
            return False
    while j < p_size and load_uint8(p, j) == _ANY:
        j += 1
    return j == p_size


@helper
def text_skip(a: Any, a_size: Any, at: Any, points: Any) -> Any:
    """Position `points` code points after `at`; the size where there are fewer."""
    while points > 0 and at < a_size:
        at = text_next(a, a_size, at)
        points -= 1
    return at


@helper
def text_range(a: Any, a_size: Any, start: Any, stop: Any) -> Any:
    """(address, size) of the code points `start:stop`, which may be outside of the text."""
    start, stop = max(start, 0), max(stop, 0)
    first = text_skip(a, a_size, 0, start)
    last = text_skip(a, a_size, first, stop - start)
    return a + first, last - first


@helper
def text_substring(a: Any, a_size: Any, offset: Any, length: Any) -> Any:
    """substring(a, offset, length): from the end where `offset` < 0, backwards where `length` is.

    Both are within +-2**32; the caller checks.
    """
    start = offset - 1
    if offset < 0:
        start = text_length(a, a_size) + offset
    if length < 0:
        return text_range(a, a_size, start + length, start)
    return text_range(a, a_size, start, start + length)


@helper
def text_left(a: Any, a_size: Any, count: Any) -> Any:
    """left(a, count): all but the last -count code points where `count` < 0."""
    return text_range(a, a_size, 0, count if count >= 0 else text_length(a, a_size) + count)


@helper
def text_right(a: Any, a_size: Any, count: Any) -> Any:
    """right(a, count): all but the first -count code points where `count` < 0."""
    size = text_length(a, a_size)
    if count >= 0:
        return text_range(a, a_size, size - count if count < size else 0, size)
    return text_range(a, a_size, min(-max(count, -size), size), size)


@helper
def text_find(a: Any, a_size: Any, b: Any, b_size: Any, at: Any) -> Any:
    """Position of the first b in a from `at` on, in bytes; -1: none."""
    while at + b_size <= a_size:
        if text_same(a + at, b_size, b, b_size):
            return at
        at += 1
    return -1


@helper
def text_position(a: Any, a_size: Any, b: Any, b_size: Any) -> Any:
    """Position of the first b in a, in code points from 1; 0: none."""
    at = text_find(a, a_size, b, b_size, 0)
    return 0 if at < 0 else text_length(a, at) + 1


@helper
def _among(a: Any, size: Any, b: Any, b_size: Any) -> Any:
    """Whether the code point of `size` bytes at `a` is one of those of b."""
    at = 0
    while at < b_size:
        stop = text_next(b, b_size, at)
        if text_same(a, size, b + at, stop - at):
            return True
        at = stop
    return False


@helper
def text_trim(a: Any, a_size: Any, b: Any, b_size: Any, sides: Any) -> Any:
    """a without the code points of b at its start (`sides` & 1) and its end (`sides` & 2)."""
    start = 0
    while sides & 1 and start < a_size:
        stop = text_next(a, a_size, start)
        if not _among(a + start, stop - start, b, b_size):
            break
        start = stop
    while sides & 2 and a_size > start:
        last = a_size - 1
        while last > start and (load_uint8(a, last) & 0xC0) == 0x80:
            last -= 1
        if not _among(a + last, a_size - last, b, b_size):
            break
        a_size = last
    return a + start, a_size - start


@helper
def _part_stop(a: Any, a_size: Any, b: Any, b_size: Any, at: Any) -> Any:
    """End of the part that starts at `at`; the parts of an empty separator are code points."""
    if b_size == 0:
        return text_next(a, a_size, at) if at < a_size else a_size
    stop = text_find(a, a_size, b, b_size, at)
    return a_size if stop < 0 else stop


@helper
def text_part(a: Any, a_size: Any, b: Any, b_size: Any, index: Any) -> Any:
    """Part `index` of a, split at every b: from 1, or from the end where negative; else empty."""
    if index < 0:
        count, at = 1, 0
        stop = _part_stop(a, a_size, b, b_size, 0)
        while stop < a_size:
            count, at = count + 1, stop + b_size
            stop = _part_stop(a, a_size, b, b_size, at)
        index += count + 1
    at = 0
    stop = _part_stop(a, a_size, b, b_size, at)
    if index < 1:
        return a, 0
    while index > 1 and stop < a_size:
        at = stop + b_size
        stop = _part_stop(a, a_size, b, b_size, at)
        index -= 1
    return (a + at, stop - at) if index == 1 else (a, 0)
