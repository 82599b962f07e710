"""The Python text of operations on strings that make none: parts of a string, and positions."""

from __future__ import annotations

from collections.abc import Sequence

from edged.expressions.made import Made, Operand
from edged.expressions.tree import Call

_PARTS = ("substring", "left", "right", "trim", "split_part")
_READ = ("text_integer", "text_boolean", "strptime")
OPS = (*_PARTS, *_READ, *(f"try_{op}" for op in _READ), "position")

SUBSTRING_MOST = 2**32 - 1
"""Largest start and length of a substring, as in DuckDB."""


def render(node: Call, operands: Sequence[Operand]) -> Made:
    """The Python of one of `OPS`; its operands are texts and integers."""
    flat = [part for operand in operands for part in operand if part]
    if node.op == "position":
        return Made(f"text_position({', '.join(flat)})")
    args = ", ".join([*flat, *(f"{int(x):d}" for x in node.extra)])
    read = node.op.removeprefix("try_")
    if read in _READ:
        return Made(f"{'text_time' if read == 'strptime' else read}({args})", pair=True)
    name = "part" if node.op == "split_part" else node.op
    bad = ""
    if node.op == "left":
        bad = f"{flat[2]} > {SUBSTRING_MOST}"
    if node.op == "substring":
        bad = " | ".join(
            f"({n} < {-SUBSTRING_MOST - 1}) | ({n} > {SUBSTRING_MOST})" for n in flat[2:]
        )
    return Made(f"text_{name}({args})", bad, text=True)
