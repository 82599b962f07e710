"""`edged` with faulty operators: `poison` passes rows on and dies of a row with a fatal value;
`slow` passes on 100 000 rows a second; `stall` takes as many microseconds for a row as its value.

python -m tests.beat.crashing run JOB --store DIR ...
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edged.data.flow import BeatContext, Flow, Link
from edged.data.workers import Workers
from edged.operators.base import Operator, OperatorPlan, operator

RAISES, EXITS = -1, -2


class Poison(Operator):
    """Passes on rows without a fatal value."""

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        values = inputs[0].batch["value"].values
        if (values == EXITS).any():
            os._exit(139)
        if (values == RAISES).any():
            raise ArithmeticError("a value that no kernel survives")
        return inputs[0]


class Slow(Operator):
    """Takes 10 µs a row."""

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        time.sleep(inputs[0].batch.rows / 100_000)
        return inputs[0]


class Stall(Operator):
    """Takes long for a single row, which no row limit divides."""

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        time.sleep(float(inputs[0].batch["value"].values.sum()) / 1e6)
        return inputs[0]


@dataclass(frozen=True)
class OddPlan(OperatorPlan):
    """A checked operator without options."""

    links: ClassVar[tuple[str, ...]] = ("input",)
    keys: ClassVar[frozenset[str]] = frozenset()
    id: str
    output: Link

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> OddPlan:
        return cls(id, inputs[0])

    def describe(self) -> list[str]:
        return ["for tests"]

    def signature_facts(self) -> list[Any]:
        return []


@operator("poison")
class PoisonPlan(OddPlan):
    def build(self, workers: Workers) -> Poison:
        return Poison()


@operator("slow")
class SlowPlan(OddPlan):
    def build(self, workers: Workers) -> Slow:
        return Slow()


@operator("stall")
class StallPlan(OddPlan):
    def build(self, workers: Workers) -> Stall:
        return Stall()


if __name__ == "__main__":
    from edged.cli import main

    main()
