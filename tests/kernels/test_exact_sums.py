"""Exact sums: Python's fractions say the same, in any order, and nothing is left of nothing."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from random import Random

import numba
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernels.cpu import exact_sums as exact
from tests.naive import exact_sums as naive
from tests.whole import examples

PAIRS = st.lists(st.tuples(st.floats(), st.integers(-(2**31), 2**31 - 1)), max_size=12)


@numba.njit("void(int64[:, ::1], float64[::1], int64[::1], int64)")
def add_all(sums, values, weights, w):
    for i in range(values.size):
        exact.add_exact(sums, 0, w, values[i], weights[i])


@numba.njit("void(int64[:, ::1], float64[::1], int64[::1], int64)")
def add_squares(sums, values, weights, w):
    for i in range(values.size):
        exact.add_product(sums, 0, w, values[i], values[i], weights[i])


def summed(pairs, add=add_all):
    sums = np.zeros((1, 3 + exact.EXACT_WORDS), np.int64)
    values = np.array([v for v, _ in pairs], np.float64)
    add(sums, values, np.array([w for _, w in pairs], np.int64), 3)
    return sums


def rounded(sums):
    nearest, rest = np.empty(1), np.empty(1)
    exact.round_sums(sums, 3, nearest, rest)
    return nearest[0], rest[0]


def same(a, b):
    assert struct.pack("d", a + 0.0) == struct.pack("d", b + 0.0) or (a != a and b != b), (a, b)


@settings(max_examples=examples(400), deadline=None)
@given(PAIRS)
@example([(5e-324, 1), (-5e-324, 3)])
@example([(1.7976931348623157e308, 2**31 - 1)] * 3)
@example([(1.0, 1), (2.0**-53, 1)])
@example([(1.0, 1), (2.0**-53, 1), (5e-324, 1)])
@example([(1.0 + 2.0**-52, 1), (2.0**-53, 1)])
@example([(2.0**-1022, -1), (5e-324, 1)])
@example([(1e300, 1), (1.0, 1), (1e300, -1)])
@example([(math.inf, 1), (math.inf, -1), (2.0, 1)])
@example([(math.inf, 1), (-math.inf, -1)])
def test_a_sum_is_the_nearest_float_of_the_exact_one(pairs):
    sums = summed(pairs)
    for found, wanted in zip(rounded(sums), naive.rounded(pairs), strict=True):
        same(found, wanted)


@settings(max_examples=examples(200), deadline=None)
@given(PAIRS, st.integers(0, 2**32))
def test_what_is_taken_back_leaves_nothing_in_any_order(pairs, seed):
    pairs = [(v, max(w, 1 - 2**31)) for v, w in pairs]
    both = pairs + [(v, -w) for v, w in pairs]
    Random(seed).shuffle(both)
    assert not summed(both).any()
    assert not summed(both, add_squares).any()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.floats(-1e150, 1e150), st.integers(-9, 9)), max_size=8))
def test_squares_are_exact_where_a_float_and_its_error_hold_them(pairs):
    got = Fraction(0)
    nearest, rest = rounded(summed(pairs, add_squares))
    total = sum((naive.square(v) * w for v, w in pairs), Fraction(0))
    got = Fraction(float(nearest)) + Fraction(float(rest))
    assert abs(got - total) <= abs(total) * Fraction(1, 2**100) + Fraction(1, 2**1074)
