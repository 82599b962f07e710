"""Comparisons of 32 values at a time, as LLVM vectors, for scans of a window.

    equal_u32(addr, x)   uint64 mask: bit i is set where the i-th uint32 at `addr` equals x
    below_i64(addr, x)   uint64 mask: bit i is set where the i-th int64 at `addr` is less than x

All 32 values must be readable; addresses are aligned to the value.  LLVM uses what the
machine has: 4 compares with AVX2 for the former, 8 for the latter, NEON on aarch64.
"""

from __future__ import annotations

from typing import Any

from kernels.compiler import intrinsic, ir, types

WIDTH = 32
"""Values of one comparison."""


def _comparison(kind: Any, bits: int, predicate: str) -> Any:
    @intrinsic
    def compare(typingctx: Any, addr: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector = ir.VectorType(ir.IntType(bits), WIDTH)
            loaded = builder.load(builder.inttoptr(args[0], vector.as_pointer()))
            loaded.align = bits // 8
            first = builder.insert_element(
                ir.Constant(vector, ir.Undefined), args[1], ir.Constant(ir.IntType(32), 0)
            )
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
            spread = builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)
            flags = builder.icmp_signed(predicate, loaded, spread)
            mask = builder.bitcast(flags, ir.IntType(WIDTH))
            return builder.zext(mask, ir.IntType(64))

        return types.uint64(types.int64, kind), codegen

    return compare


equal_u32 = _comparison(types.uint32, 32, "==")
below_i64 = _comparison(types.int64, 64, "<")


@intrinsic
def ones(typingctx: Any, mask: Any) -> Any:
    """The number of bits that are set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def lowest(typingctx: Any, mask: Any) -> Any:
    """The number of the lowest bit that is set; 64 for none."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen
