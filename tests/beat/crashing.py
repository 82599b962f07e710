"""`edged` with an operator `poison` that passes rows on, and dies of a row whose value says so.

python -m tests.beat.crashing run JOB --store DIR ...
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edged.operators.base import BeatContext, Flow, Link, Operator, OperatorPlan, operator
from edged.workers import Workers

RAISES, EXITS = -1, -2


class Poison(Operator):
    """Passes on what does not kill it."""

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        values = inputs[0].batch["value"].values
        if (values == EXITS).any():
            os._exit(139)
        if (values == RAISES).any():
            raise ArithmeticError("a value that no kernel survives")
        return inputs[0]


@operator("poison")
@dataclass(frozen=True)
class PoisonPlan(OperatorPlan):
    """A checked poison."""

    links: ClassVar[tuple[str, ...]] = ("input",)
    keys: ClassVar[frozenset[str]] = frozenset()
    id: str
    output: Link

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> PoisonPlan:
        return cls(id, inputs[0])

    def build(self, workers: Workers) -> Poison:
        return Poison()

    def describe(self) -> list[str]:
        return ["dies of some rows"]

    def signature_facts(self) -> list[Any]:
        return []


if __name__ == "__main__":
    from edged.cli import main

    main()
