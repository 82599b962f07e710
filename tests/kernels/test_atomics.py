"""Atomic instructions under threads, and comparisons of 32 values, against plain arithmetic."""

from __future__ import annotations

import platform
import re
import threading

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import binding as llvm

from edged.data.columns import address
from kernels.cpu import atomics, compare

THREADS, TIMES = 4, 4_000_000


@numba.njit(nogil=True)
def add_often(at, value, times):
    for _ in range(times):
        atomics.add_i64(at, value)


@numba.njit(nogil=True)
def set_bits(at, bits):
    for i in range(bits.size):
        atomics.or_u64(at, bits[i])


@numba.njit(nogil=True)
def swap_often(at, times):
    lost = 0
    for _ in range(times):
        seen = atomics.acquire_i64(at)
        while True:
            now = atomics.swap_i64(at, seen, seen + 1)
            if now == seen:
                break
            lost, seen = lost + 1, now
    return lost


@numba.njit(nogil=True)
def produce(cell, flag, times):
    for i in range(1, times + 1):
        while atomics.acquire_i64(flag) != 0:
            pass
        cell[0] = i
        atomics.release_i64(flag, i)


@numba.njit(nogil=True)
def consume(cell, flag, times):
    wrong = 0
    for _ in range(times):
        seen = atomics.acquire_i64(flag)
        while seen == 0:
            seen = atomics.acquire_i64(flag)
        wrong += cell[0] != seen
        atomics.release_i64(flag, 0)
    return wrong


@numba.njit("int64(int64, int64)")
def announce(counter, sleeps):
    atomics.add_i64(counter, 1)
    return atomics.ordered_i64(sleeps)


@numba.njit("int64(int64)")
def look(counter):
    return atomics.acquire_i64(counter)


@numba.njit
def word(at, value):
    atomics.release_u32(at, value)
    return atomics.acquire_u32(at)


@numba.njit
def equal(values, x):
    return compare.equal_u32(np.int64(values.ctypes.data), x)


@numba.njit
def below(values, x):
    return compare.below_i64(np.int64(values.ctypes.data), x)


@numba.njit
def bits_of(mask):
    return compare.ones(mask), compare.lowest(mask)


def together(*calls):
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_no_addition_is_lost_between_threads():
    cell = np.zeros(1, np.int64)
    together(*[lambda k=k: add_often(address(cell), k, TIMES) for k in range(THREADS)])
    assert cell[0] == TIMES * sum(range(THREADS))


def test_no_bit_is_lost_between_threads():
    cell = np.zeros(1, np.uint64)
    shares = [
        np.left_shift(np.uint64(1), np.arange(k, 64, THREADS).astype(np.uint64))
        for k in range(THREADS)
    ]
    for _ in range(200):
        cell[0] = 0
        together(*[lambda s=s: set_bits(address(cell), s) for s in shares])
        assert cell[0] == np.uint64(2**64 - 1)


def test_a_compare_and_swap_is_won_by_one():
    cell = np.zeros(1, np.int64)
    together(*[lambda: swap_often(address(cell), TIMES) for _ in range(THREADS)])
    assert cell[0] == TIMES * THREADS


def test_who_acquires_what_was_released_sees_all_that_went_before():
    cell, flag, wrong = np.zeros(1, np.int64), np.zeros(1, np.int64), []
    together(
        lambda: produce(cell, address(flag), 200),
        lambda: wrong.append(consume(cell, address(flag), 200)),
    )
    assert wrong == [0]


def test_words_of_32_bits_go_there_and_back():
    cell = np.zeros(1, np.uint32)
    assert word(address(cell), np.uint32(2**32 - 1)) == 2**32 - 1 == cell[0]


WORDS = st.lists(st.sampled_from([0, 1, 2**31, 2**32 - 1]), min_size=32, max_size=32)
LONGS = st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1])


@given(WORDS, st.sampled_from([0, 1, 2**31, 2**32 - 1]))
def test_equal_words_are_found(values, x):
    mask = equal(np.array(values, np.uint32), np.uint32(x))
    assert mask == sum(1 << i for i, v in enumerate(values) if v == x)


@given(st.lists(LONGS, min_size=32, max_size=32), LONGS)
def test_lesser_longs_are_found(values, x):
    mask = below(np.array(values, np.int64), x)
    assert mask == sum(1 << i for i, v in enumerate(values) if v < x)


@given(st.integers(0, 2**64 - 1))
def test_bits_are_counted_and_the_lowest_is_found(mask):
    lowest = (mask & -mask).bit_length() - 1 if mask else 64
    assert bits_of(np.uint64(mask)) == (mask.bit_count(), lowest)


def on_arm(function, features):
    """The loads and stores that a compiled function has on aarch64 with these features."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = "aarch64-unknown-linux-gnu"
    target = llvm.Target.from_triple(triple).create_target_machine("generic", features, opt=3)
    text = function.inspect_llvm(function.signatures[0])
    text = re.sub(r"(target triple =).*", rf'\1 "{triple}"', text)
    text = re.sub(r"(target datalayout =).*", rf'\1 "{target.target_data}"', text)
    assembly = target.emit_assembly(llvm.parse_assembly(text))
    return re.findall(r"^\s+((?:ldap?a?x?r|stlx?r|ldadd)[al]*)\b", assembly, re.MULTILINE)


@pytest.mark.skipif(
    platform.machine() == "aarch64",
    reason="there what LLVM shows has the instructions of the core at hand already",
)
@pytest.mark.parametrize(
    ("features", "change"),
    [("", ["ldaxr", "stlxr"]), ("+lse,+rcpc", ["ldaddal"])],
    ids=["Armv8.0: Nano, TX2", "LSE and RCpc: Orin, Thor"],
)
def test_who_changes_a_counter_and_then_looks_sees_who_did_the_other_way_round(features, change):
    """Others see what `stlxr` wrote before an `ldar` behind it reads (Arm ARM B2.3, "barrier-
    ordered-before"); before an `ldapr` they need not.  By this a thread that sleeps is woken."""
    assert on_arm(announce, features) == [*change, "ldar"]
    assert on_arm(look, features) == ["ldapr" if features else "ldar"]
