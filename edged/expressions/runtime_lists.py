"""Lists in kernels: an address and a number of bytes.  All work is in float64 or int64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edged.expressions.intrinsics import (
    load_float32,
    load_float64,
    load_int8,
    load_int16,
    load_int32,
    load_uint8,
    load_uint16,
    load_uint32,
)
from edged.expressions.runtime import helper

LOADERS = {
    "int8": (load_int8, 1), "int16": (load_int16, 2), "int32": (load_int32, 4),
    "uint8": (load_uint8, 1), "uint16": (load_uint16, 2), "uint32": (load_uint32, 4),
    "float32": (load_float32, 4), "float64": (load_float64, 8),
}  # fmt: skip
"""By item type: its load, and its bytes."""


def _made(item: str) -> dict[str, Any]:
    """The functions of lists of one item type."""
    load, width = LOADERS[item]
    zero = 0.0 if item.startswith("float") else 0

    def total(a: Any, size: Any) -> Any:
        """The sum; of floats in four interleaved parts, in float64."""
        s0 = s1 = s2 = s3 = zero
        n = size // width
        whole = n - n % 4
        for i in range(0, whole, 4):
            s0 += load(a, i)
            s1 += load(a, i + 1)
            s2 += load(a, i + 2)
            s3 += load(a, i + 3)
        for i in range(whole, n):
            s0 += load(a, i)
        return (s0 + s1) + (s2 + s3)

    def rms(a: Any, size: Any) -> Any:
        """The square root of the mean of squares."""
        s0 = s1 = s2 = s3 = 0.0
        n = size // width
        whole = n - n % 4
        for i in range(0, whole, 4):
            b, c, d, e = (
                np.float64(load(a, i)),
                np.float64(load(a, i + 1)),
                np.float64(load(a, i + 2)),
                np.float64(load(a, i + 3)),
            )
            s0 += b * b
            s1 += c * c
            s2 += d * d
            s3 += e * e
        for i in range(whole, n):
            b = np.float64(load(a, i))
            s0 += b * b
        return math.sqrt(((s0 + s1) + (s2 + s3)) / n) if n else math.nan

    def extreme(a: Any, size: Any, greatest: Any) -> Any:
        """The least or the greatest element; NaN is the greatest."""
        n = size // width
        best = load(a, 0)
        for i in range(1, n):
            x = load(a, i)
            low, high = (best, x) if greatest else (x, best)
            if low < high or (high != high and low == low):
                best = x
        return best

    def element(a: Any, size: Any, i: Any) -> Any:
        """The element at a place from 1, or from -1 at the end, and whether there is none."""
        n = size // width
        at = i - 1 if i > 0 else n + i
        bad = (at < 0) | (at >= n) | (i == 0)
        return load(a, 0 if bad else at), bad

    return {
        f"list_sum_{item}": total, f"list_rms_{item}": rms, f"list_extreme_{item}": extreme,
        f"list_element_{item}": element,
    }  # fmt: skip


def _compiled(name: str, function: Any) -> Any:
    """A helper whose symbol has a name of its own: kernels that are compiled in several processes
    are loaded into one, where symbols of one name are taken for one function."""
    function.__name__ = function.__qualname__ = name
    return helper(function)


LIST_FUNCTIONS = {name: _compiled(name, f) for item in LOADERS for name, f in _made(item).items()}
"""What generated kernels call, by name; they import these names."""
globals().update(LIST_FUNCTIONS)
