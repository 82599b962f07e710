"""A chain of dependent instructions: its time gives the clock of the core that runs it."""

from __future__ import annotations

from typing import Any

from kernels.registry import kernel

CYCLES = 2
"""Cycles of a turn: an exclusive or and an addition, each of one cycle, each after the other."""


@kernel("int64(int64, int64, int64)", reference="tests.naive.clock.turn")
def turn(value: int, mask: int, count: int) -> Any:
    """`count` turns, each of which needs the value of the one before."""
    for i in range(count):
        value = (value ^ mask) + i
    return value
