"""`runs`: sorted runs in memory and in files, a directory for each in memory.

A beat's changes become one run in memory.  Runs in memory become a file when they reach HELD_BYTES
or half of the memory allowed, and files and runs are merged as `edged.tables.compaction` decides,
in slices.  Files are mapped: a probe reads no more than the pages that it needs, and pages that
memory has no room for are dropped by the operating system without a write.  docs/tables.md
describes the design.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, address
from edged.data.flow import State
from edged.data.gather import take
from edged.data.hashing import all_valid, hash_columns
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS
from edged.platform.disk import DISK_FULL, sync_files
from edged.platform.mapped import let_go, mapped_bytes
from edged.tables._cold import ColdReads
from edged.tables._find import find
from edged.tables._images import Images
from edged.tables._merge import RunMerge, number_of, sorted_run
from edged.tables._run import SUFFIX, RunFacts, SortedRun, from_records, open_run, write_run
from edged.tables.base import (
    NEVER,
    LoadingState,
    Matches,
    TableContext,
    TableScratch,
    Weights,
    table_state,
)
from edged.tables.compaction import RUNS_MAX, RunDebt, after_probe, suffix
from kernels.cpu import gather
from kernels.cpu.tables import probe as probes
from kernels.cpu.tables import sort

ROOM_BYTES = 1 << 24
"""Free disk that a merge leaves."""
HELD_BYTES = 1 << 23
"""Most bytes of records that wait in memory for a file: a snapshot copies them."""
SLICE_ROWS, SLICE_ROWS_MIN = 1 << 16, 1 << 12
"""Most rows of a slice of a merge, and so many whatever the memory."""
SORT_BYTES = 48
"""Bytes of a row that a slice sorts, beside its record: hashes and places, twice, with room to
grow."""

WEIGHT_AT = 3
"""Place of the weight in a record, in words of 4 bytes (`kernels.cpu.tables.images`)."""

Int64s = npt.NDArray[np.int64]


@table_state("runs")
class Runs(LoadingState):
    """The member; see the module."""

    def __init__(self, schema: Schema, key: tuple[str, ...], context: TableContext) -> None:
        super().__init__(schema, key, context)
        context.disk.mkdir(context.directory)
        self._shared = context.scratch or TableScratch(context.memory_bytes)
        self._pricing = context.pricing
        self._pricing.states += 1
        self._images = Images(schema, key, self._shared.images)
        self._held_most = min(HELD_BYTES, max(1, context.memory_bytes // 2))
        self._runs: list[SortedRun] = []
        """Files first, then runs in memory; the oldest first."""
        self._loading: list[SortedRun] = []
        self._apart: list[SortedRun] = []
        """Of rows being loaded those whose key has a null."""
        self._merge: RunMerge | None = None
        self._ended = False
        self._mapped_before = mapped_bytes()
        self._reads = ColdReads(context.memory_bytes)
        self._next = 1 + max([-1, *map(number_of, context.disk.listdir(context.directory))])
        self._unsynced: set[str] = set()
        self._named: set[str] = set()
        self._scratch = self._shared.rows
        self._counts = {"applied_rows": 0, "probed_keys": 0, "merged_rows": 0, "merges": 0,
                        "written_bytes": 0, "merges_without_room": 0}  # fmt: skip

    def apply(self, rows: Batch, weights: Weights) -> None:
        """See `TableState.apply`.

        Raises OSError where memory is full and its runs cannot be written; the state is unchanged.
        """
        if rows.rows == 0:
            return
        run = self._sorted(rows, weights)
        if run.facts.rows and run.facts.record_bytes >= self._held_most:
            made = self._written(run)
            assert made is not None
            self._unsynced.add(made.facts.name)
            self._add_files([made])
        elif run.facts.rows:
            self._runs.append(run)
        self._shared.trim()

    def _add_files(self, made: list[SortedRun]) -> None:
        at = len(self._runs) - self._in_memory()
        self._runs[at:at] = made

    def _sorted(self, rows: Batch, weights: Weights) -> SortedRun:
        """Changes as a run in memory that the state can take."""
        self._shared.trim()
        self._make_room()
        rows, weights = with_keys(rows, weights, self.key, self._scratch)
        run = self._run_of(rows, weights)
        self._refuse_overflow(run)
        self._counts["applied_rows"] += rows.rows
        return run

    def _run_of(self, rows: Batch, weights: Weights) -> SortedRun:
        hashes = hash_columns(rows, self.key, self._scratch, workers=self.context.workers)
        records = self._images.encode(rows, hashes, np.ascontiguousarray(weights, np.int32))
        return sorted_run(records, hashes, self._scratch)

    def load_run(self, rows: Batch, weights: Weights, whole: bool) -> None:
        """See `LoadingState.load_run`."""
        if rows.rows == 0:
            return
        run, rest = self._sorted(rows, weights), None
        valid = all_valid(rows, self.key, self._scratch) if whole else None
        if valid is not None and not valid.all():
            at = np.flatnonzero(valid == 0)
            rest = self._run_of(take(rows, at, self._scratch, "null"), weights[at])
        made = [self._written(each) for each in (run, rest)]
        self._loading += [each for each in made[:1] if each is not None]
        self._apart += [each for each in made[1:] if each is not None]
        self._shared.trim()

    def _written(self, run: SortedRun | None) -> SortedRun | None:
        if run is None or not run.facts.rows:
            return None
        disk, directory = self.context.disk, self.context.directory
        made = write_run(run, disk, directory, self._new_name())
        self._counts["written_bytes"] += made.facts.file_bytes
        return made

    def loading(self) -> list[dict[str, Any]]:
        """See `LoadingState.loading`."""
        runs = [(run, False) for run in self._loading] + [(run, True) for run in self._apart]
        return [{**run.facts.to_json(), "apart": apart} for run, apart in runs]

    def reload(self, named: Sequence[Mapping[str, Any]]) -> None:
        """See `LoadingState.reload`."""
        self._make_room()
        disk, directory = self.context.disk, self.context.directory
        self._loading, self._apart = (
            [
                open_run(disk, directory, RunFacts.from_json(row), check=True)
                for row in named
                if row["apart"] is apart
            ]
            for apart in (False, True)
        )
        self._counts["applied_rows"] += sum(run.facts.rows for run in self._loading)

    def loaded(self) -> tuple[Batch, Weights]:
        """See `LoadingState.loaded`."""
        runs = [*self._loading, *self._apart]
        total = sum(run.facts.rows for run in runs)
        hashes = self._scratch.get("load hashes", total, np.uint64)
        records = self._scratch.get("load records", total, np.int64)
        weights, at = np.empty(total, np.int32), 0
        for run in runs:
            part, base = slice(at, at + run.facts.rows), address(run.records)
            sort.collect(base, 0, hashes[part], records[part])
            weights[part] = run.records.view(np.int32)[((records[part] - base) >> 2) + WEIGHT_AT]
            at += run.facts.rows
        return self._images.decode(records, "load"), weights

    def end_load(self) -> None:
        """See `LoadingState.end_load`."""
        self._add_files(self._loading)
        self._loading, self._apart = [], []

    def _new_name(self) -> str:
        self._next += 1
        return f"{self._next - 1:016d}{SUFFIX}"

    def _make_room(self) -> None:
        """Write runs in memory where they have reached the limit; keep the runs within theirs."""
        if self._held() >= self.context.memory_bytes or len(self._runs) > 2 * RUNS_MAX:
            while self.work(SLICE_ROWS):
                pass
        if self._held() >= self.context.memory_bytes:
            self._complete(self._begin(self._in_memory(), must=True))

    def _held(self) -> int:
        return sum(run.facts.record_bytes for run in self._runs if run.in_memory)

    def _in_memory(self) -> int:
        """The number of runs in memory: a suffix."""
        return sum(run.in_memory for run in self._runs)

    def _refuse_overflow(self, run: SortedRun) -> None:
        """Raise OverflowError where a row's weight with those of all runs leaves int32.

        Where only a part of them would, all runs are merged: a later merge adds any of them.
        """
        others = [*self._runs, *self._loading]
        gross = run.facts.heaviest + sum(other.facts.heaviest for other in others)
        if gross <= sort.SUM_MAX:
            return
        first = address(run.records)
        largest = np.zeros(2, np.int64)
        probes.heaviest(_places(others), first, first + run.facts.record_bytes, largest)
        if largest[0] > sort.SUM_MAX:
            raise OverflowError("the weight of a row leaves int32")
        if largest[1] > sort.SUM_MAX:
            if self._merge is not None:
                self._complete(self._merge)
            if len(self._runs) > 1:
                self._complete(self._begin(len(self._runs), must=True))

    def probe(self, keys: Batch) -> Matches:
        """See `TableState.probe`."""
        self._shared.trim()
        hashes = hash_columns(keys, keys.schema.names, self._scratch, workers=self.context.workers)
        valid = all_valid(keys, keys.schema.names, self._scratch)
        valid = np.empty(0, np.uint8) if valid is None else valid
        images = self._images.encode_keys(keys)
        workers, places = self.context.workers, _places(self._runs)
        count = workers.count if keys.rows >= PARALLEL_ROWS // 8 else 1
        edges = [keys.rows * i // count for i in range(count + 1)]
        ahead = self._reads.begin(self._runs, places, hashes, count)
        parts = workers.run([
            partial(find, places, hashes, valid, images, a, b, scratch, asking)
            for (a, b), scratch, asking in
            zip(pairwise(edges), self._shared.ranges(count), ahead, strict=True)
        ])  # fmt: skip
        probing, found, weights = (
            parts[0] if count == 1 else map(np.concatenate, zip(*parts, strict=True))
        )
        warm_ns = keys.rows * len(self._runs) * self._pricing.probe_ns
        self._pay(keys.rows, self._reads.end(keys.rows, ahead, warm_ns))
        matches = Matches(probing, self._images.decode(found), weights)
        self._keep_the_promise()
        return matches

    def _keep_the_promise(self) -> None:
        """Let the pages of mapped files go where they are more than the memory allowed."""
        files = [run for run in self._runs if not run.in_memory]
        if files and mapped_bytes() - self._mapped_before > self.context.memory_bytes:
            for run in files:
                let_go(run.records)

    def _pay(self, keys: int, read_ns: npt.NDArray[np.float64]) -> None:
        self._counts["probed_keys"] += keys
        share = self._pricing.share
        debts = after_probe(self._debts(), keys, self._pricing.probe_ns * share, read_ns * share)
        for run, debt in zip(self._runs, debts, strict=True):
            run.paid_ns = debt.paid_ns

    def _debts(self) -> list[RunDebt]:
        return [RunDebt(run.facts.rows, run.paid_ns) for run in self._runs]

    def probing_ends(self) -> None:
        """See `TableState.probing_ends`."""
        self._ended = True

    def work(self, budget_rows: int) -> bool:
        """See `TableState.work`.  A merge whose output finds no room is given up."""
        if self._merge is not None:
            budget_rows -= self._merge_newer(budget_rows // 2)
        else:
            count = self._due()
            if count < 1 or self._begin(count) is None:
                return False
        assert self._merge is not None
        try:
            while budget_rows > 0 and self._merge is not None:
                slice_rows = min(budget_rows, self._slice_rows(self._merge))
                self._step(self._merge, slice_rows)
                budget_rows -= slice_rows
            self._keep_the_promise()
        except OSError as problem:
            self._give_up()
            if problem.errno not in DISK_FULL:
                raise
            self._counts["merges_without_room"] += 1
            return False
        return self._merge is not None

    def _merge_newer(self, budget_rows: int) -> int:
        """Merge at once, in memory, runs newer than those of the merge under way, if they have at
        most `budget_rows`: probes do not pay for them until it ends.  Returns the rows."""
        assert self._merge is not None
        first = self._runs.index(self._merge.inputs[-1]) + 1
        newer = self._runs[first:]
        debts = [RunDebt(run.facts.rows, run.paid_ns) for run in newer]
        rule = NEVER if not all(run.in_memory for run in newer) else self.context.compact
        price = self._pricing.merge_ns * self._pricing.share
        count = suffix(rule, debts, ended=self._ended, fanout=self.context.fanout, merge_ns=price)
        inputs = newer[len(newer) - count :]
        rows = sum(run.facts.rows for run in inputs)
        if count < 2 or rows > budget_rows:
            return 0
        disk, directory = self.context.disk, self.context.directory
        merge, made = RunMerge(inputs, self._scratch, disk, directory, self.context.workers), None
        while made is None:
            made = merge.step(rows)
        self._replace(merge, made)
        return rows

    def merge_all(self) -> None:
        """See `TableState.merge_all`."""
        self._complete(self._merge)
        if len(self._runs) > 1:
            self._complete(self._begin(len(self._runs), must=True))

    def _due(self) -> int:
        """How many of the newest runs are to be merged now."""
        debts = self._debts()
        rule, fanout = self.context.compact, self.context.fanout
        price = self._reads.merge_ns(self._pricing.merge_ns) * self._pricing.share
        count = suffix(rule, debts, ended=self._ended, fanout=fanout, merge_ns=price)
        if self._held() >= self._held_most:
            count = max(count, self._in_memory())
        return count

    def _begin(self, count: int, must: bool = False) -> RunMerge | None:
        """Start to merge the `count` newest runs; None where the disk has no room for the result,
        unless it `must` be tried."""
        inputs = self._runs[len(self._runs) - count :]
        size = sum(run.facts.record_bytes for run in inputs)
        name = ""
        if not all(run.in_memory for run in inputs) or size >= self._held_most:
            free = self.context.disk.free(self.context.directory)
            if not must and free < size + size // 8 + ROOM_BYTES:
                self._counts["merges_without_room"] += 1
                return None
            name = self._new_name()
        self._merge = RunMerge(
            inputs, self._scratch, self.context.disk, self.context.directory,
            self.context.workers, name,
        )  # fmt: skip
        return self._merge

    def _step(self, merge: RunMerge, budget_rows: int) -> None:
        with self._reads.merging(min(budget_rows, merge.rows)):
            made = merge.step(budget_rows)
        if made is None:
            return
        self._merge = None
        self._replace(merge, made)

    def _replace(self, merge: RunMerge, made: SortedRun) -> None:
        """Put a merge's run in the place of its inputs."""
        first = self._runs.index(merge.inputs[0])  # loaded runs may lie between the inputs
        gone = set(map(id, merge.inputs))
        behind = [run for run in self._runs[first:] if id(run) not in gone]
        self._runs[first:] = [*([made] if made.facts.rows else []), *behind]
        self._counts["merges"] += 1
        self._counts["merged_rows"] += merge.rows
        if merge.name:
            self._unsynced.add(merge.name)
            self._counts["written_bytes"] += made.facts.file_bytes

    def _slice_rows(self, merge: RunMerge) -> int:
        """Rows of a slice whose scratch takes a quarter of the memory that the states share."""
        row_bytes = SORT_BYTES + merge.bytes // max(1, merge.rows)
        fit = self._shared.limit_bytes // 4 // row_bytes
        return min(SLICE_ROWS, max(SLICE_ROWS_MIN, fit))

    def _complete(self, merge: RunMerge | None) -> None:
        try:
            while merge is not None and self._merge is merge:
                self._step(merge, self._slice_rows(merge))
        except OSError:
            self._give_up()
            raise

    def _give_up(self) -> None:
        merge, self._merge = self._merge, None
        if merge is not None:
            merge.abandon()

    def save(self) -> State:
        """See `TableState.save`."""
        held = [run for run in self._runs if run.in_memory]
        files = [run for run in self._runs if not run.in_memory]
        text = json.dumps([run.facts.to_json() for run in files]).encode()
        self._named |= self._unsynced
        self._unsynced = set()
        return {
            "files": np.frombuffer(text, np.uint8).copy(),
            "records": np.concatenate([np.empty(0, np.uint8), *(run.records for run in held)]),
            "runs": np.array(
                [(r.facts.rows, r.facts.record_bytes, r.facts.heaviest) for r in held], np.int64
            ).reshape(-1, 3),
            "paid_ns": np.array([run.paid_ns for run in self._runs]),
            "ended": np.array([self._ended]),
        }

    def load(self, state: State) -> None:
        """See `TableState.load`."""
        disk, directory = self.context.disk, self.context.directory
        runs = [
            open_run(disk, directory, RunFacts.from_json(row), check=True)
            for row in json.loads(state["files"].tobytes())
        ]
        at = 0
        for rows, size, heaviest in state["runs"].tolist():
            runs.append(from_records(state["records"][at : at + size].copy(), rows, heaviest))
            at += size
        for run, paid_ns in zip(runs, state["paid_ns"].tolist(), strict=True):
            run.paid_ns = paid_ns
        self._give_up()
        self._runs, self._ended = runs, bool(state["ended"][0])
        self._reads.cold = any(not run.in_memory for run in runs)
        self._next = 1 + max([-1, *map(number_of, disk.listdir(directory))])

    def sync(self) -> None:
        """See `TableState.sync`."""
        named = sorted(self._named)
        sync_files(self.context.disk, self.context.directory, named)
        self._named -= set(named)

    def keep(self, states: Collection[State]) -> None:
        """See `TableState.keep`."""
        kept = {run.facts.name for run in (*self._runs, *self._loading, *self._apart)}
        for state in states:
            kept |= {row["name"] for row in json.loads(state["files"].tobytes())}
        if self._merge is not None:
            kept.add(self._merge.name)
        for name in self.context.disk.listdir(self.context.directory):
            if number_of(name) >= 0 and name not in kept:
                self._named.discard(name)
                self._unsynced.discard(name)
                self.context.disk.unlink(f"{self.context.directory}/{name}")

    def memory_bytes(self) -> int:
        """See `TableState.memory_bytes`."""
        return sum(run.memory_bytes for run in self._runs)

    def disk_bytes(self) -> int:
        """See `TableState.disk_bytes`."""
        return sum(run.facts.file_bytes for run in self._runs if not run.in_memory)

    def counters(self) -> Mapping[str, int | float]:
        """See `TableState.counters`.  `rows` counts a row once for each run that has it."""
        return {
            "rows": sum(run.facts.rows for run in self._runs),
            "runs": len(self._runs),
            "files": len(self._runs) - self._in_memory(),
            "debt_ns": max((run.paid_ns for run in self._runs), default=0.0),
            **self._counts,
        }

    def close(self) -> None:
        """See `TableState.close`."""
        self._give_up()
        self._runs = []
        self._pricing.states -= 1


def _places(runs: Sequence[SortedRun]) -> Int64s:
    return np.array([run.place() for run in runs], np.int64).reshape(-1, 3)


def with_keys(
    rows: Batch, weights: Weights, key: tuple[str, ...], scratch: Scratch
) -> tuple[Batch, Weights]:
    """The rows that have no null in the key, and their weights."""
    valid = all_valid(rows, key, scratch)
    if valid is None or valid.all():
        return rows, weights
    kept = scratch.get("kept", rows.rows, np.int64)
    kept = kept[: gather.flagged(valid, kept)]
    return take(rows, kept, scratch, "valid"), weights[kept]
