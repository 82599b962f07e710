"""Atomic memory operations for kernels: LLVM instructions, no locks.

Addresses are int64 and aligned to the value's size.  Read-modify-write operations are sequentially
consistent (`lock`-prefixed on x86-64, `ldaxr`/`stlxr` or LSE on aarch64).  `acquire_*` sees all
that was written before the `release_*` of the value that it reads.  It may execute before an
earlier write to another address is visible to other threads, as on aarch64; `ordered_i64` may
not.
"""

from __future__ import annotations

from typing import Any

from kernels.compiler import intrinsic, ir, types


def _modifier(operation: str, kind: Any, bits: int) -> Any:
    @intrinsic
    def modify(typingctx: Any, addr: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            return builder.atomic_rmw(operation, pointer, args[1], "seq_cst")

        return kind(types.int64, kind), codegen

    return modify


def _loader(kind: Any, bits: int, ordering: str) -> Any:
    @intrinsic
    def load(typingctx: Any, addr: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            return builder.load_atomic(pointer, ordering, bits // 8)

        return kind(types.int64), codegen

    return load


def _storer(kind: Any, bits: int) -> Any:
    @intrinsic
    def store(typingctx: Any, addr: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store_atomic(args[1], pointer, "release", bits // 8)
            return context.get_dummy_value()

        return types.void(types.int64, kind), codegen

    return store


add_i64 = _modifier("add", types.int64, 64)
"""`add_i64(addr, value)`: add, wrapping; returns the old value."""
or_u64 = _modifier("or", types.uint64, 64)
"""`or_u64(addr, bits)`: set bits; returns the old value."""
acquire_i64, release_i64 = _loader(types.int64, 64, "acquire"), _storer(types.int64, 64)
acquire_u32, release_u32 = _loader(types.uint32, 32, "acquire"), _storer(types.uint32, 32)
ordered_i64 = _loader(types.int64, 64, "seq_cst")
"""`ordered_i64(addr)`: the value, read after all earlier `add_i64` of this thread."""


@intrinsic
def swap_i64(typingctx: Any, addr: Any, expected: Any, value: Any) -> Any:
    """Store `value` if `expected` is there; returns the old value."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        seen = builder.cmpxchg(pointer, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(seen, 0)

    return types.int64(types.int64, types.int64, types.int64), codegen
