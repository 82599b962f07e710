"""Instructions of the shuffle: wide copies, non-temporal stores, sixteen keys at a time."""

from __future__ import annotations

import platform
from typing import Any

from kernels.compiler import cgutils, intrinsic, ir, types

LANES = 16
_X86 = platform.machine() in ("x86_64", "AMD64")
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_SIXTEEN = ir.VectorType(_I32, LANES)
_LINE = ir.VectorType(ir.IntType(8), 64)

sched_yield = types.ExternalFunction("sched_yield", types.int32())
"""Let another thread run."""


def _load(builder: Any, address: Any, kind: Any = _SIXTEEN) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 1
    return value


def _store(builder: Any, address: Any, value: Any, nontemporal: bool = False) -> None:
    stored = builder.store(value, builder.inttoptr(address, value.type.as_pointer()))
    stored.align = 64 if nontemporal else 1
    if nontemporal:
        stored.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))


def _copier(nontemporal: bool) -> Any:
    @intrinsic
    def copy(typingctx: Any, target: Any, source: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _store(builder, args[0], _load(builder, args[1]), nontemporal)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return copy


copy_64, stream_64 = _copier(False), _copier(True)
"""`copy_64(target, source)`: copy 64 bytes.  `stream_64` passes the caches by; its target is
aligned to 64 bytes."""


def _merger(nontemporal: bool) -> Any:
    @intrinsic
    def merge(typingctx: Any, target: Any, kept: Any, source: Any, mask: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            one, other = (_load(builder, args[k], _LINE) for k in (1, 2))
            chosen = builder.bitcast(args[3], ir.VectorType(ir.IntType(1), 64))
            _store(builder, args[0], builder.select(chosen, one, other), nontemporal)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    return merge


merge_64, stream_merged = _merger(False), _merger(True)
"""`merge_64(target, kept, source, mask)`: 64 bytes, each from `kept` where its bit in `mask` is
set, else from `source`.  `stream_merged` passes the caches by, as `stream_64` does."""


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


def _all(*values: int) -> Any:
    """Sixteen constants, or one sixteen times."""
    return ir.Constant(_SIXTEEN, list(values) if len(values) == LANES else [values[0]] * LANES)


def _splat(builder: Any, value: Any) -> Any:
    """The low half of an int64, sixteen times."""
    vector = ir.Constant(_SIXTEEN, ir.Undefined)
    first = builder.insert_element(vector, builder.trunc(value, _I32), _I32(0))
    return builder.shuffle_vector(first, first, _all(0))


def _mixed(builder: Any, x: Any) -> Any:
    """`kernels.cpu.hash.fmix32` of a vector."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = builder.mul(builder.xor(x, builder.lshr(x, _all(shift))), _all(factor))
    return builder.xor(x, builder.lshr(x, _all(16)))


def _random(builder: Any, first: Any, seed: Any) -> Any:
    x = builder.add(_splat(builder, first), _all(*range(LANES)))
    return _mixed(builder, builder.add(builder.mul(x, _all(0x9E3779B1)), _splat(builder, seed)))


def _masked(builder: Any, source: Any, mask: Any) -> Any:
    return builder.and_(_load(builder, source), _splat(builder, mask))


def _remainder(builder: Any, source: Any, divisor: Any) -> Any:
    """The quotient of 32-bit numbers, truncated, is exact in double precision: where it is no
    integer, it is further from one than the rounding error."""
    real, x = ir.VectorType(ir.DoubleType(), LANES), _load(builder, source)
    d = _splat(builder, divisor)
    quotient = builder.fdiv(builder.uitofp(x, real), builder.uitofp(d, real))
    return builder.sub(x, builder.mul(builder.fptoui(quotient, _SIXTEEN), d))


def _sixteen(emit: Any) -> Any:
    """An intrinsic that stores sixteen uint32, made of two int64, to an address."""

    @intrinsic
    def compute(typingctx: Any, to: Any, one: Any, other: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _store(builder, args[0], emit(builder, args[1], args[2]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen

    return compute


random_sixteen, mask_sixteen, modulo_sixteen = map(_sixteen, (_random, _masked, _remainder))
"""`random_sixteen(to, first, seed)`: `fmix32(counter * 0x9E3779B1 + seed)` of the counters from
`first` on.  `mask_sixteen(to, source, mask)` and `modulo_sixteen(to, source, divisor)`."""


@intrinsic
def hash_sixteen(typingctx: Any, to: Any, source: Any) -> Any:
    """`fmix32` of the sixteen uint32 at `source`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, args[0], _mixed(builder, _load(builder, args[1])))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


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
            sizes, names = _load(builder, args[2]), _load(builder, args[1])
            ends = sizes
            for by in (1, 2, 4, 8):  # prefix sums
                moved = _all(*([LANES] * by), *range(LANES - by))
                ends = builder.add(ends, builder.shuffle_vector(ends, _all(0), moved))
            ends = builder.add(ends, _splat(builder, args[3]))
            for part in range(3):
                words = [part * LANES + lane for lane in range(LANES)]
                both = _all(*(w // 3 + LANES * (w % 3 == 1) for w in words))
                third = _all(*(LANES + w // 3 if w % 3 == 2 else k for k, w in enumerate(words)))
                value = builder.shuffle_vector(names, ends, both)
                value = builder.shuffle_vector(value, sizes, third)
                _store(builder, builder.add(args[0], _I64(64 * part)), value, nontemporal)
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
        number, first, span = (_splat(builder, args[k]) for k in (2, 3, 4))
        inside = builder.sub(_load(builder, args[1]), first)
        kept = builder.icmp_unsigned("<", inside, span)
        kind = ir.FunctionType(_SIXTEEN, [_SIXTEEN, kept.type, _SIXTEEN])
        name = f"llvm.experimental.vector.compress.v{LANES}i32"
        compress = cgutils.get_or_insert_function(builder.module, kind, name)
        numbers = builder.add(number, _all(*range(LANES)))
        rest = ir.Constant(_SIXTEEN, ir.Undefined)
        _store(builder, args[0], builder.call(compress, [numbers, kept, rest]))
        return builder.ctpop(builder.zext(builder.bitcast(kept, ir.IntType(LANES)), _I64))

    return types.int64(*[types.int64] * 5), codegen
