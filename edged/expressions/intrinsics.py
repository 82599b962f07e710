"""LLVM instructions of expression kernels that numba does not expose.

Loads and stores take a column's address and a row: one pointer before the loop and one
`getelementptr` a row, so that LLVM can vectorise.  All are `align 1`.

numba marks its own signed `+ - *` as never overflowing (`nsw`), which lets LLVM remove a later
overflow check.  Values of rows in error, or under a NULL, may overflow.  Integers of expressions
therefore use `wadd` and its like, which wrap, or `sadd` and its like, which return an overflow
flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.compiler import cgutils, intrinsic, ir, types

_Function = Callable[..., Any]


def instruction(function: _Function) -> Any:
    """numba's `intrinsic`, typed."""
    return intrinsic(function)


def _loader(kind: Any, bits: Any, carry: Any) -> Any:
    """`load(address, row)`: the row-th value of a column, as the type that carries it."""

    def load(typingctx: Any, addr: Any, row: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.inttoptr(args[0], bits.as_pointer())
            value = builder.load(builder.gep(base, [args[1]]))
            value.align = 1
            return context.cast(builder, value, kind, carry)

        return carry(types.int64, types.int64), codegen

    return instruction(load)


def _storer(kind: Any, bits: Any, carry: Any) -> Any:
    """`load(address, row)`: a column's value in a row, as its carrying type."""

    def store(typingctx: Any, addr: Any, row: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            base = builder.inttoptr(args[0], bits.as_pointer())
            cut = context.cast(builder, args[2], carry, kind)
            builder.store(cut, builder.gep(base, [args[1]])).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, carry), codegen

    return instruction(store)


def _pair(name: str, carry: Any) -> tuple[Any, Any]:
    kind = getattr(types, name)
    bits = {"float32": ir.FloatType(), "float64": ir.DoubleType()}.get(
        name, ir.IntType(getattr(kind, "bitwidth", 64))
    )
    return _loader(kind, bits, carry), _storer(kind, bits, carry)


load_int8, store_int8 = _pair("int8", types.int64)
load_int16, store_int16 = _pair("int16", types.int64)
load_int32, store_int32 = _pair("int32", types.int64)
load_int64, store_int64 = _pair("int64", types.int64)
load_uint8, store_uint8 = _pair("uint8", types.int64)
load_uint16, store_uint16 = _pair("uint16", types.int64)
load_uint32, store_uint32 = _pair("uint32", types.int64)
load_uint64, store_uint64 = _pair("uint64", types.uint64)
load_float32, store_float32 = _pair("float32", types.float32)
load_float64, store_float64 = _pair("float64", types.float64)


def _plain(name: str, kind: Any) -> Any:
    """`store(address, row, value)`: integers are truncated to the column's width."""

    def operate(typingctx: Any, a: Any, b: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, name)(args[0], args[1])

        return kind(kind, kind), codegen

    return instruction(operate)


wadd, wsub, wmul = (_plain(name, types.int64) for name in ("add", "sub", "mul"))
sdiv, srem = _plain("sdiv", types.int64), _plain("srem", types.int64)
udiv, urem = _plain("udiv", types.uint64), _plain("urem", types.uint64)
"""Towards zero, as in C; the caller excludes a zero divisor and the overflow."""
frem_float32 = _plain("frem", types.float32)
frem_float64 = _plain("frem", types.float64)
"""fmod."""


def _checked(name: str, kind: Any) -> Any:
    """`(result, overflowed)` of two 64-bit integers."""

    def operate(typingctx: Any, a: Any, b: Any) -> Any:
        result = types.Tuple((kind, types.boolean))

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pair = getattr(builder, name)(args[0], args[1])
            parts = [builder.extract_value(pair, 0), builder.extract_value(pair, 1)]
            return context.make_tuple(builder, result, parts)

        return result(kind, kind), codegen

    return instruction(operate)


sadd = _checked("sadd_with_overflow", types.int64)
ssub = _checked("ssub_with_overflow", types.int64)
smul = _checked("smul_with_overflow", types.int64)
umul = _checked("umul_with_overflow", types.uint64)


def _rounding(name: str, kind: Any, bits: Any) -> Any:
    """An LLVM rounding intrinsic of one float."""

    def operate(typingctx: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function_type = ir.FunctionType(bits, [bits])
            function = cgutils.get_or_insert_function(
                builder.module, function_type, f"llvm.{name}.{bits.intrinsic_name}"
            )
            return builder.call(function, [args[0]])

        return kind(kind), codegen

    return instruction(operate)


_F32, _F64 = (types.float32, ir.FloatType()), (types.float64, ir.DoubleType())
floor_float32, floor_float64 = _rounding("floor", *_F32), _rounding("floor", *_F64)
ceil_float32, ceil_float64 = _rounding("ceil", *_F32), _rounding("ceil", *_F64)
trunc_float32, trunc_float64 = _rounding("trunc", *_F32), _rounding("trunc", *_F64)
round_float32, round_float64 = _rounding("round", *_F32), _rounding("round", *_F64)
rint_float64 = _rounding("rint", *_F64)


@instruction
def bit_count(typingctx: Any, x: Any) -> Any:
    """Bits that are set in a uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen
