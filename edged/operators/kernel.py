"""`kernel`: an operator that users write in Python, compiled and run over columns.

    [operators.edges]
    type = "kernel"
    input = "readings"
    file = "edges.py"               # below run.operators; or package = "an entry point"
    keys = ["sensor"]               # a record of state for each; default none: one record
    parameters = { limit = 0.5 }
    keep = "1d"                     # how long a record is kept without rows; default: for ever
    behind = "20s"                  # how far output times may lie behind the input's; default 0s
    on_error = "set_aside"          # or "stop": the job is paused after the beat
    trusted = false                 # true: indices and loops are not checked

The file declares state and outputs (`edged.operators.user.declarations`) and has `on_row`
(`edged.operators.user.rows`) or `on_batch` (`edged.operators.user.columns`).  docs/operators.md is
the description for users.

Invariants
1. Output depends on the rows, their order and the state, not on workers; with `on_row` also not on
   batches.
2. Rows of an output come in the order of their input rows, those of one row as it gave them.
3. A row in error changes neither state nor outputs.  It is set aside with its reason.
4. With `keep` a record is forgotten `keep` behind the watermark, and where a row lies more than
   `keep` behind the row before of its key: that row begins with the defaults.  So `keep` changes
   nothing for rows on time but where a key has paused so long.  A late row of a key whose record is
   forgotten begins a new one.

Rows of a key are processed by one worker in their order; without state, workers take ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from edged.data.columns import empty_batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, Link, State
from edged.data.gather import take
from edged.data.hashing import hash_columns
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from edged.documents import reader as doc
from edged.documents.faults import FaultCollector
from edged.documents.units import show_duration
from edged.errors import JobError, KernelError
from edged.expressions import cache
from edged.operators import _kernel_part as parts
from edged.operators._kernel_outputs import joined
from edged.operators._kernel_records import (
    RecordLane,
    defaults_of,
    keep_settings,
    lane_settings,
    record_shape,
    redistributed,
)
from edged.operators._keyed import horizon
from edged.operators._window_groups import Groups, from_state, merged, split, to_state
from edged.operators.base import InstanceOf, Operator, OperatorPlan, RefusedRows, operator
from edged.operators.user import code as user_code
from edged.operators.user.columns import ON_BATCH, column_kernel
from edged.operators.user.declarations import Declarations, declarations, parameter_values
from edged.operators.user.refusals import refusal
from edged.operators.user.row_kernel import ON_ROW, check_state_words, row_kernel
from edged.operators.user.rows import GeneratedKernel
from edged.operators.window import KEYS_MAX

SET_ASIDE, STOP = "set_aside", "stop"

REFUSED_MAX = 1000
"""Rows that a beat sets aside at most; all are counted."""


class KernelOperator(Operator):
    """A running kernel operator."""

    gauges = frozenset({"records", "first_error"})

    def __init__(self, plan: KernelPlan, workers: Workers) -> None:
        self._plan, kernel = plan, plan.kernel
        self._call = cache.kernel(kernel.text)
        self._shape = record_shape(plan.input.schema, plan.by, plan.declared.words, plan.keep_us)
        self._time = plan.input.schema.index(plan.input.time)
        self._horizon_us = WATERMARK_MIN_US
        defaults = defaults_of(plan.declared.state)
        lanes = workers.count if plan.by and plan.declared.state else 1
        self._lanes = [RecordLane(self._shape, defaults) for _ in range(lanes)]
        self._parts = [
            parts.KernelShare(plan.declared, kernel, plan.by_column, self._call)
            for _ in range(workers.count)
        ]
        self._empty = {o.name: empty_batch(o.schema) for o in plan.declared.outputs.values()}
        self._scratch = Scratch()
        self._rows = self._errors = 0
        self._rows_out = dict.fromkeys(self._empty, 0)
        self._first_error = ""

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """The rows that the code makes of the beat's rows."""
        (flow,) = inputs
        self.set_aside, self.problem = (), ""
        batches = self._empty
        if flow.batch.rows:
            used = self._process(beat, flow)
            batches = {
                name: joined(
                    [(part.outputs[j], part.count(j)) for part in used],
                    not self._keyed, self._scratch, name,
                )
                for j, name in enumerate(self._empty)
            }  # fmt: skip
            self._rows += flow.batch.rows
            for name, batch in batches.items():
                self._rows_out[name] += batch.rows
            self._note_errors(flow, used)
        if self._plan.keep_us:
            self._horizon_us = horizon(self._horizon_us, flow.watermark_us, self._plan.keep_us)
        watermark_us = self._watermark(flow.watermark_us)
        self.outputs = {name: Flow(batch, watermark_us) for name, batch in batches.items()}
        return next(iter(self.outputs.values()))

    @property
    def _keyed(self) -> bool:
        return len(self._lanes) > 1

    def _process(self, beat: BeatContext, flow: Flow) -> list[parts.KernelShare]:
        """Run the kernel over the batch; returns the parts that took rows."""
        batch, plan = flow.batch, self._plan
        columns, rows = batch.addresses(), batch.rows
        if plan.declared.state and plan.by:
            hashes = hash_columns(batch, plan.by, self._scratch, workers=beat.workers)
            used = self._parts[: len(self._lanes)]
            keeping = keep_settings(self._shape, plan.keep_us, self._horizon_us, self._time)
            calls = []
            for number, (lane, part) in enumerate(zip(self._lanes, used, strict=True)):
                settings = lane_settings(number, len(self._lanes), self._rows)
                calls.append(partial(part.run_lane, columns, lane, settings, hashes, rows, keeping))
        elif plan.declared.state or plan.by_column:
            used = self._parts[:1]
            calls = [partial(used[0].run_record, columns, self._lanes[0], rows)]
        else:
            count = beat.workers.count if rows >= PARALLEL_ROWS else 1
            used = self._parts[: min(count, len(self._parts))]
            edges = [rows * k // len(used) for k in range(len(used) + 1)]
            calls = [
                partial(part.run_range, columns, edges[k], edges[k + 1])
                for k, part in enumerate(used)
            ]
        if len(calls) > 1 and rows >= PARALLEL_ROWS:
            beat.workers.run(calls)
        else:
            for call in calls:
                call()
        return used

    def _note_errors(self, flow: Flow, used: Sequence[parts.KernelShare]) -> None:
        """Count the rows in error, and set them aside."""
        found = sorted(error for part in used for error in part.errors)
        if not found:
            return
        self._errors += len(found)
        self._first_error = self._first_error or found[0][1]
        kept = found[:REFUSED_MAX]
        rows = np.array([row for row, _ in kept], np.int64)
        batch = take(flow.batch, rows, self._scratch, "refused")
        self.set_aside = (RefusedRows(batch, tuple(reason for _, reason in kept)),)
        if self._plan.on_error == STOP:
            self.problem = f"operators.{self._plan.id}: {found[0][1]}"

    def _watermark(self, watermark_us: int) -> int:
        if watermark_us in (WATERMARK_MAX_US, WATERMARK_MIN_US):
            return watermark_us
        return max(WATERMARK_MIN_US, watermark_us - self._plan.behind_us)

    def save(self, scratch: Scratch) -> State:
        """The records, and counters."""
        if not self._plan.declared.state:
            return {}
        numbers = np.array([self._rows, self._errors], np.int64)
        kept = {"horizon": np.array([self._horizon_us], np.int64)} if self._plan.keep_us else {}
        return {"numbers": numbers, **kept, **to_state(self._records())}

    def load(self, state: State) -> None:
        """Load a saved state, for any number of workers."""
        found = split(self._shape, from_state(self._shape, state), len(self._lanes))
        for lane, records in zip(self._lanes, found, strict=True):
            lane.adopt(records)
        self._rows, self._errors = map(int, state["numbers"])
        if self._plan.keep_us:
            self._horizon_us = int(state["horizon"][0])

    def _records(self) -> Groups:
        """Copies of all records that are not forgotten, in the saved order."""
        return merged(self._shape, [lane.kept(self._horizon_us) for lane in self._lanes])

    def state_bytes(self) -> int:
        """Memory of the records."""
        return sum(lane.nbytes() for lane in self._lanes) if self._plan.declared.state else 0

    def counters(self) -> Mapping[str, int | float | str]:
        """Rows in and out, rows in error, records, and the first error."""
        out = {f"rows_out_{name}": count for name, count in self._rows_out.items()}
        found: dict[str, int | float | str] = {
            "rows": self._rows, "rows_in_error": self._errors, **out,
        }  # fmt: skip
        if self._plan.declared.state:
            found["records"] = sum(lane.live(self._horizon_us) for lane in self._lanes)
        if self._first_error:
            found["first_error"] = self._first_error
        return found

    def records(self) -> tuple[list[str], list[list[Any]]]:
        """Names and values of all records, keys first; for `edged operator test`."""
        return parts.shown_records(
            self._plan.declared, self._plan.input.schema, self._plan.by, self._shape,
            self._records(),
        )  # fmt: skip


@operator("kernel")
@dataclass(frozen=True)
class KernelPlan(OperatorPlan):
    """A checked kernel operator."""

    links: ClassVar[tuple[str, ...]] = ("input",)
    checks_code: ClassVar[bool] = True
    keys: ClassVar[frozenset[str]] = user_code.CODE_KEYS | {
        "keys", "parameters", "keep", "behind", "on_error", "trusted",
    }  # fmt: skip

    id: str
    input: Link
    output: Link
    declared: Declarations
    by: tuple[str, ...]
    """Key columns."""
    keep_us: int
    """How long a record is kept without rows; 0: for ever."""
    behind_us: int
    on_error: str
    kernel: GeneratedKernel

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> KernelPlan:
        """Check the table and its code; raises JobError, with line and column of the code."""
        return cls.of_code(path, id, document, inputs[0], user_code.find(path, document))

    @classmethod
    def of_code(
        cls, path: str, id: str, document: Mapping[str, Any], link: Link, code: user_code.UserCode
    ) -> KernelPlan:
        """As `parse`, with the code at hand."""
        if link.weight:
            advice = "a kernel cannot take rows back; aggregate them before"
            raise JobError(f"{path}.input", "is a stream of changes", advice)
        wrong, schema = FaultCollector(), link.schema
        by = wrong.attempt(lambda: doc.names(path, document, "keys", ()), ())
        for i, name in enumerate(by):
            if name not in schema:
                advice = doc.did_you_mean(name, schema.names)
                wrong.note(f"{path}.keys[{i}]", f"no column {name!r} in the input", advice)
        if len(by) > KEYS_MAX:
            wrong.note(f"{path}.keys", f"{len(by)} keys", f"at most {KEYS_MAX}")
        keep = wrong.attempt(lambda: _keep(path, document, by), 0)
        behind = wrong.attempt(lambda: doc.duration(path, document, "behind", "0s"), 0)
        on_error = wrong.attempt(
            lambda: doc.choice(path, document, "on_error", (SET_ASIDE, STOP), SET_ASIDE), ""
        )
        trusted = wrong.attempt(lambda: doc.boolean(path, document, "trusted", False), False)
        wrong.settle()
        declared = declarations(path, code)
        if not declared.outputs:
            raise code.fault(path, 1, 1, "declares no output", "add class Outputs")
        if keep and not declared.state:
            raise JobError(f"{path}.keep", "the code has no state", "leave it out")
        check_state_words(path, declared)
        values = parameter_values(path, declared.parameters, document)
        if ON_ROW in declared.functions:
            write = row_kernel
        elif ON_BATCH in declared.functions:
            if by:
                raise JobError(f"{path}.keys", "on_batch has one record for all rows", "use on_row")
            write = column_kernel
        else:
            advice = "define on_row(row, state, out) or on_batch(columns, state, out)"
            raise code.fault(path, 1, 1, "has no function that is called", advice)
        try:
            kernel = write(path, declared, values, schema, trusted)
        except RecursionError:
            problem = "an expression or a block is nested too deeply"
            raise code.fault(path, 1, 1, problem, "split it") from None
        links = _links(declared, link, behind)
        first = next(iter(links.values()))
        return cls(id, link, first, declared, by, keep, behind, on_error, kernel)

    @property
    def by_column(self) -> bool:
        """Whether the code has `on_batch`."""
        return ON_ROW not in self.declared.functions

    def outputs(self) -> Mapping[str, Link]:
        """The outputs that the file declares."""
        return _links(self.declared, self.input, self.behind_us)

    def pins(self) -> Mapping[str, Any]:
        """The digest of the code."""
        return {"sha256": self.declared.code.sha256}

    def generated(self) -> tuple[str, ...]:
        """The kernel."""
        return (self.kernel.text,)

    def fault_of(self, problem: KernelError) -> JobError:
        """What numba refuses, with line and column of the file."""
        path, line = f"operators.{self.id}", getattr(problem, "line", 0)
        if line not in self.kernel.places:
            return JobError(f"{path}.{self.declared.code.key}", str(problem))
        at = self.kernel.places[line]
        what, do = refusal(getattr(problem, "reason", str(problem)))
        return self.declared.code.fault(path, *at, what, do)

    def build(self, workers: Workers) -> KernelOperator:
        """The running operator, its kernel compiled."""
        return KernelOperator(self, workers)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        code, state = self.declared.code, self.declared.state
        how = "by column" if self.by_column else "row by row"
        by = f" by {', '.join(self.by)}" if self.by and state else ""
        record = f"{8 * self.declared.words} bytes of state{by}" if state else "no state"
        record += f", for {show_duration(self.keep_us)}" if self.keep_us else ""
        lines = [f"{how}, code {code.name} ({code.sha256[:12]}), {code.origin}", record]
        lines.append(f"rows in error are set aside{', and stop the job' * (self.on_error == STOP)}")
        if self.behind_us:
            lines.append(f"output times lie up to {show_duration(self.behind_us)} behind")
        return lines

    def redistribute(
        self,
        by: Sequence[Sequence[str]],
        states: Sequence[State],
        instances: int,
        instance_of: InstanceOf,
    ) -> list[State]:
        """Records by the hash of their keys."""
        if not self.by and instances > 1:
            return super().redistribute(by, states, instances, instance_of)
        shape = record_shape(self.input.schema, self.by, self.declared.words, self.keep_us)
        return redistributed(
            shape, self.input.schema, self.by, by[0], states, instances, instance_of
        )

    def signature_facts(self) -> list[Any]:
        """The code, the keys and their types, how long records are kept; without state nothing."""
        if not self.declared.state:
            return []
        types = [self.input.schema.field(name).to_json() for name in self.by]
        facts = [self.declared.code.sha256, types, self.by_column]
        return [*facts, self.input.time, self.keep_us] if self.keep_us else facts


def _keep(path: str, document: Mapping[str, Any], by: Sequence[str]) -> int:
    """How long records are kept.  Raises JobError."""
    if "keep" not in document:
        return 0
    if not by:
        raise JobError(
            f"{path}.keep", "there is one record for all rows", "name keys, or leave it out"
        )
    return doc.duration(path, document, "keep", least=1)


def _links(declared: Declarations, link: Link, behind_us: int) -> dict[str, Link]:
    disorder = link.disorder_us + behind_us
    return {o.name: Link(o.schema, o.time, disorder) for o in declared.outputs.values()}
