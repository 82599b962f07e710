"""From a job document to a checked plan, the input of the beat, `validate` and `explain`.

A job is a directed acyclic graph of named operators between streams and sinks:

    document ─► streams, tables ─► links ─► operators, in topological order ─► sinks ─► JobPlan

Invariants of a `JobPlan`:

1. Every id (stream, table, operator, sink) is unique in the job.
2. `order` lists each operator after its inputs; ties are in document order.
3. `links` holds the `Link` of every name in `inputs`: streams, tables, operators,
   `<operator>.<output>` of operators with named outputs, and `<stream>.late` of streams whose
   `late` is `dead_letter` (same schema, unordered).
4. No two sinks ship pages of one stream: its sequence numbers would clash.
5. `streams` holds the tables behind the streams.  A table has no event time.

Parsing continues after a fault, so that `faults` reports every independent one.  Parts that depend
on a faulty part are skipped without a fault of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from edged.data import change_events
from edged.data.flow import Link, owner
from edged.data.schema import Schema
from edged.data.schema_document import columns, time_column
from edged.data.table_terms import DEBEZIUM, TableTerms
from edged.documents import reader as doc
from edged.documents.faults import FaultCollector
from edged.errors import JobError
from edged.job import governor, schedule, tables
from edged.job.circles import circle_faults
from edged.job.durability import DURABILITIES, EXACTLY_ONCE, faults_without_log
from edged.job.graph_tag import graph_tag
from edged.job.open_pages import check_open_pages
from edged.job.promises import BLOCK, WHEN_FULL, Promises
from edged.operators.base import OPERATORS, OperatorPlan
from edged.sinks.base import SINKS, SinkPlan
from edged.sources.base import SOURCES, SourcePlan
from governors.registry import Registry

LATE = ("drop", "process", "dead_letter")
ENTRIES_MAX = 200
"""Most streams, operators or sinks of a job."""
MEMORY_BYTES_MIN = 1 << 20
UPLOAD_WITHIN_US_MAX = 7 * 86_400_000_000

_JOB_KEYS = ("name", "promises", "governor", "graph", "streams", "tables", "operators", "sinks")
_PROMISE_KEYS = (
    "latency", "ack_within", "upload_within", "memory", "durability", "telemetry_first",
    "when_full",
)  # fmt: skip
_STREAM_KEYS = (
    "source", "columns", "time", "lateness", "idle_after", "max_ahead", "max_behind",
    "silent_after", "late", "weight", "changes",
)  # fmt: skip

_T = TypeVar("_T")


@dataclass(frozen=True)
class StreamPlan:
    """A checked stream or table.  `source` is unset while its source's `parse` runs."""

    name: str
    schema: Schema
    time: str
    lateness_us: int
    idle_after_us: int
    max_ahead_us: int
    late: str
    source: SourcePlan
    silent_after_us: int = 0
    """Time without rows after which an alert is due; 0: it is learned (`edged.beat.silence`)."""
    max_behind_us: int = 3_600_000_000
    """How far behind a producer may be and still count (`edged.beat.laggards`)."""
    weight: str = ""
    """The weight column (`edged.data.flow.Link`); empty: none."""
    table: TableTerms | None = None
    """The terms of a table, whose `time` is empty; None: it is a stream."""
    events: bool = False
    """Whether rows are made of Debezium's events (`edged.data.debezium`)."""

    @property
    def section(self) -> str:
        """Its section of the document."""
        return "streams" if self.table is None else "tables"


@dataclass(frozen=True)
class JobPlan:
    """A checked job; the module's docstring lists its invariants."""

    name: str
    document: dict[str, Any]
    promises: Promises
    streams: dict[str, StreamPlan]
    order: tuple[str, ...]
    operators: dict[str, OperatorPlan]
    sinks: dict[str, SinkPlan]
    inputs: dict[str, tuple[str, ...]]
    links: dict[str, Link] = field(default_factory=dict)
    governor: governor.GovernorPlan | None = None
    schedules: dict[str, schedule.OperatorSchedule] = field(default_factory=dict)
    """Of the operators that do not run in each beat with rows."""

    def readers(self, link: str) -> tuple[str, ...]:
        """Ids of the operators and sinks that read a link, in topological order."""
        ids = (*self.order, *self.sinks)
        return tuple(i for i in ids if link in self.inputs[i])


def input_documents(document: Mapping[str, Any]) -> dict[str, Any]:
    """The documents of a job's streams and tables, by id."""
    return {**document.get("streams", {}), **document.get("tables", {})}


def parse_job(document: Mapping[str, Any], *, circles: bool = False) -> JobPlan:
    """The checked plan of a job.  Raises JobError for the first fault.

    With `circles` links may lead to the document's own streams: it is a graph's, not one job's.
    """
    plan, wrong = _read(document, circles)
    if plan is None:
        raise wrong[0]
    return plan


def load_job(path: str | Path) -> JobPlan:
    """The checked plan of the job document in a file, TOML or JSON.  Raises JobError."""
    return parse_job(doc.load_document(path))


def faults(document: Mapping[str, Any], *, circles: bool = False) -> list[JobError]:
    """All independent faults of a job document; `circles` as of `parse_job`."""
    return _read(document, circles)[1]


def load_kinds() -> None:
    """Import all sources, operators and sinks, plug-ins too; parsing a document does so first."""
    for registry in (OPERATORS, SINKS, SOURCES):
        registry.load()


def _read(document: Mapping[str, Any], circles: bool) -> tuple[JobPlan | None, list[JobError]]:
    load_kinds()
    reader = _JobReader(circles)
    plan = reader.attempt(lambda: reader.job(document))
    return (None if reader.faults else plan), reader.faults


class _JobReader(FaultCollector):
    """Reads one document."""

    def __init__(self, circles: bool) -> None:
        super().__init__()
        self.circles, self.name = circles, ""
        self.links: dict[str, Link | None] = {}
        """None: the name exists, but its part is faulty."""
        self.operators: Collection[str] = ()
        self.schedules: dict[str, schedule.OperatorSchedule] = {}

    def job(self, given: Mapping[str, Any]) -> JobPlan:
        if not isinstance(given, Mapping):
            raise JobError("job", "is not a table", "a job has name, streams and sinks")
        document: dict[str, Any] = doc.plain(given)
        self.unknown("", document, _JOB_KEYS)
        name = self.attempt(lambda: doc.is_id("name", doc.text("", document, "name")))
        self.name = name or ""
        promises = self.attempt(lambda: self.promises(document))
        policy = self.attempt(lambda: self.governor(document))
        self.attempt(lambda: graph_tag(document))
        parts = {
            "streams": self.section(document, "streams", 0 if "tables" in document else 1),
            "tables": self.section(document, "tables", 0),
            "operators": self.section(document, "operators", 0),
            "sinks": self.section(document, "sinks", 1),
        }
        self.unique(parts)
        streams = self.all(parts["streams"], self.stream)
        streams |= self.all(parts["tables"], self.table)
        if parts["tables"] and promises and promises.durability != EXACTLY_ONCE:
            problem, advice = "is too weak for tables", "tables outlive their inputs: exactly_once"
            self.faults.append(JobError("promises.durability", problem, advice))
        self.operators = parts["operators"]
        order = self.sort(parts)
        operators = self.all({i: parts["operators"][i] for i in order}, self.operator)
        sinks = self.all(parts["sinks"], self.sink)
        self.one_sink_a_stream(sinks)
        if promises is not None:
            sources = {name: stream.source for name, stream in streams.items()}
            self.faults += faults_without_log(promises.durability, sources, operators, sinks)
            self.faults += () if self.circles else circle_faults(sources, sinks)
            self.faults += schedule.faults(promises.durability, self.schedules)
            self.attempt(lambda: check_open_pages(promises.memory_bytes, sinks))
        inputs = {i: _inputs(parts["operators"][i]) for i in operators}
        inputs |= {i: _inputs(parts["sinks"][i]) for i in sinks}
        links = {n: link for n, link in self.links.items() if link is not None}
        return JobPlan(
            name or "", document, promises or Promises(), streams, tuple(order), operators, sinks,
            inputs, links, policy, self.schedules,
        )  # fmt: skip

    def section(self, document: dict[str, Any], key: str, least: int) -> dict[str, Any]:
        """The entries of a section; an invalid name is recorded as a fault."""
        entries = doc.table("", document, key, {} if least == 0 else doc.REQUIRED)
        if len(entries) < least:
            raise JobError(key, "is empty", f"a job needs at least one of its {key}")
        if len(entries) > ENTRIES_MAX:
            raise JobError(key, f"holds {len(entries)} entries", f"at most {ENTRIES_MAX}")
        for id in entries:
            self.attempt(lambda id=id: doc.is_id(doc.below(key, id), id))  # type: ignore[misc]
        return entries

    def all(
        self, entries: Mapping[str, Any], parse: Callable[[str, Any], _T | None]
    ) -> dict[str, _T]:
        found = {}
        for id, document in entries.items():
            plan = self.attempt(lambda id=id, document=document: parse(id, document))  # type: ignore[misc]
            if plan is not None:
                found[id] = plan
        return found

    def unknown(self, path: str, document: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in document:
            if key not in known:
                advice = doc.did_you_mean(key, known)
                self.faults.append(JobError(doc.below(path, key), "unknown key", advice))

    def promises(self, document: dict[str, Any]) -> Promises:
        given = doc.table("", document, "promises", {})
        self.unknown("promises", given, _PROMISE_KEYS)
        wrong, at = FaultCollector(), "promises"
        latency = wrong.attempt(lambda: doc.duration(at, given, "latency", "1s", least=1), 0)
        ack = wrong.attempt(lambda: doc.duration(at, given, "ack_within", latency, least=1), 0)
        if latency and ack > latency:
            advice = "acks cannot wait for longer than results; lower it or leave it out"
            wrong.note("promises.ack_within", "is longer than latency", advice)
        memory = wrong.attempt(
            lambda: doc.size(at, given, "memory", "512MiB", least=MEMORY_BYTES_MIN), 0
        )
        durability = wrong.attempt(
            lambda: doc.choice(at, given, "durability", DURABILITIES, EXACTLY_ONCE), ""
        )
        upload = wrong.attempt(lambda: doc.duration(at, given, "upload_within", 0), 0)
        if upload > UPLOAD_WITHIN_US_MAX:
            wrong.note("promises.upload_within", "is longer than a week", "shorten it")
        first = wrong.attempt(lambda: doc.boolean(at, given, "telemetry_first", False), False)
        full = wrong.attempt(lambda: doc.choice(at, given, "when_full", WHEN_FULL, BLOCK), BLOCK)
        wrong.settle()
        return Promises(latency, ack, memory, durability, upload, first, full)

    def governor(self, document: dict[str, Any]) -> governor.GovernorPlan | None:
        given = doc.table("", document, "governor", None)
        return None if given is None else governor.parse(given)

    def unique(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        places: dict[str, str] = {}
        for section, entries in parts.items():
            for id in entries:
                if id in places:
                    problem = f"{places[id]}.{id} has the same name"
                    advice = "names are unique over streams, tables, operators and sinks"
                    self.faults.append(JobError(f"{section}.{id}", problem, advice))
                places.setdefault(id, section)

    # streams ---------------------------------------------------------------------------------

    def stream(self, name: str, document: Any) -> StreamPlan:
        path = f"streams.{name}"
        self.links[name] = None
        if isinstance(document, dict) and document.get("late") == "dead_letter":
            self.links[f"{name}.late"] = None
        document = _entry(path, document)
        self.unknown(path, document, _STREAM_KEYS)
        wrong = FaultCollector()

        def duration(key: str, default: Any, least: int = 0) -> int:
            return wrong.attempt(
                lambda: doc.duration(path, document, key, default, least=least), least
            )

        schema = wrong.attempt(lambda: change_events.stream_columns(path, document), Schema.of(()))
        time = (
            wrong.attempt(lambda: time_column(path, document, schema), "") if schema.fields else ""
        )
        plan = StreamPlan(
            name,
            schema,
            time,
            duration("lateness", "0s"),
            duration("idle_after", "10s", 1),
            duration("max_ahead", "1h", 1),
            wrong.attempt(lambda: doc.choice(path, document, "late", LATE, "drop"), "drop"),
            cast(SourcePlan, None),
            duration("silent_after", 0),
            duration("max_behind", "1h", 1),
            wrong.attempt(lambda: change_events.stream_weight(path, document, schema), ""),
            events=document.get("changes") == DEBEZIUM,
        )
        if not wrong.faults:
            self.links[name] = link = Link(schema, time, plan.lateness_us, plan.weight)
            if plan.late == "dead_letter":
                self.links[f"{name}.late"] = link
        source = plan.source
        if time:
            source = wrong.attempt(lambda: self.source(f"{path}.source", document, plan), source)
        wrong.settle()
        return replace(plan, source=source)

    def table(self, name: str, document: Any) -> StreamPlan:
        path = f"tables.{name}"
        self.links[name] = None
        document = _entry(path, document)
        self.unknown(path, document, tables.KEYS)
        schema = columns(path, document)
        if events := change_events.change_events(path, document):
            schema = change_events.with_weight_column(f"{path}.columns", schema, events)
        wrong, unset = FaultCollector(), cast(SourcePlan, None)
        terms = wrong.attempt(lambda: tables.terms(path, document, schema), TableTerms())
        weight = tables.weight_column(terms.changes)
        plan = StreamPlan(
            name, schema, "", 0, tables.IDLE_AFTER_US, 0, "process", unset, weight=weight,
            table=terms, events=events == DEBEZIUM,
        )  # fmt: skip
        source = wrong.attempt(lambda: self.source(f"{path}.source", document, plan), unset)
        wrong.settle()
        self.links[name] = Link(schema, "", 0, weight, terms)
        return replace(plan, source=source)

    def source(self, path: str, document: dict[str, Any], stream: StreamPlan) -> SourcePlan:
        given = doc.table(path.rpartition(".")[0], document, "source")
        kind = SOURCES[_kind(path, given, SOURCES)]
        self.unknown(path, given, ["type", *sorted(kind.keys)])
        return kind.parse(path, given, stream)

    # operators and sinks ---------------------------------------------------------------------

    def sort(self, parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Operator ids in topological order, without those on a cycle or downstream of one."""
        operators = parts["operators"]
        order: list[str] = []
        state: dict[str, str] = {}
        trail: list[str] = []

        def visit(id: str) -> bool:
            if id not in operators or state.get(id) == "done":
                return True
            if state.get(id) == "bad":
                return False
            if id in trail:
                cycle = [*trail[trail.index(id) :], id]
                text = " ← ".join(cycle)
                self.faults.append(JobError(f"operators.{id}", f"is in a cycle: {text}"))
                state.update(dict.fromkeys(cycle, "bad"))
                return False
            trail.append(id)
            fine = True
            for name in _inputs(operators[id]):
                fine = visit(owner(name)) and fine
            trail.pop()
            state[id] = "done" if fine and state.get(id) != "bad" else "bad"
            if state[id] == "done":
                order.append(id)
            return state[id] == "done"

        for id in operators:
            visit(id)
            self.links.setdefault(id, None)
        return order

    def operator(self, id: str, document: Any) -> OperatorPlan | None:
        path = f"operators.{id}"
        document = _entry(path, document)
        kind = OPERATORS[_kind(path, document, OPERATORS)]
        link_keys = [key.lstrip("*") for key in kind.links]
        self.unknown(path, document, ["type", *link_keys, *sorted(kind.keys), schedule.KEY])
        inputs = self.resolve(path, document, kind.links, kind.table_links)
        if inputs is None:
            return None
        reads_tables = any(link.table is not None for link in inputs)
        waits = self.attempt(lambda: schedule.parse(path, document, reads_tables))
        if waits is not None:
            self.schedules[id] = waits
        plan = kind.parse(path, id, document, inputs)
        document.update(plan.pins())
        self.links[id] = plan.output
        self.links |= {f"{id}.{name}": link for name, link in plan.outputs().items()}
        return plan

    def sink(self, id: str, document: Any) -> SinkPlan | None:
        path = f"sinks.{id}"
        document = _entry(path, document)
        kind = SINKS[_kind(path, document, SINKS)]
        self.unknown(path, document, ["type", "input", *sorted(kind.keys)])
        inputs = self.resolve(path, document, ("input",))
        if inputs is None:
            return None
        return kind.parse(path, id, document, inputs[0]).in_job(self.name)

    def resolve(
        self,
        path: str,
        document: dict[str, Any],
        keys: Sequence[str],
        tables: Collection[str] = (),
    ) -> list[Link] | None:
        """The part's input links, or None where one of them is faulty elsewhere.  Only the keys in
        `tables` may name tables."""
        found: list[Link | None] = []
        for key in keys:
            takes = key in tables
            if not key.startswith("*"):
                name = doc.text(path, document, key)
                found.append(self.link(doc.below(path, key), name, takes))
                continue
            listed = doc.names(path, document, key[1:])
            found += [self.link(f"{path}.{key[1:]}[{i}]", n, takes) for i, n in enumerate(listed)]
        links = [link for link in found if link is not None]
        return links if len(links) == len(found) else None

    def link(self, path: str, name: str, takes_tables: bool) -> Link | None:
        if name in self.links:
            link = self.links[name]
            if link is not None and link.table is not None and not takes_tables:
                raise JobError(path, f"{name} is a table", "enrich and table_join read tables")
            return link
        part, dot, rest = name.partition(".")
        if dot and part in self.operators and self.links.get(part) is None:
            return None  # its outputs are unknown
        if dot and rest == "late" and part in self.links:
            raise JobError(path, f"{name} does not exist", 'set late = "dead_letter" on the stream')
        if dot and part in self.operators:
            own = [link for link in self.links if link.startswith(f"{part}.")]
            advice = doc.did_you_mean(name, own, otherwise=f"name {part} alone")
            raise JobError(path, f"{part} has no output {rest}", advice)
        advice = doc.did_you_mean(name, self.links)
        raise JobError(path, f"no stream or operator is called {name}", advice)

    def one_sink_a_stream(self, sinks: Mapping[str, SinkPlan]) -> None:
        owners: dict[str, str] = {}
        for id, plan in sinks.items():
            for stream, _, _ in plan.schemas():
                owner = owners.setdefault(stream, id)
                if owner != id:
                    problem = f"sinks.{owner} ships pages of {stream} already"
                    self.faults.append(
                        JobError(f"sinks.{id}", problem, "union them, or name another stream")
                    )


def _entry(path: str, document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise JobError(path, f"{document!r} is not a table")
    return document


def _kind(path: str, document: dict[str, Any], registry: Registry[Any]) -> str:
    kind = doc.text(path, document, "type")
    if problem := registry.why_missing(kind):
        raise JobError(doc.below(path, "type"), problem, "repair or remove it; see edged plugins")
    if kind not in registry:
        advice = doc.did_you_mean(kind, registry)
        raise JobError(doc.below(path, "type"), f"{kind!r} is not a type", advice)
    return kind


def _inputs(document: Any) -> tuple[str, ...]:
    """The link names in an operator's or sink's table, unchecked."""
    if not isinstance(document, dict):
        return ()
    kind = OPERATORS.get(str(document.get("type")))
    found: list[str] = []
    for key in ("input",) if kind is None else kind.links:
        value = document.get(key.lstrip("*"))
        listed = value if isinstance(value, list) else [value]
        found += [name for name in listed if isinstance(name, str)]
    return tuple(found)
