"""Raw memory for kernels over any schema: unaligned loads and stores, memcpy, prefetch.

Addresses are int64.  x86-64 and aarch64 both allow unaligned access in hardware; the LLVM
instructions are marked `align 1` so that the compiler assumes nothing.
"""

from __future__ import annotations

from typing import Any

from kernels.compiler import cgutils, intrinsic, ir, types


def _loader(kind: Any, bits: int) -> Any:
    @intrinsic
    def load(typingctx: Any, addr: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer)
            value.align = 1
            return value

        return kind(types.int64), codegen

    return load


def _storer(kind: Any, bits: int) -> Any:
    @intrinsic
    def store(typingctx: Any, addr: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(args[1], pointer).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, kind), codegen

    return store


load_u8, store_u8 = _loader(types.uint8, 8), _storer(types.uint8, 8)
load_u16, store_u16 = _loader(types.uint16, 16), _storer(types.uint16, 16)
load_u32, store_u32 = _loader(types.uint32, 32), _storer(types.uint32, 32)
load_u64, store_u64 = _loader(types.uint64, 64), _storer(types.uint64, 64)
load_i32, store_i32 = _loader(types.int32, 32), _storer(types.int32, 32)
load_i64, store_i64 = _loader(types.int64, 64), _storer(types.int64, 64)


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    """`memcpy(target, source, size)`; the ranges must not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(args[0], byte),
            builder.inttoptr(args[1], byte),
            args[2],
            1,
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _prefetcher(write: int, level: int = 3) -> Any:
    @intrinsic
    def ask(typingctx: Any, addr: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            byte = ir.IntType(8).as_pointer()
            kind = ir.FunctionType(
                ir.VoidType(), [byte, ir.IntType(32), ir.IntType(32), ir.IntType(32)]
            )
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            flags = [ir.Constant(ir.IntType(32), v) for v in (write, level, 1)]
            builder.call(function, [builder.inttoptr(args[0], byte), *flags])
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return ask


prefetch, prefetch_to_write = _prefetcher(0), _prefetcher(1)
prefetch_far = _prefetcher(0, 2)
"""Prefetch the cache line at an address, `far` into the second cache only; they never fault."""


@intrinsic
def will_need(typingctx: Any, addr: Any, size: Any) -> Any:
    """`madvise(addr, size, MADV_WILLNEED)`: the system begins to read pages of a mapped file.

    `addr` is that of a page.  The call does not wait; where it fails, a later read waits.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, size_type, number = ir.IntType(8).as_pointer(), ir.IntType(64), ir.IntType(32)
        kind = ir.FunctionType(number, [byte, size_type, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "madvise")
        advice = ir.Constant(number, 3)
        builder.call(function, [builder.inttoptr(args[0], byte), args[1], advice])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _load(builder: Any, address: Any, kind: Any) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 1
    return value


@intrinsic
def copy_16(typingctx: Any, target: Any, source: Any) -> Any:
    """Copy 16 bytes with one load and one store."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(ir.IntType(64), 2)
        pointer = builder.inttoptr(args[0], kind.as_pointer())
        builder.store(_load(builder, args[1], kind), pointer).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def set_of_64(typingctx: Any, addr: Any) -> Any:
    """Which of the 64 uint32 at `addr` are not 0, as bits, the first in the lowest."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(ir.IntType(32), 64)
        found = builder.icmp_unsigned(
            "!=", _load(builder, args[0], kind), ir.Constant(kind, [0] * 64)
        )
        return builder.bitcast(found, ir.IntType(64))

    return types.uint64(types.int64), codegen


@intrinsic
def lowest_bit(typingctx: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set in a uint64 other than 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen
