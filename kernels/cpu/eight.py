"""Eight at a time, in vectors: a link of so many chains, what `kernels.cpu.abreast` walks with, and
the tails of so many partitions, for `kernels.cpu.leave`.

Each function is one program on vectors of eight, written for LLVM, since numba has no type for
them.  What a walk meets is loaded piece by piece and put together: gathers take longer on Zen 5,
and so does it to take addresses for prefetching out of vectors instead of loading them again.
Tails do gather: their partitions wait for each other only five times (see `leave`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen
from numba.extending import intrinsic

from kernels.cpu.rings import (
    DISORDER_NEW,
    DISORDER_OLD,
    ENTRY,
    GENERATION,
    HEAD,
    LOW,
    NEXT,
    PART,
    PARTITION_SHIFT,
    RING,
    RING_MASK,
    TAIL,
)
from kernels.cpu.walk import CHUNK, PLAIN

LANES, PLACE = 8, 4
WALKS, LOWS, ENTRIES, WALKS_BYTES = 0, 2112, 4224, 6336
"""Walks, field by field, 264 int64 each: `tag | place << 32`, where the place is the candidate's
number or where in the lists its next row goes (PLACE bytes behind the tag); the earliest time that
matches; the address of the entry to look at next."""
NEARER, FARTHER = 1, 2
"""Where rings lie, if not in the first cache: next entries are asked for, into the first cache or
into the second."""
BEFORE, NOBODY = 128, -2 << 32
"""Bytes before lists that are nobody's; a walk with its place there."""
FOUND, ROWS = 0, 8 * CHUNK
"""What is noted of each candidate (int64s): whether its first entry matches; its row, and above 32
bits its partition, if those are `named`."""
_FEATURES = numba.config.CPU_FEATURES
FAST = "+avx512vl" in (codegen.get_host_cpu_features() if _FEATURES is None else _FEATURES)
"""Whether the CPU compresses vectors in an instruction.  LLVM takes it apart for others."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _of(kind: Any, lanes: int = LANES) -> Any:
    return ir.VectorType(kind, lanes)


def _number(value: int) -> Any:
    return ir.Constant(_I64, value)


class _Vectors:
    """Shorthand for writing a program on vectors of eight."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def call(self, name: str, kind: Any, *args: Any) -> Any:
        """Call a function of LLVM's."""
        signature = ir.FunctionType(kind, [arg.type for arg in args])
        function = cgutils.get_or_insert_function(self.builder.module, signature, name)
        return self.builder.call(function, args)

    def splat(self, value: Any, kind: Any = _I64) -> Any:
        """A vector of eight times `value`: a number, or an int64 at run time."""
        if isinstance(value, int):
            return ir.Constant(_of(kind), [value] * LANES)
        if value.type != kind:
            value = self.builder.trunc(value, kind)
        undefined, zero = ir.Constant(_of(kind), ir.Undefined), ir.Constant(_I32, 0)
        first = self.builder.insert_element(undefined, value, zero)
        return self.pick(first, first, [0] * LANES)

    def pick(self, one: Any, other: Any, lanes: Iterable[int]) -> Any:
        """Some lanes of two vectors."""
        lanes = list(lanes)
        return self.builder.shuffle_vector(one, other, ir.Constant(_of(_I32, len(lanes)), lanes))

    def wide(self, vector: Any) -> Any:
        """uint32 to int64."""
        return self.builder.zext(vector, _of(_I64))

    def narrow(self, vector: Any) -> Any:
        """The low halves of int64."""
        return self.builder.trunc(vector, _of(_I32))

    def load(self, address: Any, kind: Any, offset: int = 0) -> Any:
        """What lies at an address."""
        at = self.builder.add(address, _number(offset))
        value = self.builder.load(self.builder.inttoptr(at, kind.as_pointer()))
        value.align = 1
        return value

    def store(self, address: Any, vector: Any, offset: int = 0) -> None:
        """The same the other way."""
        at = self.builder.add(address, _number(offset))
        self.builder.store(vector, self.builder.inttoptr(at, vector.type.as_pointer())).align = 1

    def entries(self, ring: Any, mask: Any, links: Any) -> Any:
        """The addresses of eight links' entries; links of any number have one."""
        slots = self.builder.and_(links, self.splat(mask))
        return self.builder.add(self.splat(ring), self.builder.mul(slots, self.splat(ENTRY)))

    def numbers(self, at: Any, offset: int = 0) -> list[Any]:
        """Eight int64, one by one."""
        return [self.load(at, _I64, offset + 8 * lane) for lane in range(LANES)]

    def pairs(self, addresses: list[Any]) -> tuple[Any, Any]:
        """The two int64 at each of eight addresses: all first ones, all second ones."""
        parts = [self.load(address, _of(_I64, 2)) for address in addresses]
        while len(parts) > 2:
            parts = [
                self.pick(one, other, range(2 * one.type.count))
                for one, other in zip(parts[::2], parts[1::2], strict=True)
            ]
        low, high = parts
        return self.pick(low, high, range(0, 16, 2)), self.pick(low, high, range(1, 16, 2))

    def together(self, values: list[Any]) -> Any:
        """Eight uint32 as a vector."""
        vector = ir.Constant(_of(_I32), ir.Undefined)
        for lane, value in enumerate(values):
            vector = self.builder.insert_element(vector, value, ir.Constant(_I32, lane))
        return vector

    def compress(self, vector: Any, kept: Any, other: Any = 0) -> Any:
        """The lanes that are kept, at the front; in the others `other`."""
        element = vector.type.element
        name = f"llvm.experimental.vector.compress.v8i{element.width}"
        return self.call(name, vector.type, vector, kept, self.splat(other, element))

    def count(self, lanes: Any) -> Any:
        """How many lanes are set, as an int64."""
        bits = self.builder.bitcast(lanes, ir.IntType(LANES))
        return self.builder.zext(self.call("llvm.ctpop.i8", ir.IntType(8), bits), _I64)

    def counts(self, *kinds: Any) -> Any:
        """How many lanes of each kind, a byte each."""
        found = _number(0)
        for k, lanes in enumerate(kinds):
            found = self.builder.or_(found, self.builder.shl(self.count(lanes), _number(8 * k)))
        return found

    def gather(self, addresses: Any) -> Any:
        """The int64 at each of eight addresses."""
        wide, pointers = _of(_I64), _of(ir.PointerType())
        signature = ir.FunctionType(wide, [pointers, _I32, _of(ir.IntType(1)), wide])
        function = cgutils.get_or_insert_function(
            self.builder.module, signature, "llvm.masked.gather.v8i64.v8p0"
        )
        at = self.builder.inttoptr(addresses, pointers)
        every = ir.Constant(_of(ir.IntType(1)), [1] * LANES)
        return self.builder.call(
            function, [at, ir.Constant(_I32, 1), every, ir.Constant(wide, ir.Undefined)]
        )

    def apart(self, vector: Any) -> list[Any]:
        """The lanes of a vector."""
        lanes = range(vector.type.count)
        return [self.builder.extract_element(vector, ir.Constant(_I32, k)) for k in lanes]

    def prefetch(self, address: Any, cache: int) -> None:
        """Ask for a line: 3 into the first cache, 2 into the second."""
        flags = [ir.Constant(_I32, flag) for flag in (0, cache, 1)]
        pointer = self.builder.inttoptr(address, ir.PointerType())
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, *flags)

    def first(self, count: Any) -> Any:
        """The first `count` lanes."""
        places = ir.Constant(_of(_I64), list(range(LANES)))
        return self.builder.icmp_signed("<", places, self.splat(count))


def _log(v: _Vectors, at: Any, to: Any, end: Any, matched: Any, meets: Any, walks: Any) -> Any:
    """Append what matches to the log at `to`, as `int64 name | row << 32`; places are names."""
    b = v.builder
    pairs = b.or_(b.and_(matched, v.splat(-1 << 32)), b.lshr(walks, v.splat(32)))
    v.store(to, v.compress(pairs, meets))
    return walks


def _list(v: _Vectors, at: Any, to: Any, end: Any, matched: Any, meets: Any, walks: Any) -> Any:
    """Write the row that matches to its walk's place in the lists at `to`, or once more the end,
    and the end behind it; returns the walks with their next places.

    Places and rows are taken out of vectors by way of memory."""
    b = v.builder
    rows = b.select(meets, b.lshr(matched, v.splat(32)), v.splat(end))
    v.store(to, b.or_(rows, v.splat(b.shl(end, _number(32)))), -BEFORE)
    for lane, row in enumerate(v.numbers(to, -BEFORE)):
        place = b.sext(v.load(at, _I32, WALKS + 8 * lane + PLACE), _I64)
        v.store(b.add(to, b.shl(place, _number(2))), row)
    return b.add(walks, b.select(meets, v.splat(1 << 32), v.splat(0)))


def _judge(
    v: _Vectors, keep: Any, other: tuple[Any, ...], at: Any, kept: Any, among: Any,
    entries: list[Any], walks: Any, lows: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Look at an entry of each walk: those that match are kept as `keep` does it, those that go on
    in `kept`, and their next entries asked for.  Returns which lanes match and which go on."""
    b, (to, end, ring, mask, tail, width, disorder, far) = v.builder, other
    when, behind = v.pairs(entries)
    following = v.wide(v.together([v.load(entry, _I32, NEXT) for entry in entries]))
    late = b.icmp_unsigned("<=", b.sub(when, lows), v.splat(width))
    same = b.icmp_unsigned("==", b.and_(b.xor(behind, walks), v.splat(LOW)), v.splat(0))
    meets = b.and_(b.and_(late, same), among)
    walks = keep(v, at, to, end, behind, meets, walks)
    alive = b.icmp_unsigned(">=", following, v.splat(tail))
    recent = b.icmp_signed(">=", when, b.sub(lows, v.splat(disorder)))
    goes_on = b.and_(b.and_(alive, recent), among)
    v.store(kept, v.compress(walks, goes_on), WALKS)
    v.store(kept, v.compress(lows, goes_on), LOWS)
    v.store(kept, v.compress(v.entries(ring, mask, following), goes_on, ring), ENTRIES)
    for distance, cache in ((NEARER, 3), (FARTHER, 2)):
        with b.if_then(b.icmp_signed("==", far, _number(distance))):
            for entry in v.numbers(kept, ENTRIES):
                v.prefetch(entry, cache)
                v.prefetch(b.add(entry, _number(ENTRY - 1)), cache)
    return meets, goes_on


def _beginner(keep: Any) -> Any:
    @intrinsic
    def begin(
        typingctx: Any, at: Any, place: Any, stride: Any, count: Any, records: Any, base: Any,
        named: Any, back: Any, known: Any, kept: Any, to: Any, end: Any, ring: Any, mask: Any,
        tail: Any, width: Any, disorder: Any, far: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at, place, stride, count, records, base, named, back, known, kept, *other = args
            ring, mask = other[2:4]
            v, b = _Vectors(builder), builder
            among, last = v.first(count), b.sub(count, _number(1))
            mine, entries = [], []
            for lane in range(LANES):
                beyond = b.icmp_signed("<", last, _number(lane))
                candidate = b.add(at, b.shl(b.select(beyond, last, _number(lane)), _number(3)))
                by = b.sub(v.load(candidate, _I32), b.trunc(records, _I32))
                mine.append(b.add(records, b.zext(by, _I64)))
                slot = b.and_(b.zext(v.load(candidate, _I32, 4), _I64), mask)
                entries.append(b.add(ring, b.mul(slot, _number(ENTRY))))
            times, tags = v.pairs(mine)
            lows = b.sub(times, v.splat(back))
            rows = v.wide(b.sub(v.narrow(b.lshr(tags, v.splat(32))), v.splat(base, _I32)))
            partitions = b.and_(tags, v.splat(LOW - (1 << PARTITION_SHIFT) + 1))
            partitions = b.shl(partitions, v.splat(32 - PARTITION_SHIFT))
            partitions = b.and_(partitions, v.splat(b.neg(named)))
            v.store(known, b.or_(rows, partitions), ROWS)
            numbers = ir.Constant(_of(_I64), list(range(LANES)))
            places = b.add(v.splat(place), b.mul(v.splat(stride), numbers))
            walks = b.or_(b.and_(tags, v.splat(LOW)), b.shl(places, v.splat(32)))
            v.store(kept, walks, WALKS)
            meets, goes_on = _judge(v, keep, tuple(other), kept, kept, among, entries, walks, lows)
            v.store(known, b.zext(meets, _of(_I64)), FOUND)
            wild = b.icmp_unsigned(">=", b.add(times, v.splat(int(PLAIN))), v.splat(2 * int(PLAIN)))
            return v.counts(meets, goes_on, b.or_(meets, goes_on), b.and_(wild, among))

        return types.int64(*[types.int64] * 18), codegen

    return begin


begin_log, begin_lists = _beginner(_log), _beginner(_list)
"""Look at the first entries of up to eight candidates (`count`, at least one) from `at` on.

What matches goes to a log at `to` (eight int64 are written), `place` is the first candidate's name
and `stride` 1; or to lists at `to`, eight of them begin at `place`, `stride` uint32 long each, and
`end` is written behind what matches.  At `known` FOUND and ROWS are noted.  What goes on is written
to `kept`, eight of each field.  `far`: 0, NEARER or FARTHER.  Returns, a byte each, how many match,
how many go on, how many do either, and how many have times for which differences overflow: then
nothing of it counts."""


def _stepper(keep: Any) -> Any:
    @intrinsic
    def step(
        typingctx: Any, at: Any, count: Any, kept: Any, to: Any, end: Any, ring: Any, mask: Any,
        tail: Any, width: Any, disorder: Any, far: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at, count, kept, *other = args
            v = _Vectors(builder)
            walks, lows = v.load(at, _of(_I64), WALKS), v.load(at, _of(_I64), LOWS)
            entries = v.numbers(at, ENTRIES)
            return v.counts(
                *_judge(v, keep, tuple(other), at, kept, v.first(count), entries, walks, lows)
            )

        return types.int64(*[types.int64] * 11), codegen

    return step


step_log, step_lists = _stepper(_log), _stepper(_list)
"""The same for the next link of up to eight walks, whose fields begin at `at`; of fewer, those
behind are NOBODY's.  Returns how many match and, in the next byte, how many go on."""


def _writer(lanes: int) -> Any:
    @intrinsic
    def write(typingctx: Any, mine: Any, met: Any, row: Any, rows: Any, base: Any, end: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v, b = _Vectors(builder), builder
            row, base, end = (
                v.pick(whole, whole, range(lanes))
                for whole in (v.splat(args[2]), v.splat(args[4], _I32), v.splat(args[5], _I32))
            )
            found = v.load(args[3], _of(_I32, lanes))
            v.store(args[0], row)
            v.store(args[1], b.zext(b.sub(found, base), _of(_I64, lanes)))
            ends = b.bitcast(b.icmp_unsigned("==", found, end), ir.IntType(lanes))
            ends = b.or_(b.zext(ends, _I64), _number(1 << lanes))
            return b.cttz(ends, ir.Constant(ir.IntType(1), 1))

        return types.int64(*[types.int64] * 6), codegen

    return write


FEW = LANES // 2
write, write_few = _writer(LANES), _writer(FEW)
"""Write `row` (int64) eight times, or FEW times, from `mine` on, and from `met` on as int64 so many
uint32 at `rows`, less `base` mod 2^32.  Returns how many of these come before `end`."""


@intrinsic
def fill(typingctx: Any, to: Any, value: Any) -> Any:
    """Write an int64 eight times from `to` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Vectors(builder)
        v.store(args[0], v.splat(args[1]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def lay(typingctx: Any, to_mine: Any, to_met: Any, mine: Any, met: Any, name: Any) -> Any:
    """Move eight pairs of int64, those at `mine` without their high halves; returns how many come
    before one whose high half is not `name`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v, b = _Vectors(builder), builder
        named = v.load(args[2], _of(_I64))
        v.store(args[0], b.and_(named, v.splat(LOW)))
        v.store(args[1], v.load(args[3], _of(_I64)))
        other = b.icmp_unsigned("!=", v.narrow(b.lshr(named, v.splat(32))), v.splat(args[4], _I32))
        others = b.or_(b.zext(b.bitcast(other, ir.IntType(LANES)), _I64), _number(1 << LANES))
        return b.cttz(others, ir.Constant(ir.IntType(1), 1))

    return types.int64(*[types.int64] * 5), codegen


MOST = 31
"""Entries that `leave` lets go of at most."""


@intrinsic
def leave(typingctx: Any, parts: Any, bound: Any) -> Any:
    """Move the tails of eight partitions, whose rows begin at `parts`, over up to MOST entries
    below `bound`, where times are in order.  Returns two bytes, a bit for each partition: where
    they are not, or more may leave; where that is all, and a generation has left.

    By halves, without a branch: 91 -> 98 M tuples/s in beats of 1 000 at 10^4 on a Xeon with
    AVX-512.  Not measured on Zen 5, where gathers for one partition alone lost (docs/joins.md)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v, b = _Vectors(builder), builder
        rows = b.add(v.splat(args[0]), ir.Constant(_of(_I64), [PART * k for k in range(LANES)]))
        ring, mask, begun, head, old, new, generation = (
            v.gather(b.add(rows, v.splat(8 * field)))
            for field in (RING, RING_MASK, TAIL, HEAD, DISORDER_OLD, DISORDER_NEW, GENERATION)
        )
        tail, bound, none = begun, v.splat(args[1]), v.splat(0)
        for step in (16, 8, 4, 2, 1):
            last = b.add(tail, v.splat(step - 1))
            time = v.gather(b.add(ring, b.mul(b.and_(last, mask), v.splat(ENTRY))))
            gone = b.and_(b.icmp_signed("<", time, bound), b.icmp_signed("<", last, head))
            tail = b.add(tail, b.select(gone, v.splat(step), none))
        wild = b.icmp_signed("!=", b.or_(old, new), none)
        odd = b.or_(wild, b.icmp_signed("==", b.sub(tail, begun), v.splat(MOST)))
        tail = b.select(wild, begun, tail)
        for lane in range(LANES):
            to = b.add(args[0], _number(PART * lane + 8 * TAIL))
            value = b.extract_element(tail, ir.Constant(_I32, lane))
            b.store(value, b.inttoptr(to, _I64.as_pointer()))
        turns = b.and_(b.icmp_signed(">=", tail, generation), b.not_(odd))
        bits = [b.zext(b.bitcast(lanes, ir.IntType(LANES)), _I64) for lanes in (odd, turns)]
        return b.or_(bits[0], b.shl(bits[1], _number(LANES)))

    return types.int64(types.int64, types.int64), codegen
