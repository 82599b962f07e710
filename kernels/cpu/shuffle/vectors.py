"""Instructions of the shuffle: wide copies, non-temporal stores, sixteen keys at a time."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
_X86 = platform.machine() in ("x86_64", "AMD64")
_I32, _I64 = ir.IntType(32), ir.IntType(64)

sched_yield = types.ExternalFunction("sched_yield", types.int32())
"""Let another thread run."""


def _copier(nontemporal: bool) -> Any:
    @intrinsic
    def copy(typingctx: Any, target: Any, source: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.VectorType(_I64, 8)
            value = builder.load(builder.inttoptr(args[1], kind.as_pointer()))
            value.align = 1
            stored = builder.store(value, builder.inttoptr(args[0], kind.as_pointer()))
            stored.align = 1
            if nontemporal:
                stored.align = 64
                stored.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return copy


copy_64, stream_64 = _copier(False), _copier(True)
"""`copy_64(target, source)`: copy 64 bytes.  `stream_64` passes the caches by; its target is
aligned to 64 bytes."""


@intrinsic
def drain_stores(typingctx: Any) -> Any:
    """Order non-temporal stores before all later stores.  (On x86-64 they are otherwise ordered by
    locked instructions alone; elsewhere by a fence.)"""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(
                cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.sfence"), []
            )
        else:
            builder.fence("release")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def move_bytes(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    """`memmove(target, source, size)`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        pointers = [builder.inttoptr(args[k], byte) for k in (0, 1)]
        cgutils.raw_memmove(builder, *pointers, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    vector = ir.Constant(ir.VectorType(kind, LANES), ir.Undefined)
    first = builder.insert_element(vector, value, _I32(0))
    lanes = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return builder.shuffle_vector(first, first, lanes)


def _mixed(builder: Any, x: Any) -> Any:
    """`kernels.cpu.hash.fmix32` of a vector."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = builder.xor(x, builder.lshr(x, ir.Constant(x.type, [shift] * LANES)))
        x = builder.mul(x, ir.Constant(x.type, [factor] * LANES))
    return builder.xor(x, builder.lshr(x, ir.Constant(x.type, [16] * LANES)))


def _load(builder: Any, address: Any) -> Any:
    kind = ir.VectorType(_I32, LANES)
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 1
    return value


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


@intrinsic
def random_sixteen(typingctx: Any, to: Any, first: Any, seed: Any) -> Any:
    """Sixteen uint32 to `to`: `fmix32(counter * 0x9E3779B1 + seed)` of the counters from `first`
    on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(_I32, LANES)
        start, seeds = (_splat(builder, builder.trunc(args[k], _I32), _I32) for k in (1, 2))
        x = builder.add(start, ir.Constant(kind, list(range(LANES))))
        x = builder.add(builder.mul(x, ir.Constant(kind, [0x9E3779B1] * LANES)), seeds)
        _store(builder, args[0], _mixed(builder, x))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def hash_sixteen(typingctx: Any, to: Any, source: Any) -> Any:
    """`fmix32` of the sixteen uint32 at `source`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, args[0], _mixed(builder, _load(builder, args[1])))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def mask_sixteen(typingctx: Any, to: Any, source: Any, mask: Any) -> Any:
    """Sixteen uint32 & `mask`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mask = _splat(builder, builder.trunc(args[2], _I32), _I32)
        _store(builder, args[0], builder.and_(_load(builder, args[1]), mask))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def modulo_sixteen(typingctx: Any, to: Any, source: Any, divisor: Any) -> Any:
    """Sixteen uint32 % `divisor`.  The quotient of 32-bit numbers, truncated, is exact in double
    precision: where it is no integer, it is further from one than the rounding error."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, real = ir.VectorType(_I32, LANES), ir.VectorType(ir.DoubleType(), LANES)
        x, small = _load(builder, args[1]), builder.trunc(args[2], _I32)
        d = _splat(builder, small, _I32)
        quotient = builder.fdiv(builder.uitofp(x, real), builder.uitofp(d, real))
        rest = builder.sub(x, builder.mul(builder.fptoui(quotient, kind), d))
        _store(builder, args[0], rest)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """An address as numba's void pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


def _slotter(nontemporal: bool) -> Any:
    """An intrinsic that writes sixteen slots: interleaves keys, offsets and lengths."""

    @intrinsic
    def write(typingctx: Any, slots: Any, keys: Any, lengths: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.VectorType(_I32, LANES)
            sizes, names = _load(builder, args[2]), _load(builder, args[1])
            ends, zeros = sizes, ir.Constant(kind, [0] * LANES)
            for by in (1, 2, 4, 8):  # prefix sums
                lanes = [LANES] * by + list(range(LANES - by))
                moved = ir.Constant(kind, lanes)
                ends = builder.add(ends, builder.shuffle_vector(ends, zeros, moved))
            ends = builder.add(ends, _splat(builder, builder.trunc(args[3], _I32), _I32))
            for part in range(3):
                words = [part * LANES + lane for lane in range(LANES)]
                both = ir.Constant(kind, [w // 3 + LANES * (w % 3 == 1) for w in words])
                third = ir.Constant(
                    kind, [LANES + w // 3 if w % 3 == 2 else lane for lane, w in enumerate(words)]
                )
                value = builder.shuffle_vector(names, ends, both)
                value = builder.shuffle_vector(value, sizes, third)
                at = builder.add(args[0], _I64(64 * part))
                stored = builder.store(value, builder.inttoptr(at, kind.as_pointer()))
                stored.align = 64 if nontemporal else 1
                if nontemporal:
                    stored.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
            return builder.zext(builder.extract_element(ends, _I32(LANES - 1)), _I64)

        return types.int64(types.int64, types.int64, types.int64, types.int64), codegen

    return write


write_sixteen, stream_sixteen = _slotter(False), _slotter(True)
"""`write_sixteen(slots, keys, lengths, offset)`: sixteen slots with the uint32 keys and lengths at
two addresses, behind `offset` bytes of data; returns those after them.  `stream_sixteen` passes the
caches by; its slots are aligned to 64 bytes."""


@intrinsic
def select_sixteen(
    typingctx: Any, to: Any, targets: Any, number: Any, first: Any, span: Any
) -> Any:
    """Of sixteen tuples from `number` on, those whose uint32 partition is one of the `span` from
    `first` on go to `to`, as uint32, in order; sixteen are written.  Returns how many they are."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, bits = ir.VectorType(_I32, LANES), ir.VectorType(ir.IntType(1), LANES)
        number, first, span = (
            _splat(builder, builder.trunc(args[k], _I32), _I32) for k in (2, 3, 4)
        )
        inside = builder.sub(_load(builder, args[1]), first)
        kept = builder.icmp_unsigned("<", inside, span)
        numbers = builder.add(number, ir.Constant(kind, list(range(LANES))))
        name = f"llvm.experimental.vector.compress.v{LANES}i32"
        compress = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind, bits, kind]), name
        )
        rest = ir.Constant(kind, ir.Undefined)
        _store(builder, args[0], builder.call(compress, [numbers, kept, rest]))
        mask = builder.zext(builder.bitcast(kept, ir.IntType(LANES)), _I64)
        return builder.ctpop(mask)

    return types.int64(*[types.int64] * 5), codegen
