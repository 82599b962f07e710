"""Derived columns of strings: the kernels of `kernels.cpu.text_*`, and pyarrow.compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.columns import Column, address
from edged.expressions import arrow, unicode_case
from edged.expressions import types as t
from edged.expressions.operands import Flags, Operand, common, of_column, without
from edged.expressions.stages import Made, derived
from edged.expressions.tree import Call
from edged.expressions.unicode_joiners import JOINERS
from kernels.cpu import text_digest, text_make, text_number

Ints = npt.NDArray[np.int64]
NOTHING: Ints = np.zeros(0, np.int64)


def run(
    maker: Any, args: Sequence[Operand], rows: int, valid: Flags, extra: Ints = NOTHING
) -> Made:
    """The texts that a maker (`kernels.cpu.text_make`) makes of its operands, and its errors."""
    args = [a if a.column.offsets is not None else a.wide() for a in args]
    places = np.array([a.place() for a in args], np.int64)
    offsets, bad = np.empty(rows + 1, np.int64), np.zeros(rows, np.uint8)
    total = maker(places, valid, extra, offsets, 0, bad)
    values = np.empty(max(1, total), np.uint8)
    if total:
        maker(places, without(valid, bad), extra, offsets, address(values), bad)
    return Column(values, valid, offsets), bad


@derived("join")
def _join(call: Call, args: Sequence[Operand], rows: int) -> Made:
    return run(text_make.join, args, rows, common(args[:1], rows))


@derived("pipe")
def _pipe(call: Call, args: Sequence[Operand], rows: int) -> Made:
    return run(text_make.join, args, rows, common(args, rows))


@derived("lpad")
def _lpad(call: Call, args: Sequence[Operand], rows: int) -> Made:
    return run(
        text_make.pad, args, rows, common(args, rows), np.array([1, call.extra[0]], np.int64)
    )


@derived("rpad")
def _rpad(call: Call, args: Sequence[Operand], rows: int) -> Made:
    return run(
        text_make.pad, args, rows, common(args, rows), np.array([0, call.extra[0]], np.int64)
    )


@derived("replace")
def _replace(call: Call, args: Sequence[Operand], rows: int) -> Made:
    return run(text_make.replace, args, rows, common(args, rows))


@derived("reverse")
def _reverse(call: Call, args: Sequence[Operand], rows: int) -> Made:
    return run(text_make.reverse, args, rows, common(args, rows), JOINERS)


_MD5: Ints = np.array(
    [int(abs(math.sin(i + 1)) * 2**32) for i in range(64)]
    + [7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21],
    np.int64,
)


def _primes(count: int) -> list[int]:
    found: list[int] = []
    n = 2
    while len(found) < count:
        if all(n % p for p in found):
            found.append(n)
        n += 1
    return found


def _root_bits(n: int, root: int) -> int:
    """The first 32 bits of the fraction of a root of `n` (FIPS 180-4, 4.2.2 and 5.3.3)."""
    low, high = 0, n << 32
    while low < high:
        middle = (low + high + 1) // 2
        if middle**root <= n << (32 * root):
            low = middle
        else:
            high = middle - 1
    return low & 0xFFFFFFFF


_SHA256: Ints = np.array(
    [_root_bits(p, 3) for p in _primes(64)] + [_root_bits(p, 2) for p in _primes(8)], np.int64
)


@derived("md5")
def _md5(call: Call, args: Sequence[Operand], rows: int) -> Made:
    return run(text_digest.md5, args, rows, common(args, rows), _MD5)


@derived("sha256")
def _sha256(call: Call, args: Sequence[Operand], rows: int) -> Made:
    return run(text_digest.sha256, args, rows, common(args, rows), _SHA256)


@derived("upper")
def _upper(call: Call, args: Sequence[Operand], rows: int) -> Made:
    return run(text_make.recode, args, rows, common(args, rows), unicode_case.UPPER)


@derived("lower")
def _lower(call: Call, args: Sequence[Operand], rows: int) -> Made:
    return run(text_make.recode, args, rows, common(args, rows), unicode_case.LOWER)


def _cast(array: Any, kind: pa.DataType, valid: Flags) -> Any:
    import pyarrow.compute as pc

    return arrow.compute("cast", [array], kind, valid, pc.CastOptions(target_type=kind))


@derived("integer_text")
def _integer_text(call: Call, args: Sequence[Operand], rows: int) -> Made:
    valid = common(args, rows)
    return arrow.text_column(_cast(args[0].arrow(), pa.large_string(), valid), valid), None


@derived("float_text")
def _float_text(call: Call, args: Sequence[Operand], rows: int) -> Made:
    valid, number = common(args, rows), args[0].whole()
    digits = arrow.text_column(_cast(number.arrow(), pa.large_string(), valid), valid)
    sign = np.signbit(number.column.values).astype(np.int64)
    operands = [of_column(t.VARCHAR, digits, rows), of_column(t.BIGINT, Column(sign), rows)]
    return run(text_number.float_layout, operands, rows, valid)


@derived("text_float")
def _text_float(call: Call, args: Sequence[Operand], rows: int) -> Made:
    valid = common(args, rows)
    plain, bad = run(text_number.plain_float, args, rows, valid)
    good = without(valid, bad)
    column = Column(plain.values, good, plain.offsets)
    assert call.type.dtype is not None
    kind = call.type.dtype.arrow
    array = _cast(of_column(t.VARCHAR, column, rows).arrow(), kind, good)
    return Column(arrow.values(array, call.type.dtype.numpy), valid), bad
