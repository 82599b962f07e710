"""TPC-DS query 4 over tables that change: the experiment of Epsio's article, for one arm.

    customer ─┐
              ├ join on customer ─┐
    sales ────┘                   ├ join on date ─► sums by customer and year ─► query 4
    date_dim ─────────────────────┘

Three channels (store, catalog, web) make six joins, each of two states (`edged.tables`).  In a join
a change of one side meets the other side as it stands, and is then applied to its own.  Population
sends `date_dim`, then in turns a beat of customers and one of each channel's sales, so that the
customers are complete long before the sales.  Then customers and sales change: both are retracted
and inserted.  At last come beats of probes of the sales by customers, which pay for what was not
merged.

An arm says when runs are merged; it is `always`, `off` (never), `off_then_merge` (never, then all
at the end of the population), `seed` or `auto`.  `python -m edged.bench.query4` runs one arm in
this process and prints JSON, so that the CPU time and a memory limit are its own.

Money is int64 cents.  YearTotals are summed exactly.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from edged.bench.memory_limit import limit_memory
from edged.bench.tpcds import CHANNELS, CUSTOMER, sales_columns
from edged.data.columns import Batch, Column
from edged.data.gather import take
from edged.data.schema import INT64, STRING, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.platform.disk import SystemDisk
from edged.tables.base import TABLES, Matches, TableContext, TableScratch, TableState, Weights

ARMS = {"always": "always", "off": "never", "off_then_merge": "never", "seed": "seed",
        "auto": "auto"}  # fmt: skip
"""The rule of merging of each arm."""
CUSTOMERS_A_BEAT, SALES_A_BEAT = 10_000, 100_000
LATER_BEATS, LATER_PROBES = 400, 2_000
LATER_S = 20.0
"""Longest time of the later beats; the costs of all follow from those that were made."""
YEARS = 4096
"""A group is customer * YEARS + year."""
STEP_ROWS = 1 << 20
PENDING_ROWS = 100_000
"""Results that wait to be summed."""

Int64s = npt.NDArray[np.int64]
_compute: Any = pyarrow.compute
_AMOUNTS = tuple(Field(name, INT64, True) for name in ("list", "wholesale", "discount", "sales"))
CUSTOMER_SCHEMA = Schema.of(
    Field(name, INT64 if i == 0 else STRING, i > 0) for i, name in enumerate(CUSTOMER)
)
SALES_SCHEMA = Schema.of((Field("customer", INT64, True), Field("date", INT64, True), *_AMOUNTS))
DATE_SCHEMA = Schema.of((Field("date", INT64), Field("year", INT64)))


@dataclass(frozen=True)
class Arm:
    """What one run does."""

    directory: str
    """The tables (`edged.bench.tpcds.generate`)."""
    member: str
    arm: str
    state: str
    """Directory for the states; empty at first."""
    memory_bytes: int
    """Memory of all states together; their scratch takes half as much more."""
    limit_bytes: int = 0
    """Limit on the process's new memory, page cache included; 0: none."""
    workers: int = 2
    later_beats: int = LATER_BEATS


class Costs:
    """CPU and wall time by phase, s."""

    def __init__(self) -> None:
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self.wall_s: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """Charge what runs inside to `phase`."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu_s[phase] += time.process_time() - cpu
        self.wall_s[phase] += time.perf_counter() - wall


class ChangeJoin:
    """An inner join of two states over changes of both."""

    def __init__(
        self, states: Sequence[TableState], keys: tuple[str, str], costs: Costs, scratch: Scratch
    ) -> None:
        self.states, self._keys, self._costs = list(states), keys, costs
        self._scratch = scratch

    def change(self, side: int, rows: Batch, weights: Weights) -> tuple[Matches, Batch, Weights]:
        """Apply changes of one side.  Returns what they met on the other, the changed rows beside
        it, and the weights of the results; all valid until the next call."""
        key = Batch(
            Schema.of((rows.schema.field(self._keys[side]),)), rows.rows, (rows[self._keys[side]],)
        )
        with self._costs.of("probe"):
            found = self.states[1 - side].probe(key)
            own = take(rows, found.probe, self._scratch)
            products: Weights = found.weights * weights[found.probe]
        with self._costs.of("write"):
            self.states[side].apply(rows, weights)
        return found, own, products

    def merge(self) -> None:
        """Let both states merge what their rule says is due."""
        with self._costs.of("merge"):
            for state in self.states:
                while state.work(STEP_ROWS):
                    pass

    def complete(self, side: int) -> None:
        """A side has all its rows."""
        self.merge()
        self.states[1 - side].probing_ends()


class YearTotals:
    """Sums by group, exact: twice the cents of list - wholesale - discount + sales.

    A group is there as long as rows with a sum are: the weights of its rows are counted.
    """

    def __init__(self) -> None:
        self._parts: list[list[Int64s]] = []

    def add(self, customer: Int64s, year: Int64s, sales: Batch, weights: Weights) -> None:
        """Add a beat's results; a row with a null amount adds nothing, as in SQL."""
        columns = sales.columns[2:]
        valid = np.logical_and.reduce([c.valid for c in columns if c.valid is not None]) > 0
        listed, wholesale, discount, price = (c.values for c in columns)
        counts = weights.astype(np.int64)
        value = (listed - wholesale - discount + price) * counts
        self._parts.append([(customer * YEARS + year)[valid], value[valid], counts[valid]])
        if sum(part[0].size for part in self._parts[1:]) > PENDING_ROWS:
            self._parts = [self._merged()]

    def sums(self) -> tuple[Int64s, Int64s]:
        """YearTotals, ascending, and their sums."""
        keys, sums, counts = self._merged()
        return keys[counts > 0], sums[counts > 0]

    def _merged(self) -> list[Int64s]:
        given, values, counts = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        keys, where = np.unique(given, return_inverse=True)
        totals = [np.zeros(keys.size, np.int64) for _ in range(2)]
        for total, part in zip(totals, (values, counts), strict=True):
            np.add.at(total, where, part)
        return [keys, *totals]


class Query4:
    """The six joins of one arm, and their groups."""

    def __init__(self, arm: Arm, costs: Costs) -> None:
        self.arm, self._costs = arm, costs
        self._workers = Workers(arm.workers)
        self._share = arm.memory_bytes // (4 * len(CHANNELS))
        first, second = (TableScratch(arm.memory_bytes // 4) for _ in range(2))
        taken = (Scratch(), Scratch())
        # what the first joins find is the second ones' input: their scratch is apart
        self.by_customer = {
            name: ChangeJoin(
                (
                    self._state(f"{name}/customer", CUSTOMER_SCHEMA, CUSTOMER[0], first),
                    self._state(f"{name}/sales", SALES_SCHEMA, "customer", first),
                ),
                (CUSTOMER[0], "customer"),
                costs,
                taken[0],
            )
            for name in CHANNELS
        }
        self.by_date = {
            name: ChangeJoin(
                (
                    self._state(f"{name}/sold", SALES_SCHEMA, "date", second),
                    self._state(f"{name}/date", DATE_SCHEMA, "date", second),
                ),
                ("date", "date"),
                costs,
                taken[1],
            )
            for name in CHANNELS
        }
        self.groups = {name: YearTotals() for name in CHANNELS}

    def dates(self, rows: Batch) -> None:
        """All of date_dim."""
        for join in self.by_date.values():
            join.change(1, rows, _ones(rows.rows))
            join.complete(1)

    def customers(self, rows: Batch, weights: Weights) -> None:
        """A beat of customers, in each channel."""
        for name, join in self.by_customer.items():
            found, _, products = join.change(0, rows, weights)
            self._sold(name, found.rows, products)

    def sales(self, name: str, rows: Batch, weights: Weights) -> None:
        """A beat of a channel's sales."""
        _, own, products = self.by_customer[name].change(1, rows, weights)
        self._sold(name, own, products)

    def customers_complete(self) -> None:
        """All customers are there."""
        for join in self.by_customer.values():
            join.complete(0)

    def merge_all(self) -> None:
        """Merge every state into one run, whatever the arm's rule."""
        for joins in (self.by_customer, self.by_date):
            for join in joins.values():
                with self._costs.of("merge"):
                    for state in join.states:
                        state.merge_all()

    def probe_sales(self, customers: Int64s) -> int:
        """Probe each channel's sales by customers, and merge what is due then; rows found."""
        key = Batch(Schema.of((Field("customer", INT64),)), customers.size, (Column(customers),))
        rows = 0
        for join in self.by_customer.values():
            rows += join.states[1].probe(key).weights.size
            while join.states[1].work(STEP_ROWS):
                pass
        return rows

    def answer(self) -> list[list[str | None]]:
        """Query 4's rows: customer id, first name, last name, flag; sorted."""
        columns = []
        for name in CHANNELS:
            keys, sums = self.groups[name].sums()
            for year in (2001, 2002):
                chosen = keys % YEARS == year
                columns.append(dict(zip((keys[chosen] // YEARS).tolist(),
                                        sums[chosen].tolist(), strict=True)))  # fmt: skip
        store, store_next, catalog, catalog_next, web, web_next = columns
        chosen = [
            c
            for c in set.intersection(*map(set, columns))
            if min(store[c], catalog[c], web[c]) > 0
            and catalog_next[c] / catalog[c] > store_next[c] / store[c]
            and catalog_next[c] / catalog[c] > web_next[c] / web[c]
        ]
        key = Batch(
            Schema.of((Field("customer", INT64),)), len(chosen),
            (Column(np.array(sorted(chosen), np.int64)),),
        )  # fmt: skip
        found = self.by_customer["store_sales"].states[0].probe(key).rows.to_arrow()
        rows = [list(row.values())[1:5] for row in found.to_pylist()]
        return sorted(rows, key=lambda row: [value or "" for value in row])

    def counters(self) -> dict[str, float]:
        """The states' counters, summed."""
        total: defaultdict[str, float] = defaultdict(float)
        for joins in (self.by_customer, self.by_date):
            for state in (s for join in joins.values() for s in join.states):
                total["disk_bytes"] += state.disk_bytes()
                for name, value in state.counters().items():
                    total[name] += value
        return dict(total)

    def _sold(self, name: str, sales: Batch, weights: Weights) -> None:
        found, own, products = self.by_date[name].change(0, sales, weights)
        with self._costs.of("group"):
            year = found.rows["year"].values
            self.groups[name].add(own["customer"].values, year, own, products)

    def _state(self, name: str, schema: Schema, key: str, scratch: TableScratch) -> TableState:
        context = TableContext(
            SystemDisk(), f"{self.arm.state}/{name}", self._workers, self._share,
            ARMS[self.arm.arm], scratch=scratch,
        )  # fmt: skip
        return TABLES[self.arm.member](schema, (key,), context)


def _ones(rows: int) -> Weights:
    return np.ones(rows, np.int32)


def read_tables(directory: str) -> dict[str, pa.Table]:
    """The five tables, under the names of their columns in TPC-DS."""
    names = ("customer", "date_dim", *CHANNELS)
    return {name: pa.parquet.read_table(f"{directory}/{name}.parquet") for name in names}


def changed(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The tables after the changes: each 97th customer has another last name, of the sales each
    101st is gone and the one after it doubled."""
    out, customer = dict(tables), tables["customer"]
    renamed = pa.array(np.arange(customer.num_rows) % 97 == 0)
    last = _compute.if_else(renamed, "Changed", customer["c_last_name"])
    at = customer.schema.get_field_index("c_last_name")
    out["customer"] = customer.set_column(at, "c_last_name", last)
    for name in CHANNELS:
        place = np.arange(tables[name].num_rows) % 101
        out[name] = pa.concat_tables(
            [tables[name].filter(pa.array(place != 0)), tables[name].filter(pa.array(place == 1))]
        )
    return out


def batch_of(table: pa.Table, schema: Schema) -> Batch:
    """A table as a batch; columns by position, decimals as cents."""
    columns = []
    for field, column in zip(schema, table.columns, strict=True):
        if pa.types.is_decimal(column.type):
            column = _compute.multiply(column, pa.scalar(Decimal(100)))
        columns.append(column.cast(field.dtype.arrow))
    one = pa.table(columns, names=[f.name for f in schema]).combine_chunks()
    batches = one.to_batches()
    empty = pa.RecordBatch.from_pylist([], schema=one.schema)
    return Batch.from_arrow(batches[0] if batches else empty, schema)


def _beats(batch: Batch, rows: int) -> Iterator[Batch]:
    for start in range(0, batch.rows, rows):
        yield batch.slice(start, min(batch.rows, start + rows))


def run_arm(arm: Arm) -> dict[str, Any]:
    """Populate, change, probe; the figures, the groups' sums and query 4's rows each time."""
    TABLES.load()
    tables = read_tables(arm.directory)
    customers = batch_of(tables["customer"], CUSTOMER_SCHEMA)
    dates = batch_of(tables["date_dim"], DATE_SCHEMA)
    sales = {name: batch_of(tables[name].select(sales_columns(name)), SALES_SCHEMA)
             for name in CHANNELS}  # fmt: skip
    after = batch_of(changed(tables)["customer"], CUSTOMER_SCHEMA)
    del tables
    limited = bool(arm.limit_bytes) and limit_memory(arm.limit_bytes)
    before = _memory()
    costs = Costs()
    query = Query4(arm, costs)
    wall = time.perf_counter()
    _populate(query, customers, dates, sales)
    wall = time.perf_counter() - wall - costs.wall_s["group"]
    spent = dict(costs.cpu_s)
    spent.pop("group", None)
    figures, populated = query.counters(), _memory()
    answers = [query.answer()]
    totals = [_totals(query)]
    _change(query, customers, after, sales)
    answers.append(query.answer())
    totals.append(_totals(query))
    later = _later(query, arm.later_beats, customers[CUSTOMER[0]].values)
    return {
        "member": arm.member,
        "arm": arm.arm,
        "cpu_s": round(sum(spent.values()), 3),
        "wall_s": round(wall, 3),
        **later,
        "limit_bytes": arm.limit_bytes if limited else None,
        "cpu": {phase: round(value, 3) for phase, value in spent.items()},
        "memory": {"before": before, "populated": populated},
        "counters": figures,
        "totals": totals,
        "answers": answers,
    }


def _later(query: Query4, beats: int, keys: Int64s) -> dict[str, float]:
    """Beats of probes: CPU and wall time of all, and how many were measured."""
    dice, done = np.random.default_rng(4), 0
    cpu, wall = time.process_time(), time.perf_counter()
    while done < beats and time.perf_counter() - wall < LATER_S:
        query.probe_sales(np.sort(dice.choice(keys, min(LATER_PROBES, keys.size), replace=False)))
        done += 1
    share = beats / max(1, done)
    return {
        "later_cpu_s": round(share * (time.process_time() - cpu), 3),
        "later_wall_s": round(share * (time.perf_counter() - wall), 3),
        "later_beats": done,
    }


def _populate(query: Query4, customers: Batch, dates: Batch, sales: dict[str, Batch]) -> None:
    query.dates(dates)
    beats = {name: _beats(batch, SALES_A_BEAT) for name, batch in sales.items()}
    joining = _beats(customers, CUSTOMERS_A_BEAT)
    complete = False
    while beats or not complete:
        rows = next(joining, None)
        if rows is not None:
            query.customers(rows, _ones(rows.rows))
        elif not complete:
            query.customers_complete()
            complete = True
        for name in list(beats):
            rows = next(beats[name], None)
            if rows is None:
                del beats[name]
            else:
                query.sales(name, rows, _ones(rows.rows))
        for joins in (query.by_customer, query.by_date):
            for join in joins.values():
                join.merge()
    if query.arm.arm == "off_then_merge":
        query.merge_all()


def _change(query: Query4, before: Batch, after: Batch, sales: dict[str, Batch]) -> None:
    scratch = Scratch()
    which = np.flatnonzero(np.arange(before.rows) % 97 == 0)
    query.customers(take(before, which, scratch, "old"), -_ones(which.size))
    query.customers(take(after, which, scratch, "new"), _ones(which.size))
    for name, batch in sales.items():
        place = np.arange(batch.rows) % 101
        gone, twice = np.flatnonzero(place == 0), np.flatnonzero(place == 1)
        query.sales(name, take(batch, gone, scratch, "gone"), -_ones(gone.size))
        query.sales(name, take(batch, twice, scratch, "twice"), _ones(twice.size))


def _memory() -> dict[str, int]:
    """Bytes of this process in memory now, and at most: not backed by files, and all."""
    fields = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssFile", "VmHWM"):
            fields[name] = 1024 * int(value.split()[0])
    return {"anonymous": fields["RssAnon"], "mapped": fields["RssFile"], "most": fields["VmHWM"]}


def _totals(query: Query4) -> dict[str, list[int]]:
    """Of each channel: number of groups, sum of all, and a sum that depends on which is whose."""
    out = {}
    for name, groups in query.groups.items():
        keys, sums = groups.sums()
        keys, sums = keys[sums != 0], sums[sums != 0]
        out[name] = [int(keys.size), int(sums.sum()), int((keys % 1_000_003 * sums).sum())]
    return out


if __name__ == "__main__":
    print(json.dumps(run_arm(Arm(**json.loads(sys.argv[1])))))  # noqa: T201
