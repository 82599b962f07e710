"""Strings: LIKE in the kernel, and functions that create strings, through pyarrow.

Kernels create no strings.  pyarrow.compute evaluates `upper`, `||` and their like for the whole
batch before the kernel runs, over columns, literals and each other; the kernel reads the results as
columns after the schema's own.

A LIKE pattern reaches the kernel as bytes in which `%` is `tree.ANY` and `_` is `tree.ONE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from edged.data.columns import Batch, Column
from edged.expressions import tree
from edged.expressions import types as t
from edged.expressions.tree import ANY, ONE, Call, Const, Node

if TYPE_CHECKING:
    from edged.expressions.bind import Binder


def like(subject: Node, pattern: bytes) -> Call:
    """`subject LIKE pattern`; a pattern of one piece becomes a plain comparison."""
    pieces = pattern.split(b"%")
    plain = b"_" not in pattern
    op, text = "like", pattern.translate(bytes.maketrans(b"%_", bytes([ANY, ONE])))
    if plain and len(pieces) == 1:
        op, text = "eq", pattern
    elif plain and len(pieces) == 2 and not pieces[1]:
        op, text = "starts_with", pieces[0]
    elif plain and len(pieces) == 2 and not pieces[0]:
        op, text = "ends_with", pieces[1]
    elif plain and len(pieces) == 3 and not pieces[0] and not pieces[2]:
        op, text = "contains", pieces[1]
    return Call(t.BOOLEAN, subject.nullable, op, (subject, Const(t.VARCHAR, False, text)))


_Compute = Callable[..., Any]


def _join(nulls: str) -> _Compute:
    def run(*args: Any) -> Any:
        parts = [pa.scalar(a, pa.large_string()) if isinstance(a, str) else a for a in (*args, "")]
        return pc.binary_join_element_wise(*parts, null_handling=nulls)

    return run


def _substring(text: Any, start: int, length: int = 2**31) -> Any:
    return pc.utf8_slice_codeunits(text, start - 1, min(start - 1 + length, 2**31))


_TEXT: dict[str, tuple[_Compute, int, int]] = {
    "upper": (pc.utf8_upper, 1, 1),
    "lower": (pc.utf8_lower, 1, 1),
    "trim": (lambda s: pc.utf8_trim(s, " "), 1, 1),
    "ltrim": (lambda s: pc.utf8_ltrim(s, " "), 1, 1),
    "rtrim": (lambda s: pc.utf8_rtrim(s, " "), 1, 1),
    "reverse": (pc.utf8_reverse, 1, 1),
    "substring": (_substring, 2, 3),
    "replace": (lambda s, a, b: pc.replace_substring(s, a, b), 3, 3),
    "concat": (_join("skip"), 1, 100),
    "||": (_join("emit_null"), 2, 2),
}
FUNCTIONS = tuple(_TEXT)
"""Functions that make strings: those of `_TEXT`."""


def binder(name: str) -> Callable[[Binder, list[Any], str], Node]:
    """The binder of one of `FUNCTIONS`."""
    _, least, most = _TEXT[name]

    def handler(b: Binder, args: list[Any], what: str) -> Node:
        if not least <= len(args) <= most:
            b.fail(f"{what} takes {least} to {most} arguments, not {len(args)}")
        nodes = tuple(b.bind(a) for a in args)
        _check(b, name, nodes, what)
        nullable = any(n.nullable for n in nodes) and name != "concat"
        made = Call(t.VARCHAR, nullable, name, nodes)
        if made not in b.derived:
            b.derived.append(made)
        index = len(b.schema) + b.derived.index(made)
        return tree.ColumnRef(t.VARCHAR, nullable, index, name)

    return handler


def _check(b: Binder, name: str, nodes: Sequence[Node], what: str) -> None:
    for place, node in enumerate(nodes):
        if name == "substring" and place > 0:
            value = node.value if isinstance(node, Const) else None
            if not isinstance(value, int) or value < 2 - place or value >= 2**31:
                b.fail(f"{what}: start is a constant from 1 on, length one from 0 on")
        elif name == "replace" and place > 0:
            if (
                not isinstance(node, Const)
                or not isinstance(node.value, bytes)
                or (place == 1 and not node.value)
            ):
                b.fail(f"{what}: the text to replace and its replacement are string literals")
        elif node.type != t.VARCHAR:
            b.fail(f"{what} takes strings, not {node.type}")
        elif not isinstance(node, (tree.ColumnRef, Const)):
            b.fail(f"{what} works on string columns, literals and functions of those only")
    if not any(isinstance(n, tree.ColumnRef) for n in nodes):
        b.fail(f"{what} has no column in it", "write its result as a literal")


def evaluate(derived: Sequence[Call], batch: Batch) -> list[Column]:
    """The derived text columns of a batch, in order."""
    arrays: dict[int, Any] = {}
    made: list[Column] = []
    for call in derived:
        args = [_argument(arrays, batch, made, arg) for arg in call.args]
        result = _TEXT[call.op][0](*args)
        arrays[len(batch.columns) + len(made)] = result
        made.append(_column(result, call.nullable))
    return made


def _argument(arrays: dict[int, Any], batch: Batch, made: Sequence[Column], arg: Node) -> Any:
    if isinstance(arg, Const):
        return arg.value.decode() if isinstance(arg.value, bytes) else arg.value
    assert isinstance(arg, tree.ColumnRef)
    if arg.index not in arrays:
        arrays[arg.index] = _array(batch.columns[arg.index], batch.rows)
    return arrays[arg.index]


def _array(column: Column, rows: int) -> Any:
    """A string column as an Arrow array over the same memory."""
    mask = None
    if column.valid is not None:
        mask = pa.py_buffer(np.packbits(column.valid, bitorder="little"))
    buffers = [mask, pa.py_buffer(column.offsets), pa.py_buffer(column.values)]
    return pa.Array.from_buffers(pa.large_string(), rows, buffers)


def _column(array: Any, nullable: bool) -> Column:
    """An Arrow array of large strings as a column of its own memory."""
    valid = None
    if nullable:
        valid = np.array(array.is_valid().to_numpy(zero_copy_only=False), np.uint8)
    _, offsets, data = array.buffers()
    bytes_ = np.empty(0, np.uint8) if data is None else np.array(np.frombuffer(data, np.uint8))
    if len(array) == 0:
        return Column(np.empty(0, np.uint8), valid, np.zeros(1, np.int64))
    at = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return Column(bytes_, valid, np.array(at))
