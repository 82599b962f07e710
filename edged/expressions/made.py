"""The Python text of an operation, and what its operands are called in it."""

from __future__ import annotations

from dataclasses import dataclass

ZERO = {
    "int64": "0",
    "uint64": "uint64(0)",
    "float32": "float32(0.0)",
    "float64": "0.0",
    "boolean": "False",
    "text": "0",
}
"""A placeholder value of each carrying type, for NULLs."""

Operand = tuple[str, str]
"""A variable, and the variable of a text's size."""


@dataclass(frozen=True, slots=True)
class Made:
    """An operation's value; with `pair`, a tuple of value and error flag, with `text`, of address
    and size."""

    value: str
    bad: str = ""
    pair: bool = False
    text: bool = False
