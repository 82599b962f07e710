"""Interface of operators: a checked plan, and the running operator built from it.

One file per operator kind holds both, and registers itself:

    @operator("filter")
    class FilterPlan(OperatorPlan): ...

`OPERATORS.load()` imports every module of this package and every installed plug-in
(`governors.registry`).

Each beat, a link between operators carries a `Flow`: a batch and the watermark that holds after it.
Statically it is a `Link`: schema, event-time column, and how far a row may lie behind the maximum
event time (`disorder_us`).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.flow import BeatContext, Flow, Link, State
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError, KernelError
from edged.platform.disk import Disk
from edged.tables.base import TableScratch
from edged.tables.costs import MergePricing
from governors.registry import Registry

InstanceOf = Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.int64]]
"""The instance of each hash of key columns, as a link deals rows out."""


@dataclass(frozen=True, slots=True)
class OperatorPlace:
    """Where an operator's state beside its memory lives, and how much memory it may take."""

    disk: Disk
    directory: str
    """A directory of its own, made where it is missing."""
    workers: Workers
    memory_bytes: int
    """Most memory of each of its table states."""
    scratch: TableScratch | None = None
    """Scratch memory that all table states of the job share."""
    pricing: MergePricing = field(default_factory=MergePricing)
    """What their probes and merges cost."""
    merging_us: int = 1_000_000
    """Longest time that a beat may spend merging one of them."""
    latency_us: int = 1_000_000
    """The job's latency promise."""
    wake: Callable[[], None] = lambda: None
    """Wakes the heart; any thread."""


@dataclass(frozen=True, slots=True)
class RefusedRows:
    """Rows of an operator's input that it could not process."""

    batch: Batch
    reasons: Sequence[str]
    """Of each row."""
    input: int = 0


class Operator(ABC):
    """A running operator.  `run` is called once a beat, also without rows, because watermarks
    advance."""

    gauges: ClassVar[frozenset[str]] = frozenset()
    """Names in `counters` whose value may fall.  All other numbers only grow, and go on where the
    operator of this name before it ended."""
    outputs: Mapping[str, Flow] = {}
    """The flow of each of the plan's `outputs`, set by every `run`; each is valid as long as the
    flow that `run` returns."""
    set_aside: Sequence[RefusedRows] = ()
    """Rows that the last `run` could not process; they go to the store's quarantine."""
    problem: str = ""
    """Why the last `run` wants the job to be paused after the beat; empty: it goes on."""

    @abstractmethod
    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """One beat's work.  The returned batch may live in scratch memory until the next call."""

    def save(self, scratch: Scratch) -> State:
        """The state, as copies that later beats do not touch.  Stateless: empty.

        The copies may live in `scratch` and are then valid until the next `save` with it; fresh
        memory costs more than the copying.
        """
        return {}

    def load(self, state: State) -> None:  # noqa: B027 - stateless operators keep it
        """Load a state that `save` of the same version returned."""

    def state_bytes(self) -> int:
        """Bytes of memory that the state occupies."""
        return 0

    def counters(self) -> Mapping[str, int | float | str]:
        """Figures for the status: matches, groups, rows in error; see `gauges`."""
        return {}

    def place(self, place: OperatorPlace) -> None:
        """Take the place of its state files.  Called once, before `load` and `run`."""
        return

    def sync(self) -> None:
        """Make the files that the last `save` names durable.  May be called on another thread,
        beside `run`."""
        return

    def keep(self, states: Sequence[State]) -> None:
        """Delete the files that neither the running state nor one of these saved states needs.  Of
        each only the arrays whose names end in `files` are given."""
        return

    def disk_bytes(self) -> int:
        """Bytes of the state's files."""
        return 0

    def close(self) -> None:  # noqa: B027 - only state files need it
        """Release the state's files; they stay."""


class Placed(Operator):
    """An operator with several equivalent kernels, on one processor or another."""

    @property
    @abstractmethod
    def kernel(self) -> str:
        """The kernel that runs."""

    @property
    @abstractmethod
    def pinned(self) -> bool:
        """Whether the document names the kernel."""

    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Tuples of the last `run`, and tuples of the state a side."""

    @abstractmethod
    def switch(self, kernel: str) -> None:
        """Continue with another kernel, between two beats; it takes over the state, and no result
        is lost or repeated.  Raises JobError where the kernel is unavailable; nothing changes then.
        """


class Deferring(Operator):
    """An operator that may leave rows to later beats, so that its output in one beat is bounded.

    Until all of them are processed, the job takes no new rows, its beats follow each other at once,
    and the operator's watermark stands still.  How many rows a beat takes is in its record.
    """

    held = False
    """Whether the next `run` must not process rows that wait: a later operator has some, too."""
    recorded: Sequence[int] | None = None
    """Rows of each input that the next `run` processes, from a record; None: as `decides` says."""
    decides = True
    """Whether the next `run` decides how many rows it processes.  If not, and nothing is recorded,
    it processes all that it is given."""
    processed: Sequence[int] | None = None
    """Rows of each input that the last `run` processed, where some waited before or after it; what
    the record needs."""

    @abstractmethod
    def bound(self, limit_bytes: int) -> None:
        """Bound the memory that one beat's output takes; without a call it is not bounded."""

    @abstractmethod
    def waiting(self) -> int:
        """Rows that wait."""


class Loading(Operator):
    """An operator that can load the first rows of a table past the log (`edged.beat.table_loads`).

    It writes the rows into files, which the beat's record names; a replay gives it the files in
    place of the rows.  Both give the same output.
    """

    loads: frozenset[int] = frozenset()
    """Inputs of the next `run` whose rows the log does not get."""
    named: Mapping[str, Any] | None = None
    """What a record has as `made`; the batches of `loads` are empty then.  None: it makes
    files."""

    @property
    @abstractmethod
    def can_load(self) -> bool:
        """Whether its states can: not every member of `edged.tables` does."""

    made: Mapping[str, Any] = {}
    """By state, as a path below the operator's directory, the files of the last `run` as a list of
    JSON objects with a `name` each; and other facts that a replay needs."""


class Apart(Operator):
    """An operator that runs in processes of its own.  It may be unable to run for a while, and may
    leave or set aside rows of a run.  It has one input.

    `edged.beat.schedules` lets its input wait meanwhile and records what a replay needs.
    """

    replays = False
    """Whether the next `run` repeats one of a record."""
    recorded: Any = None
    """The `note` of that one."""
    note: Any = None
    """What a replay of the last run needs, as JSON values."""
    left: Batch | None = None
    """Rows of the last run that are to come again.  The watermark stands still then."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether it can run now.  What it needs begins to start with the call; it calls
        `OperatorPlace.wake` when that is there."""

    @abstractmethod
    def await_ready(self) -> None:
        """Return when it can run.  Raises EdgedError where it cannot."""

    @abstractmethod
    def due_us(self) -> int | None:
        """Monotonic time at which to ask `ready` again where it is not; None: it calls `wake`."""


class OperatorPlan(ABC):
    """A checked operator of a job.  Made by `parse`, which raises JobError with the exact path."""

    kind: ClassVar[str]
    links: ClassVar[tuple[str, ...]]
    """Keys of the document that name inputs: `("input",)`, `("left", "right")`.  A star marks a key
    whose value is a list of names: `("*inputs",)` of union."""
    keys: ClassVar[frozenset[str]]
    """All other keys that the document may have beside `type` and the links."""
    version: ClassVar[int] = 1
    """Version of the saved state's layout."""
    table_links: ClassVar[frozenset[str]] = frozenset()
    """Those keys of `links` that may name tables."""
    waits_for_time: ClassVar[bool] = False
    """Whether results are held back until the watermark passes."""
    cycles: ClassVar[tuple[float, float] | None] = None
    """Cycles a beat, and a row that it reads, on the reference core of `edged.simulate.work`; None:
    not measured, simulated as a window."""
    checks_code: ClassVar[bool] = False
    """Whether its `generated` kernels come from code of users, which `validate` compiles."""
    rows_out: ClassVar[float] = 1.0
    """Rows out a row read, as simulations assume; of an operator with a window of rows the load
    says how many match."""

    id: str
    output: Link

    def through_problem(self) -> str:
        """Why it cannot be in a hop that keeps no log (durability `through`); empty: it can, has no
        state, and passes `Flow.origins` on."""
        return f"{self.kind} may have state"

    @classmethod
    @abstractmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> OperatorPlan:
        """Check `document`; its links are resolved to `inputs` and unknown keys are refused
        already.

        Raises JobError at `path` or below.
        """

    def outputs(self) -> Mapping[str, Link]:
        """Its named outputs, which later parts read as `<id>.<name>`; empty: it has one output.

        `output`, read as `<id>`, is the first of them.
        """
        return {}

    @property
    def placed(self) -> bool:
        """Whether the running operator is `Placed` and the document leaves its kernel open."""
        return False

    def generated(self) -> tuple[str, ...]:
        """Sources of the generated kernels that `build` compiles."""
        return ()

    def fault_of(self, problem: KernelError) -> JobError:
        """The fault of the document behind a generated kernel that does not compile."""
        return JobError(f"operators.{self.id}", str(problem))

    def pins(self) -> Mapping[str, Any]:
        """Keys that the job's plan adds to this operator's table: what the document names by a name
        whose meaning may change."""
        return {}

    @abstractmethod
    def build(self, workers: Workers) -> Operator:
        """The running operator, its kernels compiled."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Lines for `edged explain`: function, kernel, state."""

    def ahead_us(self) -> tuple[int | None, ...]:
        """Per input: how far its rows may run ahead of the other inputs before they only enlarge
        the state (a join's bounds); None where the input is unbounded."""
        return ()

    def waits(self) -> Sequence[tuple[int, int]]:
        """Pairs of inputs of which the first, a stream, waits for the first rows of the second, a
        table."""
        return ()

    def table_states(self) -> int:
        """Number of its table states, which share the job's memory."""
        return 0

    def window_us(self) -> int:
        """Event time that its window of rows spans; 0: it keeps no rows."""
        return 0

    def window_schemas(self) -> Sequence[Schema]:
        """The columns that the window of each input keeps; empty: it keeps no rows."""
        return ()

    def redistribute(
        self,
        by: Sequence[Sequence[str]],
        states: Sequence[State],
        instances: int,
        instance_of: InstanceOf,
    ) -> list[State]:
        """The saved states of `instances` new instances of this operator, from those of its old
        ones, which hold disjoint keys.

        Each row or group goes to the instance of its hash by the columns `by` of its input.  Raises
        JobError where its state cannot be dealt out.
        """
        problem = f"the state of a {self.kind} cannot be dealt out to other instances"
        raise JobError(f"operators.{self.id}", problem, "keep the number of its instances")

    @abstractmethod
    def signature_facts(self) -> list[Any]:
        """JSON values that the saved state depends on (schemas, keys, sizes)."""

    def signature(self) -> str:
        """Equal signatures mean that a replaced job can take over the state."""
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
