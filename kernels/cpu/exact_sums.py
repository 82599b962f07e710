"""Exact sums of weighted floats: fixed-point numbers that hold any float64 times any int32.

A sum is `ExactSum`: how many values weigh in, the weights of NaN and of both infinities, and the
sum of the finite values as a two's complement number of LIMBS 64-bit limbs, lowest first, whose
unit is 2^-1074.  Adding is exact and so does not depend on the order, and a value that is taken
back leaves no trace (Kulisch; 2^46 values of weight 2^31 fit).  `round_sum` rounds to the nearest
float64, ties to even.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kernels.compiler import intrinsic, ir, types
from kernels.cpu.records import I64, field, words
from kernels.registry import device, kernel

LIMBS = 34


class ExactSum(NamedTuple):
    """The sum of values times weights."""

    n: I64 = field("weight of all values")
    nan: I64 = field("weight of NaN")
    up: I64 = field("weight of infinity")
    down: I64 = field("weight of minus infinity")
    limbs: I64 = field("the finite values", length=LIMBS)


EXACT = words(ExactSum)
EXACT_WORDS = EXACT.limbs + LIMBS
SPLIT = 134217729.0
"""2^27 + 1: splits a float64 into two halves of 26 bits (Veltkamp)."""
SQUARE_MAX, SQUARE_MIN = 1e150, 1e-140
"""A product of two values between them is a float64 and an error that is one, too."""


@intrinsic
def float_bits(typingctx: Any, value: Any) -> Any:
    """The bits of a float64 as int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@device
def add_shifted(
    sums: Any, g: int, at: int, low: Any, high: Any, shift: int, negative: bool
) -> None:
    """Add (low + high * 2^64) * 2^shift to the limbs at `sums[g, at:]`, or subtract it."""
    s, limb = np.uint64(shift & 63), at + (shift >> 6)
    end, one, none = at + LIMBS, np.uint64(1), np.uint64(0)
    second, third = high, none
    if s != none:
        third = high >> (np.uint64(64) - s)
        second = (high << s) | (low >> (np.uint64(64) - s))
        low = low << s
    carry, k = none, 0
    while limb < end and (k < 3 or carry != none):
        add = none
        if k == 0:
            add = low
        elif k == 1:
            add = second
        elif k == 2:
            add = third
        before = np.uint64(sums[g, limb])
        if negative:
            after = before - add - carry
            carry = one if before < add or (carry != none and before == add) else none
        else:
            after = before + add + carry
            carry = one if after < before or (carry != none and after == before) else none
        sums[g, limb] = np.int64(after)
        limb += 1
        k += 1


@device
def add_exact(sums: Any, g: int, w: int, value: float, weight: Any) -> None:
    """Add `value` `weight` times to the ExactSum at `sums[g, w:]`; its `n` stays."""
    bits = float_bits(value)
    exponent = (bits >> 52) & 0x7FF
    fraction = np.uint64(bits & 0xFFFFFFFFFFFFF)
    if exponent == 0x7FF:
        if fraction != np.uint64(0):
            sums[g, w + EXACT.nan] += weight
        elif bits < 0:
            sums[g, w + EXACT.down] += weight
        else:
            sums[g, w + EXACT.up] += weight
        return
    shift = exponent - 1
    if exponent == 0:
        shift = np.int64(0)
    else:
        fraction |= np.uint64(1 << 52)
    if fraction == np.uint64(0) or weight == 0:
        return
    times = np.uint64(abs(weight))
    first = (fraction & np.uint64(0xFFFFFFFF)) * times
    second = (fraction >> np.uint64(32)) * times
    low = first + (second << np.uint64(32))
    high = second >> np.uint64(32)
    if low < first:
        high += np.uint64(1)
    add_shifted(sums, g, w + EXACT.limbs, low, high, shift, (bits < 0) != (weight < 0))


@device
def add_product(sums: Any, g: int, w: int, x: float, y: float, weight: Any) -> None:
    """Add `x` times `y`, as a float64 and its error (Dekker), `weight` times."""
    product = x * y
    add_exact(sums, g, w, product, weight)
    if SQUARE_MIN < abs(x) < SQUARE_MAX and SQUARE_MIN < abs(y) < SQUARE_MAX:
        c, d = SPLIT * x, SPLIT * y
        high_x, high_y = c - (c - x), d - (d - y)
        low_x, low_y = x - high_x, y - high_y
        error = ((high_x * high_y - product) + high_x * low_y + low_x * high_y) + low_x * low_y
        add_exact(sums, g, w, error, weight)


@device
def top_bit(limb: Any) -> int:
    """The place of the highest bit that is set; `limb` is not 0."""
    place, x = 0, np.uint64(limb)
    for step in (32, 16, 8, 4, 2, 1):
        if x >> np.uint64(step) != np.uint64(0):
            x >>= np.uint64(step)
            place += step
    return place


@device
def negate(sums: Any, at: int) -> None:
    """Change the sign of the limbs at `sums[0, at:]`."""
    carry = True
    for i in range(at, at + LIMBS):
        x = ~np.uint64(sums[0, i])
        if carry:
            x += np.uint64(1)
            carry = x == np.uint64(0)
        sums[0, i] = np.int64(x)


@device
def round_limbs(sums: Any, at: int) -> Any:
    """The limbs at `sums[0, at:]`, of a number that is not negative, as float64: to nearest, ties
    to even."""
    none = np.uint64(0)
    top = LIMBS - 1
    while top >= 0 and sums[0, at + top] == 0:
        top -= 1
    if top < 0:
        return 0.0
    whole = np.uint64(sums[0, at + top])
    bit = top_bit(whole)
    place = 64 * top + bit
    if place <= 52:
        return math.ldexp(np.float64(whole), -1074)
    up, below = np.uint64(63 - bit), none
    if top > 0:
        below = np.uint64(sums[0, at + top - 1])
    if up != none:
        whole = (whole << up) | (below >> (np.uint64(64) - up))
    sticky = below << up != none
    for i in range(top - 1):
        sticky = sticky or sums[0, at + i] != 0
    kept, rest, half = whole >> np.uint64(11), whole & np.uint64(0x7FF), np.uint64(0x400)
    if rest > half or (rest == half and (sticky or kept & np.uint64(1) != none)):
        kept += np.uint64(1)
    return math.ldexp(np.float64(kept), place - 52 - 1074)


@device
def signed_round(sums: Any) -> Any:
    """The finite values of the ExactSum `sums[0]` as float64; changes them to their amount."""
    if sums[0, EXACT.limbs + LIMBS - 1] >= 0:
        return round_limbs(sums, EXACT.limbs)
    negate(sums, EXACT.limbs)
    return -round_limbs(sums, EXACT.limbs)


@kernel(
    "void(int64[:, ::1], int64, float64[::1], float64[::1])",
    reference="tests.naive.exact_sums.rounded",
)
def round_sums(groups: Any, word: int, nearest: Any, rest: Any) -> None:
    """The sums at `groups[:, word:]` as float64, and what they are beyond that, as float64.

    With weights of NaN, or of both infinities, a sum is NaN; with one infinity it is that one.
    """
    sums = np.empty((1, EXACT_WORDS), np.int64)
    for g in range(groups.shape[0]):
        nan, up, down = (
            groups[g, word + EXACT.nan],
            groups[g, word + EXACT.up],
            groups[g, word + EXACT.down],
        )
        rest[g] = 0.0
        if nan != 0 or (up > 0 and down > 0) or (up < 0 and down < 0):
            nearest[g] = np.nan
        elif up != 0 or down != 0:
            nearest[g] = np.inf if up > 0 or down < 0 else -np.inf
        else:
            sums[0] = groups[g, word : word + EXACT_WORDS]
            nearest[g] = signed_round(sums)
            if not math.isinf(nearest[g]):
                sums[0] = groups[g, word : word + EXACT_WORDS]
                add_exact(sums, 0, 0, nearest[g], -1)
                rest[g] = signed_round(sums)
