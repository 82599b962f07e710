"""A job built in Python: typed calls that make the same document as TOML or JSON.

    job = Job("power_curve").promise(latency="1s", durability="exactly_once")
    power = job.stream("power", tcp("127.0.0.1:7400"), {"turbine": "string", …}, time="time")
    wind = job.stream("wind", tcp("127.0.0.1:7400"), {…}, time="time")
    joined = power.join("joined", wind, on=["turbine"], before="5min", after="5min")
    joined.filter("producing", "power_kw > 0").pages("curve", partitions=4)

    job.document()     # the document; equal to that of a TOML file
    job.plan()         # checked: raises JobError
    job.save("power_curve.json")

Operators and sinks of any registered type: `job.operator(id, type, …)` and `rows.to(id, type, …)`.
Durations are text (`"5min"`), integers of microseconds, or `datetime.timedelta`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edged.documents.reader import plain
from edged.errors import JobError
from edged.job.plan import JobPlan, parse_job
from edged.operators.base import OPERATORS
from edged.sinks.base import SINKS

Duration = str | int | datetime.timedelta
Size = str | int
Table = Mapping[str, Any]


class Job:
    """A job under construction.  Nothing is checked before `plan`, but ids must be new."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._promises: dict[str, Any] = {}
        self._governor: dict[str, Any] = {}
        self._streams: dict[str, Any] = {}
        self._tables: dict[str, Any] = {}
        self._operators: dict[str, Any] = {}
        self._sinks: dict[str, Any] = {}

    def promise(
        self,
        *,
        latency: Duration | None = None,
        ack_within: Duration | None = None,
        upload_within: Duration | None = None,
        memory: Size | None = None,
        durability: str | None = None,
        telemetry_first: bool | None = None,
        when_full: str | None = None,
    ) -> Job:
        """Set promises; an omitted one keeps its value."""
        given = {
            "latency": latency,
            "ack_within": ack_within,
            "upload_within": upload_within,
            "memory": memory,
            "durability": durability,
            "telemetry_first": telemetry_first,
            "when_full": when_full,
        }
        self._promises.update(_given(given))
        return self

    def govern(self, policy: str, **settings: Any) -> Job:
        """Name the energy policy that runs while the job does."""
        self._governor = {"policy": policy, "settings": settings}
        return self

    def stream(
        self,
        id: str,
        source: Table,
        columns: Mapping[str, str],
        *,
        time: str,
        lateness: Duration | None = None,
        idle_after: Duration | None = None,
        max_ahead: Duration | None = None,
        max_behind: Duration | None = None,
        silent_after: Duration | None = None,
        late: str | None = None,
        weight: str | None = None,
        changes: str | None = None,
    ) -> Rows:
        """A stream; `source` is a table as returned by `tcp(…)`."""
        table = {
            "source": dict(source),
            "columns": dict(columns),
            "time": time,
            "lateness": lateness,
            "idle_after": idle_after,
            "max_ahead": max_ahead,
            "max_behind": max_behind,
            "silent_after": silent_after,
            "late": late,
            "weight": weight,
            "changes": changes,
        }
        self._add(self._streams, "streams", id, _given(table))
        return Rows(self, id)

    def table(
        self,
        id: str,
        source: Table,
        columns: Mapping[str, str],
        *,
        key: Sequence[str] | None = None,
        changes: str | None = None,
        role: str | None = None,
        compact: str | None = None,
        missing: str | None = None,
    ) -> Rows:
        """A table that changes, for `enrich` and `table_join`."""
        table = {
            "source": dict(source),
            "columns": dict(columns),
            "key": None if key is None else list(key),
            "changes": changes,
            "role": role,
            "compact": compact,
            "missing": missing,
        }
        self._add(self._tables, "tables", id, _given(table))
        return Rows(self, id)

    def operator(self, id: str, type: str, **keys: Any) -> Rows:
        """An operator of any registered type; `Rows` and lists of them become link names."""
        self._add(self._operators, "operators", id, {"type": type, **_given(keys)})
        return Rows(self, id)

    def sink(self, id: str, type: str, input: Rows | str, **keys: Any) -> Job:
        """A sink of any registered type."""
        self._add(self._sinks, "sinks", id, {"type": type, **_given({"input": input, **keys})})
        return self

    def document(self) -> dict[str, Any]:
        """The job document, as plain JSON values."""
        document = {"name": self._name, "streams": self._streams, "sinks": self._sinks}
        if self._promises:
            document["promises"] = self._promises
        if self._governor:
            document["governor"] = self._governor
        if self._tables:
            document["tables"] = self._tables
        if self._operators:
            document["operators"] = self._operators
        copy: dict[str, Any] = plain(document)
        return copy

    def plan(self) -> JobPlan:
        """The checked plan.  Raises JobError for the first fault."""
        return parse_job(self.document())

    def save(self, path: str | Path) -> None:
        """Write the document as JSON, for `edged run`."""
        Path(path).write_text(json.dumps(self.document(), indent=2) + "\n", encoding="utf-8")

    def _add(self, section: dict[str, Any], name: str, id: str, table: dict[str, Any]) -> None:
        if id in section:
            raise JobError(f"{name}.{id}", "is there already", "ids are unique")
        section[id] = table


class Rows:
    """Output of a stream or an operator; its methods add readers."""

    def __init__(self, job: Job, link: str) -> None:
        self._job, self.link = job, link

    @property
    def late(self) -> Rows:
        """The late rows of a stream whose `late` is `dead_letter`."""
        return Rows(self._job, f"{self.link}.late")

    def output(self, name: str) -> Rows:
        """A named output of an operator that has several."""
        return Rows(self._job, f"{self.link}.{name}")

    def filter(self, id: str, where: str) -> Rows:
        """Rows for which the SQL condition is true."""
        return self._job.operator(id, "filter", input=self, where=where)

    def map(self, id: str, columns: Mapping[str, str]) -> Rows:
        """New columns, each a SQL expression of the old ones."""
        return self._job.operator(id, "map", input=self, columns=dict(columns))

    def join(
        self,
        id: str,
        right: Rows | str,
        *,
        on: Sequence[str],
        before: Duration | None = None,
        after: Duration | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Rows:
        """Pairs with equal keys and −before ≤ right.time − left.time ≤ after."""
        return self._job.operator(
            id,
            "interval_join",
            left=self,
            right=right,
            on=list(on),
            before=before,
            after=after,
            columns=columns,
        )

    def enrich(
        self,
        id: str,
        table: Rows | str,
        *,
        on: Sequence[str],
        how: str | None = None,
        columns: Mapping[str, str] | None = None,
        wait: bool | None = None,
    ) -> Rows:
        """These rows, each with the rows of the table that have its key."""
        return self._job.operator(
            id, "enrich", input=self, table=table, on=list(on), how=how, columns=columns, wait=wait
        )

    def table_join(
        self,
        id: str,
        right: Rows | str,
        *,
        on: Sequence[str],
        how: str | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Rows:
        """Changes of the join of two tables, with their weights."""
        return self._job.operator(
            id, "table_join", left=self, right=right, on=list(on), how=how, columns=columns
        )

    def window(
        self,
        id: str,
        aggregates: Mapping[str, str],
        *,
        size: Duration,
        every: Duration | None = None,
        keys: Sequence[str] | None = None,
    ) -> Rows:
        """Mergeable partial aggregates of windows of event time, by keys."""
        return self._job.operator(
            id,
            "window",
            input=self,
            keys=None if keys is None else list(keys),
            size=size,
            every=every,
            aggregates=dict(aggregates),
        )

    def union(self, id: str, *others: Rows | str) -> Rows:
        """These rows and those of the others, which have the same columns."""
        return self._job.operator(id, "union", inputs=[self, *others])

    def pages(
        self,
        id: str,
        *,
        stream: str | None = None,
        version: int | None = None,
        partitions: int | None = None,
        partition_by: Sequence[str] | None = None,
        page: Size | None = None,
    ) -> Rows:
        """Ship to the centre in pages.  Returns these rows."""
        return self.to(
            id,
            "pages",
            stream=stream,
            version=version,
            partitions=partitions,
            partition_by=None if partition_by is None else list(partition_by),
            page=page,
        )

    def file(self, id: str, path: str, *, format: str | None = None) -> Rows:
        """Write Parquet or NDJSON files.  Returns these rows."""
        return self.to(id, "file", path=path, format=format)

    def __getattr__(self, type: str) -> Callable[..., Rows]:
        """A method for every other registered operator and sink, plug-ins too.

        `rows.scale("celsius", column="temperature", factor=0.1)` adds an operator that reads these
        rows, `rows.statsd("counted", metric="rows")` a sink.  Raises AttributeError.
        """
        if type in OPERATORS.load() and OPERATORS[type].links == ("input",):
            return lambda id, **keys: self._job.operator(id, type, input=self, **keys)
        if type in SINKS.load():
            return lambda id, **keys: self.to(id, type, **keys)
        raise AttributeError(f"no operator or sink is called {type}")

    def to(self, id: str, type: str, **keys: Any) -> Rows:
        """Write to a sink of any registered type.  Returns these rows."""
        self._job.sink(id, type, self, **keys)
        return self


def tcp(listen: str, **keys: Any) -> dict[str, Any]:
    """A `tcp` source's table: Arrow IPC streams on `listen`, e.g. `127.0.0.1:7400`."""
    return {"type": "tcp", "listen": listen, **_given(keys)}


def file(path: str, **keys: Any) -> dict[str, Any]:
    """A `file` source's table: `path`, and `format`, `pace`, `producer`, `columns` as keys."""
    return {"type": "file", "path": path, **_given(keys)}


def generator(rate: float | str, **keys: Any) -> dict[str, Any]:
    """A `generator` source's table: rows a second or `full`, and its other keys."""
    return {"type": "generator", "rate": rate, **_given(keys)}


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are not None, in the form of a document."""
    return {key: _value(value) for key, value in table.items() if value is not None}


def _value(value: Any) -> Any:
    if isinstance(value, Rows):
        return value.link
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    if isinstance(value, Mapping):
        return _given(value)
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    return value
