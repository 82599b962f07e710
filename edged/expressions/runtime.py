"""Functions that generated kernels call: DuckDB's arithmetic where it differs from the machine's.

Values arrive as their carrying type (`edged.expressions.types`).  A function whose name ends in
`_bad` returns whether the operation is an error.  Every function accepts any value, because values
under an error or a NULL are undefined.  Text is an address and a length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from edged.expressions.intrinsics import (
    load_uint8,
    round_float64,
    sadd,
    sdiv,
    srem,
    store_int64,
    trunc_float64,
    udiv,
    urem,
    wsub,
)
from kernels import compiler

INF = math.inf
NAN = math.nan
_MIN = -(2**63)


def inline(function: Callable[..., Any]) -> Any:
    """A function that is compiled into the kernels that call it."""
    return compiler.njit(nogil=True, error_model="numpy", forceinline=True)(function)


def helper(function: Callable[..., Any]) -> Any:
    """A function that kernels call."""
    return compiler.njit(nogil=True, error_model="numpy")(function)


@inline
def abs_int64(a: Any) -> Any:
    """|a|; the least integer stays itself."""
    return wsub(0, a) if a < 0 else a


@inline
def div_int64(a: Any, b: Any) -> Any:
    """`a // b` towards zero; 0 where that is an error."""
    bad = (b == 0) | ((a == _MIN) & (b == -1))
    return 0 if bad else sdiv(a, 1 if bad else b)


@inline
def mod_int64(a: Any, b: Any) -> Any:
    """`a % b` with the sign of `a`; 0 where that is an error."""
    bad = (b == 0) | ((a == _MIN) & (b == -1))
    return 0 if bad else srem(a, 1 if bad else b)


@inline
def div_uint64(a: Any, b: Any) -> Any:
    """`a // b`; 0 where b is 0."""
    zero = b == compiler.uint64(0)
    return udiv(a, compiler.uint64(1) if zero else b)


@inline
def mod_uint64(a: Any, b: Any) -> Any:
    """`a % b`; 0 where b is 0."""
    zero = b == compiler.uint64(0)
    return urem(a, compiler.uint64(1) if zero else b)


@inline
def shl_bad(a: Any, by: Any, bits: Any) -> Any:
    """Whether `a << by` is an error; `bits` of the type, one more where it is unsigned."""
    room = bits - by - 1
    if (a < 0) | (by < 0):
        return True
    if room < 0:
        return a != 0
    return (by > 0) & (a >= (1 << min(room, 62)))


@inline
def shl_int64(a: Any, by: Any) -> Any:
    """`a << by`; 0 where that is out of range."""
    return 0 if (by < 0) | (by > 63) else a << by


@inline
def shr_int64(a: Any, by: Any, bits: Any) -> Any:
    """`a >> by`; 0 where `by` is out of range, as in DuckDB."""
    return 0 if (by < 0) | (by >= bits) else a >> by


@inline
def shl_bad_uint64(a: Any, by: Any) -> Any:
    """Whether `a << by` is an error for uint64."""
    if by > compiler.uint64(64):
        return a != compiler.uint64(0)
    room = compiler.uint64(64) - by
    return (by > compiler.uint64(0)) & (a >= (compiler.uint64(1) << room))


@inline
def shl_uint64(a: Any, by: Any) -> Any:
    """`a << by`; 0 where that is out of range."""
    return compiler.uint64(0) if by > compiler.uint64(63) else a << by


@inline
def shr_uint64(a: Any, by: Any) -> Any:
    """`a >> by`; 0 where `by` is out of range."""
    return compiler.uint64(0) if by > compiler.uint64(63) else a >> by


@inline
def less_signed(a: Any, b: Any) -> Any:
    """int64 `a` < uint64 `b`, exactly."""
    return (a < 0) | (compiler.uint64(a) < b)


@inline
def same_signed(a: Any, b: Any) -> Any:
    """int64 `a` = uint64 `b`, exactly."""
    return (a >= 0) & (compiler.uint64(a) == b)


@inline
def to_int64(x: Any) -> Any:
    """A float that is known to be a whole number in range; 0 for anything else."""
    inside = (x >= -9223372036854775808.0) & (x < 9223372036854775808.0)
    return compiler.int64(x if inside else 0.0)


@inline
def to_uint64(x: Any) -> Any:
    """As `to_int64`, for uint64."""
    inside = (x >= 0.0) & (x < 18446744073709551616.0)
    safe = x if inside else 0.0
    low = safe < 9223372036854775808.0
    half = compiler.uint64(compiler.int64(safe if low else safe - 9223372036854775808.0))
    return half if low else half + compiler.uint64(9223372036854775808)


@inline
def sign_float(x: Any) -> Any:
    """-1, 0 or 1; 0 for NaN."""
    return compiler.int64(x > 0) - compiler.int64(x < 0)


@helper
def round_digits_float(x: Any, digits: Any) -> Any:
    """round(x, digits) of a double."""
    scale = math.pow(10.0, abs(float(digits)))
    if math.isinf(x) or math.isnan(x):
        return x
    if digits < 0:
        y = round_float64(x / scale) * scale
        return 0.0 if math.isinf(y) or math.isnan(y) else y
    y = round_float64(x * scale) / scale
    return x if math.isinf(y) or math.isnan(y) else y


@helper
def trunc_digits_float(x: Any, digits: Any) -> Any:
    """trunc(x, digits) of a double."""
    scale = math.pow(10.0, abs(float(digits)))
    if math.isinf(x) or math.isnan(x):
        return x
    if digits < 0:
        y = trunc_float64(x / scale) * scale
        return 0.0 if math.isinf(y) or math.isnan(y) else y
    y = trunc_float64(x * scale) / scale
    return x if math.isinf(y) or math.isnan(y) else y


@helper
def power_of_ten(digits: Any) -> Any:
    """10 ** -digits as int64 for -18 <= digits < 0, else 0."""
    if digits < -18:
        return 0
    scale = 1
    for _ in range(-digits):
        scale *= 10
    return scale


@helper
def round_digits_int(x: Any, digits: Any) -> Any:
    """`(value, overflowed)` of an integer rounded to `digits` < 0, half away from zero."""
    if digits >= 0:
        return x, False
    scale = power_of_ten(digits)
    if scale == 0:
        return 0, False
    rest = srem(x, scale)
    down = x - rest
    if abs(rest) * 2 < scale:
        return down, False
    return sadd(down, scale if x > 0 else -scale)


@helper
def trunc_digits_int(x: Any, digits: Any) -> Any:
    """An integer cut to `digits` < 0."""
    if digits >= 0:
        return x
    scale = power_of_ten(digits)
    return 0 if scale == 0 else x - srem(x, scale)


@helper
def trunc_digits_uint(x: Any, digits: Any) -> Any:
    """A uint64 cut to `digits` < 0."""
    if digits >= 0:
        return x
    scale = compiler.uint64(power_of_ten(digits))
    return compiler.uint64(0) if digits < -18 else x - urem(x, scale)


@helper
def log_base(base: Any, x: Any) -> Any:
    """log(base, x)."""
    return math.log10(x) / math.log10(base)


@helper
def compact(flags: Any, start: Any, stop: Any, rows: Any, at: Any, info: Any) -> Any:
    """Append the rows of `start:stop` whose flag is 1 to `rows`; count errors (flags > 1).

    `flags` and `rows` are addresses; returns the new length.  `info` is (errors, first flag).
    """
    for i in range(start, stop):
        flag = load_uint8(flags, i)
        store_int64(rows, at, i)
        at += flag == 1
        if flag > 1:
            if info[0] == 0:
                info[1] = flag
            info[0] += 1
    return at
