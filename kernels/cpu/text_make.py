"""Kernels that make a column of texts, a row at a time, of operand columns.

Every maker has the signature `MAKER`:

    maker(operands, valid, extra, offsets, target, bad) -> bytes in all

    operands  int64[n, 4]  values, offsets (0: int64 values), valid (0: no nulls), and the step from
                           row to row: 1, or 0 for a constant
    valid     uint8[rows]  0 where the result is null; its text is empty
    extra     int64[m]     what the maker's docstring says
    offsets   int64[rows+1]
    target    address      0: only `offsets` and `bad` are written, else only the bytes
    bad       uint8[rows]  1 where the operation is an error; its text is empty

A caller runs a maker twice: for the sizes, then for the bytes.  Texts are UTF-8.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu.mem import copy_bytes, load_i64, load_u8, store_u8
from kernels.registry import device, kernel

MAKER = "int64(int64[:, ::1], uint8[::1], int64[::1], int64[::1], int64, uint8[::1])"


@device
def text_at(operands: Any, k: Any, row: Any) -> Any:
    """(address, size) of the text of operand `k`."""
    at = operands[k, 1] + 8 * row * operands[k, 3]
    start = load_i64(at)
    return operands[k, 0] + start, load_i64(at + 8) - start


@device
def number_at(operands: Any, k: Any, row: Any) -> Any:
    """The integer of operand `k`."""
    return load_i64(operands[k, 0] + 8 * row * operands[k, 3])


@device
def is_valid(operands: Any, k: Any, row: Any) -> Any:
    """Whether operand `k` is not null."""
    return operands[k, 2] == 0 or load_u8(operands[k, 2] + row * operands[k, 3]) != 0


@device
def after(text: Any, size: Any, at: Any) -> Any:
    """Position of the code point after the one at `at`."""
    at += 1
    while at < size and (load_u8(text + at) & 0xC0) == 0x80:
        at += 1
    return at


@device
def same_bytes(a: Any, b: Any, size: Any) -> Any:
    """Whether two texts of one size are equal."""
    i = 0
    while i < size and load_u8(a + i) == load_u8(b + i):
        i += 1
    return i == size


@device
def put(target: Any, at: Any, text: Any, size: Any) -> Any:
    """Copy a text to `target + at`, unless `target` is 0; returns the position after it."""
    if target != 0 and size > 0:
        copy_bytes(target + at, text, size)
    return at + size


@kernel(MAKER, reference="tests.naive.text_make.join")
def join(operands: Any, valid: Any, extra: Any, offsets: Any, target: Any, bad: Any) -> Any:
    """The operands after the first that are not null, with the first one between them."""
    at = 0
    for row in range(valid.size):
        if target == 0:
            offsets[row] = at
        if valid[row] == 0:
            continue
        first = True
        for k in range(1, operands.shape[0]):
            if is_valid(operands, k, row):
                if not first:
                    text, size = text_at(operands, 0, row)
                    at = put(target, at, text, size)
                text, size = text_at(operands, k, row)
                at = put(target, at, text, size)
                first = False
    if target == 0:
        offsets[valid.size] = at
    return at


@kernel(MAKER, reference="tests.naive.text_make.pad")
def pad(operands: Any, valid: Any, extra: Any, offsets: Any, target: Any, bad: Any) -> Any:
    """lpad (`extra[0]` = 1) and rpad of (text, code points, padding).

    Errors: nothing to pad with; more than `extra[1]` code points.
    """
    at = 0
    for row in range(valid.size):
        if target == 0:
            offsets[row] = at
        if valid[row] == 0:
            continue
        text, size = text_at(operands, 0, row)
        wanted = number_at(operands, 1, row)
        fill, fill_size = text_at(operands, 2, row)
        kept = 0
        points = 0
        while kept < size and points < wanted:
            kept = after(text, size, kept)
            points += 1
        missing = wanted - points
        if (missing > 0 and fill_size == 0) or wanted > extra[1]:
            bad[row] = 1
            continue
        if extra[0] == 0:
            at = put(target, at, text, kept)
        used = 0
        while missing > 0:
            stop = after(fill, fill_size, used)
            at = put(target, at, fill + used, stop - used)
            used = 0 if stop == fill_size else stop
            missing -= 1
        if extra[0] != 0:
            at = put(target, at, text, kept)
    if target == 0:
        offsets[valid.size] = at
    return at


@kernel(MAKER, reference="tests.naive.text_make.replace")
def replace(operands: Any, valid: Any, extra: Any, offsets: Any, target: Any, bad: Any) -> Any:
    """(text, old, new): every `old` replaced from the left; an empty `old` is in no text."""
    at = 0
    for row in range(valid.size):
        if target == 0:
            offsets[row] = at
        if valid[row] == 0:
            continue
        text, size = text_at(operands, 0, row)
        old, old_size = text_at(operands, 1, row)
        new, new_size = text_at(operands, 2, row)
        kept = i = 0
        while old_size > 0 and i + old_size <= size:
            if same_bytes(text + i, old, old_size):
                at = put(target, at, text + kept, i - kept)
                at = put(target, at, new, new_size)
                i += old_size
                kept = i
            else:
                i += 1
        at = put(target, at, text + kept, size - kept)
    if target == 0:
        offsets[valid.size] = at
    return at


@device
def code_point(text: Any, size: Any) -> Any:
    """The code point of `size` bytes at `text`."""
    value = load_u8(text) & (0x7F if size == 1 else 0xFF >> (size + 1))
    for i in range(1, size):
        value = value << 6 | load_u8(text + i) & 0x3F
    return value


@device
def put_code_point(target: Any, at: Any, point: Any) -> Any:
    """Encode a code point at `target + at`, unless `target` is 0; returns the position after."""
    size = 1 if point < 0x80 else 2 if point < 0x800 else 3 if point < 0x10000 else 4
    if target != 0:
        rest = point
        for i in range(size - 1, 0, -1):
            store_u8(target + at + i, 0x80 | rest & 0x3F)
            rest >>= 6
        store_u8(target + at, rest if size == 1 else rest | (0xF00 >> size) & 0xFF)
    return at + size


@device
def _mapped(point: Any, table: Any) -> Any:
    """A code point after the entries of `recode`'s table."""
    low, high = 0, table.size // 4
    while low < high:
        middle = (low + high) // 2
        if table[4 * middle + 1] < point:
            low = middle + 1
        else:
            high = middle
    at = 4 * low
    inside = at < table.size and point >= table[at]
    if inside and (point - table[at]) % table[at + 2] == 0:
        return point + table[at + 3]
    return point


@kernel(MAKER, reference="tests.naive.text_make.recode")
def recode(operands: Any, valid: Any, extra: Any, offsets: Any, target: Any, bad: Any) -> Any:
    """The text with code points mapped; `extra` is entries of (first, last, step, offset)."""
    at = 0
    for row in range(valid.size):
        if target == 0:
            offsets[row] = at
        if valid[row] == 0:
            continue
        text, size = text_at(operands, 0, row)
        i = 0
        while i < size:
            stop = after(text, size, i)
            point = code_point(text + i, stop - i)
            at = put_code_point(target, at, _mapped(point, extra))
            i = stop
    if target == 0:
        offsets[valid.size] = at
    return at


@device
def _listed(point: Any, ranges: Any) -> Any:
    """Whether a code point is in one of the ranges (first, last)."""
    low, high = 0, ranges.size // 2
    while low < high:
        middle = (low + high) // 2
        if ranges[2 * middle + 1] < point:
            low = middle + 1
        else:
            high = middle
    return 2 * low < ranges.size and point >= ranges[2 * low]


@device
def _joins(text: Any, size: Any, ranges: Any) -> Any:
    """Whether a text that is not ASCII holds a code point of `ranges`."""
    ascii, joins, i = True, False, 0
    while i < size:
        stop = after(text, size, i)
        ascii = ascii and stop == i + 1
        joins = joins or _listed(code_point(text + i, stop - i), ranges)
        i = stop
    return joins and not ascii


@kernel(MAKER, reference="tests.naive.text_make.reverse")
def reverse(operands: Any, valid: Any, extra: Any, offsets: Any, target: Any, bad: Any) -> Any:
    """The code points from the last to the first.

    Error: the text is not ASCII, and a code point of the ranges `extra` can form a cluster there.
    """
    at = 0
    for row in range(valid.size):
        if target == 0:
            offsets[row] = at
        if valid[row] == 0:
            continue
        text, size = text_at(operands, 0, row)
        if target == 0 and _joins(text, size, extra):
            bad[row] = 1
            continue
        stop = size
        while stop > 0:
            first = stop - 1
            while first > 0 and (load_u8(text + first) & 0xC0) == 0x80:
                first -= 1
            at = put(target, at, text + first, stop - first)
            stop = first
    if target == 0:
        offsets[valid.size] = at
    return at
