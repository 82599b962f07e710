"""Probing eight walks at a time, in vectors: `kernels.cpu.probe` on CPUs with AVX-512.

Each function is one program on vectors of eight, written for LLVM, since numba has no type for
them.  Entries are loaded piece by piece and put together, and the addresses to prefetch are loaded
from memory: gathers, and extracting addresses from vectors, are slower on Zen 4 and Zen 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kernels.compiler import cgutils, cpu_has, intrinsic, ir, types
from kernels.cpu.rings import ENTRY, LOW, NEXT, PARTITION_SHIFT

LANES, CHUNK_ROWS = 8, 256
"""Walks of a vector, and candidates that are probed together."""
WALKS, LOWS, ENTRIES, WALKS_BYTES = 0, 2112, 4224, 6336
"""Walks, field by field, 264 int64 each: `tag | candidate's number << 32`; the earliest time that
matches; the address of the next entry."""
NEARER, FARTHER = 1, 2
"""Next entries are prefetched to the first cache, or to the second only."""
ROWS = 8 * CHUNK_ROWS
"""Bytes from a candidate's count to its row; above 32 bits stands its partition, if `named`."""
PLAIN = np.int64(1) << 61
"""Differences of times, bounds and disorder below this do not overflow."""
FAST = cpu_has("avx512vl")
"""Whether the CPU compresses vectors in an instruction.  LLVM expands it for others."""

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
        """Call an LLVM function."""
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
        """The value at an address."""
        at = self.builder.add(address, _number(offset))
        value = self.builder.load(self.builder.inttoptr(at, kind.as_pointer()))
        value.align = 1
        return value

    def store(self, address: Any, vector: Any, offset: int = 0) -> None:
        """Store a vector at an address."""
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

    def prefetch(self, address: Any, cache: int) -> None:
        """Prefetch a line: 3 to the first cache, 2 to the second."""
        flags = [ir.Constant(_I32, flag) for flag in (0, cache, 1)]
        pointer = self.builder.inttoptr(address, ir.PointerType())
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, *flags)

    def first(self, count: Any) -> Any:
        """The first `count` lanes."""
        places = ir.Constant(_of(_I64), list(range(LANES)))
        return self.builder.icmp_signed("<", places, self.splat(count))


def _look(
    v: _Vectors, log: Any, other: tuple[Any, ...], kept: Any, among: Any, entries: list[Any],
    walks: Any, lows: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Look at an entry of each walk: append what matches to the log, keep the walks that go on, and
    prefetch their next entries.  Returns the lanes that match and the lanes that go on."""
    b, (ring, mask, tail, width, disorder, far) = v.builder, other
    when, behind = v.pairs(entries)
    following = v.wide(v.together([v.load(entry, _I32, NEXT) for entry in entries]))
    late = b.icmp_unsigned("<=", b.sub(when, lows), v.splat(width))
    same = b.icmp_unsigned("==", b.and_(b.xor(behind, walks), v.splat(LOW)), v.splat(0))
    meets = b.and_(b.and_(late, same), among)
    pairs = b.or_(b.and_(behind, v.splat(-1 << 32)), b.lshr(walks, v.splat(32)))
    v.store(log, v.compress(pairs, meets))
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


@intrinsic
def begin(
    typingctx: Any, at: Any, name: Any, count: Any, records: Any, base: Any, named: Any, back: Any,
    counts: Any, kept: Any, log: Any, ring: Any, mask: Any, tail: Any, width: Any, disorder: Any,
    far: Any,
) -> Any:  # fmt: skip
    """Begin the walks of up to eight candidates at `at` (`count` >= 1, the first has the number
    `name`) with their first entries.  Notes at `counts` whether each matches and, ROWS bytes
    behind, its row.  Eight elements of each array are written.  Returns a byte each: how many
    match, how many go on, how many have times of which differences may overflow."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at, name, count, records, base, named, back, counts, kept, log, *other = args
        ring, mask = other[:2]
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
        v.store(counts, b.or_(rows, partitions), ROWS)
        numbers = ir.Constant(_of(_I64), list(range(LANES)))
        names = b.shl(b.add(v.splat(name), numbers), v.splat(32))
        walks = b.or_(b.and_(tags, v.splat(LOW)), names)
        meets, goes_on = _look(v, log, tuple(other), kept, among, entries, walks, lows)
        v.store(counts, b.zext(meets, _of(_I64)))
        wild = b.icmp_unsigned(">=", b.add(times, v.splat(int(PLAIN))), v.splat(2 * int(PLAIN)))
        return v.counts(meets, goes_on, b.and_(wild, among))

    return types.int64(*[types.int64] * 16), codegen


@intrinsic
def step(
    typingctx: Any, at: Any, count: Any, kept: Any, log: Any, ring: Any, mask: Any, tail: Any,
    width: Any, disorder: Any, far: Any,
) -> Any:  # fmt: skip
    """The next link of up to eight walks, whose fields begin at `at`.  Returns how many match and,
    in the next byte, how many go on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at, count, kept, log, *other = args
        v = _Vectors(builder)
        walks, lows = v.load(at, _of(_I64), WALKS), v.load(at, _of(_I64), LOWS)
        entries, among = v.numbers(at, ENTRIES), v.first(count)
        return v.counts(*_look(v, log, tuple(other), kept, among, entries, walks, lows))

    return types.int64(*[types.int64] * 10), codegen


@intrinsic
def lay(typingctx: Any, to_mine: Any, to_met: Any, mine: Any, met: Any, name: Any) -> Any:
    """Move eight pairs of int64, those at `mine` without their high halves; returns the number of
    pairs before one whose high half is not `name`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v, b = _Vectors(builder), builder
        named = v.load(args[2], _of(_I64))
        v.store(args[0], b.and_(named, v.splat(LOW)))
        v.store(args[1], v.load(args[3], _of(_I64)))
        other = b.icmp_unsigned("!=", v.narrow(b.lshr(named, v.splat(32))), v.splat(args[4], _I32))
        others = b.or_(b.zext(b.bitcast(other, ir.IntType(LANES)), _I64), _number(1 << LANES))
        return b.cttz(others, ir.Constant(ir.IntType(1), 1))

    return types.int64(*[types.int64] * 5), codegen
