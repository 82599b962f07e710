"""The slots of an operator by level, with the generated kernels that compute some of them."""

from __future__ import annotations

from dataclasses import dataclass

from edged.expressions import codegen
from edged.expressions.stages import DERIVED, Slots
from edged.expressions.tree import Call, Node


@dataclass(frozen=True)
class Level:
    """The computed slots of a level, their kernel, and the derived calls of the next level."""

    computed: tuple[tuple[int, Node], ...]
    source: codegen.KernelSource | None
    derived: tuple[tuple[int, Call], ...]


@dataclass(frozen=True)
class Stages:
    """All slots of an operator's expressions, in the order in which they are made."""

    columns: int
    width: int
    levels: tuple[Level, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The sources of the generated kernels."""
        return tuple(level.source.text for level in self.levels if level.source is not None)


def plan(slots: Slots, columns: int) -> Stages:
    """The slots by level, with the kernels of those that are computed."""
    levels = []
    for number in range(max((s.level for s in slots.slots), default=-1) + 1):
        computed, calls = [], []
        for i, slot in enumerate(slots.slots):
            if isinstance(slot.node, Call) and slot.node.op in DERIVED:
                if slot.level == number + 1 and not slot.flags:
                    calls.append((i, slot.node))
            elif slot.level == number:
                computed.append((i, slot.node))
        source = codegen.projection([node for _, node in computed]) if computed else None
        levels.append(Level(tuple(computed), source, tuple(calls)))
    return Stages(columns, len(slots.slots), tuple(levels))
