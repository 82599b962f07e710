"""What an operator is: a checked plan, and the running thing built from it.

One file per operator kind holds both, and registers itself:

    @operator("filter")
    class FilterPlan(OperatorPlan): ...

`OPERATORS.load()` imports every module of this package and every installed plug-in
(`governors.registry`); no central switch is edited.

A link between operators carries, each beat, a `Flow`: a batch and the watermark that holds after
it.  Statically it is a `Link`: schema, the event-time column, and how far behind the watermark's
maximum rows may run (`disorder_us`, what a probe must look past).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from edged.data.flow import BeatContext, Flow, Link, State
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from governors.registry import Registry


class Operator(ABC):
    """A running operator.  `run` is called once a beat, also with no rows: watermarks move."""

    @abstractmethod
    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """One beat's work.  The returned batch may live in scratch memory until the next call."""

    def save(self, scratch: Scratch) -> State:
        """The state, as copies that later beats do not touch.  Stateless: empty.

        They may live in `scratch` and are then good until the next `save` with it: memory that is
        new costs more than the copying.
        """
        return {}

    def load(self, state: State) -> None:  # noqa: B027 - stateless operators keep it
        """Take over a state that `save` of the same version returned."""

    def state_bytes(self) -> int:
        """Bytes of memory that the state occupies."""
        return 0

    def counters(self) -> Mapping[str, int | float | str]:
        """Figures for people: matches, groups, rows in error."""
        return {}


class Placed(Operator):
    """An operator for which several kernels do the same, on one processor or on another."""

    @property
    @abstractmethod
    def kernel(self) -> str:
        """The kernel that runs."""

    @property
    @abstractmethod
    def pinned(self) -> bool:
        """Whether the document has chosen it."""

    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Tuples that the last `run` took, and tuples that the state holds a side."""

    @abstractmethod
    def switch(self, kernel: str) -> None:
        """Go on with another kernel, between two beats; the state comes along and no result is
        lost or repeated.  Raises JobError where there is none; then all stays as it was."""


class OperatorPlan(ABC):
    """A checked operator of a job.  Made by `parse`, which raises JobError with the exact path."""

    kind: ClassVar[str]
    links: ClassVar[tuple[str, ...]]
    """Keys of the document that name inputs: `("input",)`, `("left", "right")`; a key whose value
    is a list of names (union's `inputs`) is written with a star: `("*inputs",)`."""
    keys: ClassVar[frozenset[str]]
    """All other keys that the document may hold beside `type` and the links."""
    version: ClassVar[int] = 1
    """Version of the saved state's layout."""
    waits_for_time: ClassVar[bool] = False
    """Whether it holds results back until the watermark lets them go."""

    id: str
    output: Link

    @classmethod
    @abstractmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> OperatorPlan:
        """Check `document` (links resolved to `inputs`, unknown keys already refused).

        Raises JobError at `path` or below for everything that is wrong.
        """

    @property
    def placed(self) -> bool:
        """Whether the running operator is a `Placed` one whose kernel the document leaves open."""
        return False

    def generated(self) -> tuple[str, ...]:
        """Sources of the kernels that were generated for it and that `build` compiles."""
        return ()

    @abstractmethod
    def build(self, workers: Workers) -> Operator:
        """The running operator, its kernels compiled."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Lines for `edged explain`: what it does, with which kernel, what state it keeps."""

    def ahead_us(self) -> tuple[int | None, ...]:
        """Per input: how far its rows may run ahead of the other inputs before they only swell
        the state (a join's bounds); None where that does not matter."""
        return ()

    @abstractmethod
    def signature_facts(self) -> list[Any]:
        """JSON-able facts that the saved state depends on (schemas, keys, sizes)."""

    def signature(self) -> str:
        """Equal signatures mean: the state can be carried over to a replaced job."""
        facts = repr([self.kind, self.version, self.signature_facts()])
        return hashlib.sha256(facts.encode()).hexdigest()[:16]


OPERATORS: Registry[type[OperatorPlan]] = Registry("edged.operators", "edged.operators", "operator")
_Plan = TypeVar("_Plan", bound=type[OperatorPlan])


def operator(kind: str) -> Callable[[_Plan], _Plan]:
    """Class decorator: register an OperatorPlan under the `type` that documents use."""

    def register(plan: _Plan) -> _Plan:
        OPERATORS.register(kind, plan, plan.__module__)
        plan.kind = kind
        return plan

    return register
