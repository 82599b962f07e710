"""Functions that kernels of user code call: checked conversions, bounds, nulls, texts.

Each raises what Python would: the row is in error then.  `whole`, `real` and `truth` refuse other
types when the kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from edged.expressions.intrinsics import instruction
from kernels.compiler import TypingError, njit, overload, types
from kernels.cpu import mem

_INT64_END = 2.0**63


def _compiled(function: Callable[..., Any]) -> Any:
    """numba's `njit`, typed."""
    return njit(error_model="python")(function)


def whole(x: Any) -> Any:
    """An integer, a time or a boolean as int64."""
    raise NotImplementedError("compiled code only")


def real(x: Any) -> Any:
    """A number as float64."""
    raise NotImplementedError("compiled code only")


def truth(x: Any) -> Any:
    """A boolean."""
    raise NotImplementedError("compiled code only")


def _overload(of: Callable[..., Any]) -> Callable[..., Any]:
    """numba's `overload`, typed."""
    found: Callable[..., Any] = overload(of, strict=False)
    return found


@_overload(whole)
def _whole(x: Any) -> Any:
    if isinstance(x, (types.Integer, types.Boolean)):
        return lambda x: np.int64(x)
    raise TypingError(f"EXPECTED an integer, not {_name(x)}: write int(...)")


@_overload(real)
def _real(x: Any) -> Any:
    if isinstance(x, (types.Integer, types.Boolean, types.Float)):
        return lambda x: np.float64(x)
    raise TypingError(f"EXPECTED a number, not {_name(x)}")


@_overload(truth)
def _truth(x: Any) -> Any:
    if isinstance(x, types.Boolean):
        return lambda x: x
    raise TypingError(f"EXPECTED True or False, not {_name(x)}: write a comparison")


def _name(x: Any) -> str:
    return "None or a value" if isinstance(x, types.Optional) else str(x)


def integer(x: Any) -> Any:
    """Python's `int`."""
    raise NotImplementedError("compiled code only")


@_overload(integer)
def _integer(x: Any) -> Any:
    if isinstance(x, (types.Integer, types.Boolean)):
        return lambda x: np.int64(x)
    if not isinstance(x, types.Float):
        raise TypingError(f"EXPECTED a number, not {_name(x)}")

    def cut(x: Any) -> Any:
        if not isfinite(x) or not -_INT64_END <= x < _INT64_END:
            raise OverflowError("a float does not fit into 64 bits")
        return np.int64(x)

    return cut


@_compiled
def at(index: int, size: int) -> int:
    """An index into an array of `size` elements; negative ones count from its end."""
    if index < 0:
        index += size
    if index < 0 or index >= size:
        raise IndexError("index out of range")
    return index


@_compiled
def fits(x: int, least: int, most: int) -> int:
    """`x`, which the column's type must hold."""
    if x < least or x > most:
        raise OverflowError("a value does not fit its column")
    return x


@_compiled
def signed(x: int) -> int:
    """A value of a uint64 column, read as int64."""
    if x < 0:
        raise OverflowError("a value of a uint64 column is above 2**63")
    return x


@_compiled
def tick(at: int, most: int) -> None:
    """Count a pass of a loop."""
    count = mem.load_i64(at) + 1
    mem.store_i64(at, count)
    if count > most:
        raise RuntimeError("too many passes of loops")


@_compiled
def same_text(a: int, size: int, b: int, other: int) -> bool:
    """Whether two texts are equal."""
    if size != other:
        return False
    for k in range(size):  # noqa: SIM110 - a generator does not compile
        if mem.load_u8(a + k) != mem.load_u8(b + k):
            return False
    return True


@_compiled
def copy_words(to: int, source: int, count: int) -> None:
    """Copy words of 8 bytes."""
    for k in range(count):
        mem.store_i64(to + 8 * k, mem.load_i64(source + 8 * k))


@_compiled
def logged(undo: int, words: int, record: int, place: int) -> int:
    """The place of a word of a record that is written next; what it has now goes to the log.

    `undo` has the number of entries, `words` entries of a place and its value, and room for a copy.
    Once the entries are used up, the copy becomes the record as the row found it, and the number
    is `words + 1`."""
    count = mem.load_i64(undo)
    if count < words:
        mem.store_i64(undo + 8 + 16 * count, place)
        mem.store_i64(undo + 16 + 16 * count, mem.load_i64(record + 8 * place))
        mem.store_i64(undo, count + 1)
    elif count == words:
        copy = undo + 8 + 16 * words
        copy_words(copy, record, words)
        for k in range(words - 1, -1, -1):
            at = 8 * mem.load_i64(undo + 8 + 16 * k)
            mem.store_i64(copy + at, mem.load_i64(undo + 16 + 16 * k))
        mem.store_i64(undo, words + 1)
    return place


@instruction
def pointer(typingctx: Any, address: Any) -> Any:
    """An address as a pointer, for numba's `carray`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


@instruction
def fixed(typingctx: Any, array: Any) -> Any:
    """An array that cannot be written: the memory is the input's."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        context.nrt.incref(builder, signature.return_type, args[0])
        return args[0]

    return array.copy(readonly=True)(array), codegen
