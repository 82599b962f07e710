"""From typed trees to the source of one kernel.

Every kernel has the signature `SIGNATURE`:

    kernel(columns, literals, outputs, start, stop, flags, rows, info) -> int

    columns   table         the input: `Batch.addresses()`, derived text columns after it
    literals  int64[n, 2]   address and size of each text literal: their bytes are never in code
    outputs   table         as `columns`; for text, values and offsets are int64 arrays of an
                            address and a size a row
    start, stop             rows to evaluate
    flags     address       uint8 a row: in a projection the number of the fault, 0 for none; in a
                            predicate 1 where the row is kept, and 1 + the fault's number
    rows      address       int64 a row: a predicate writes the kept rows from `start` on
    info      int64[2]      a predicate adds its errors to [0], and puts the first flag in [1]

A predicate returns how many rows it kept.  Its loop runs block by block: the evaluation is free of
branches wherever SQL allows it, so that LLVM vectorises it; picking the rows follows.

AND, OR, IN and arithmetic evaluate all their operands, as DuckDB does in a projection; CASE and
COALESCE evaluate what they need.  Equal subexpressions are evaluated once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from edged.data.schema import TIMESTAMP
from edged.expressions import types as t
from edged.expressions.emit import Emitter
from edged.expressions.plugin_functions import plugin_imports
from edged.expressions.tree import Node, faults
from kernels.cpu.columns import COLUMN

SIGNATURE = (
    "int64(int64[:, ::1], int64[:, ::1], int64[:, ::1], int64, int64, int64, int64, int64[::1])"
)
"""The one type of all generated kernels."""

_IMPORTS = """\
from math import (
    acos, acosh, asin, asinh, atan, atan2, atanh, cos, cosh, degrees, exp, isfinite, isinf, isnan,
    log, log2, log10, pow, radians, sin, sinh, sqrt, tan, tanh,
)
from numba import boolean, float32, float64, int64, njit, uint64
from edged.expressions import runtime_time as time
from edged.expressions.intrinsics import *
from edged.expressions.runtime import *
from edged.expressions.runtime_lists import *
from edged.expressions.runtime_number import *
from edged.expressions.runtime_strptime import *
from edged.expressions.runtime_text import *
"""

_HEAD = """\

@njit(cache=True, nogil=True, error_model="numpy")
def kernel(columns, literals, outputs, start, stop, flags, rows, info):
"""


@dataclass(frozen=True)
class KernelSource:
    """A kernel's source, its literals and its fault messages."""

    text: str
    literals: tuple[bytes, ...]
    faults: tuple[str, ...]
    """Messages of the faults 1, 2, …."""
    fallible: bool = field(default=False)


def predicate(tree: Node) -> KernelSource:
    """The kernel that finds the rows where `tree`, a BOOLEAN, is true."""
    emitter = Emitter(indent=3)
    keep = emitter.truth(tree)
    fallible = faults(tree)
    flag = f"1 if {keep} else 0"
    if fallible:
        flag = f"err + 1 if err != 0 else ({flag})"
    emitter.line(f"store_uint8(flags, i, {flag})")
    body = [
        "    at = start",
        "    low = start",
        "    while low < stop:",
        "        high = min(low + 4096, stop)",
        "        for i in range(low, high):",
        *(["            err = 0"] if fallible else []),
        *emitter.lines,
        "        at = compact(flags, low, high, rows, at, info)",
        "        low = high",
        "    return at - start",
    ]
    return _source(emitter, body, fallible, [tree])


def projection(trees: Sequence[Node]) -> KernelSource:
    """The kernel that computes every one of `trees` into its output."""
    emitter = Emitter(indent=2)
    setup: list[str] = []
    for k, tree in enumerate(trees):
        value = emitter.emit(tree)
        setup.append(f"    out{k} = outputs[{k}, {COLUMN.values}]")
        if tree.type.variable:
            setup.append(f"    size{k} = outputs[{k}, {COLUMN.offsets}]")
            size = value.size if value.null == "False" else f"0 if {value.null} else {value.size}"
            emitter.line(f"store_int64(out{k}, i, {value.name})")
            emitter.line(f"store_int64(size{k}, i, {size})")
        else:
            emitter.line(store(tree.type, f"out{k}", value.name))
        if tree.nullable:
            setup.append(f"    valid{k} = outputs[{k}, {COLUMN.valid}]")
            emitter.line(f"store_uint8(valid{k}, i, 0 if {value.null} else 1)")
    fallible = any(faults(tree) for tree in trees)
    if fallible:
        emitter.line("store_uint8(flags, i, err)")
    body = [
        *setup,
        "    for i in range(start, stop):",
        *(["        err = 0"] if fallible else []),
        *(emitter.lines or ["        pass"]),
        "    return 0",
    ]
    return _source(emitter, body, fallible, trees)


def store(type: t.SqlType, target: str, name: str) -> str:
    """The statement that stores a value of a fixed width."""
    assert type.dtype is not None
    if type.kind == "bool":
        return f"store_uint8({target}, i, 1 if {name} else 0)"
    kind = "int64" if type.dtype is TIMESTAMP else type.dtype.name
    return f"store_{kind}({target}, i, {name})"


def _source(
    emitter: Emitter, body: Sequence[str], fallible: bool, trees: Sequence[Node]
) -> KernelSource:
    lines = [*emitter.setup(), *body]
    text = _IMPORTS + plugin_imports(trees) + _HEAD + "\n".join(lines) + "\n"
    return KernelSource(text, tuple(emitter.literals), tuple(emitter.faults), fallible)
