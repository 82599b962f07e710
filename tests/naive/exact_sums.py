"""Sums of weighted floats with Python's integers and fractions."""

from __future__ import annotations

import math
from fractions import Fraction


def rounded(pairs):
    """The sum of (value, weight) as the nearest float64, and what it is beyond that."""
    nan, up, down = (sum(w for v, w in pairs if kind(v)) for kind in (math.isnan, is_up, is_down))
    if nan or (up > 0 and down > 0) or (up < 0 and down < 0):
        return math.nan, 0.0
    if up or down:
        return (math.inf if up > 0 or down < 0 else -math.inf), 0.0
    total = sum((Fraction(v) * w for v, w in pairs if math.isfinite(v)), Fraction(0))
    nearest = as_float(total)
    return nearest, 0.0 if math.isinf(nearest) else as_float(total - Fraction(nearest))


def is_up(value):
    return value == math.inf


def is_down(value):
    return value == -math.inf


def as_float(total):
    """A fraction as float64; infinite where it is too large."""
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def square(value):
    """The square that a sum of squares takes: exact between two bounds, else rounded."""
    whole = value * value
    exact = Fraction(value) ** 2 if 1e-140 < abs(value) < 1e150 else None
    return Fraction(whole) if exact is None and math.isfinite(whole) else exact or whole
