"""The graph document: a job whose parts are placed on daemons.  TOML or JSON, as a job.

    name = "farm"

    [promises]                      # of every job; and of the graph:
    latency = "250ms"
    end_to_end = "2s"               # bound of the promises added up, from a stream to any sink

    [daemons.gate]
    api = "/run/edged/api.sock"     # REST API: a socket's path or a URL; `token_file`, `ca`, `cert`
    host = "10.0.0.1"               # where links reach it (default 127.0.0.1)
    ports = "9100-9199"             # ports that links may listen on
    memory = "2GiB"                 # what its jobs may promise together; default: not bounded
    tls_cert = "gate.pem"           # and `tls_key`: of links with `tls` that come here
    device = "gate-1"               # its name at the centre (default: the daemon's name here)
    promises = { durability = "through" }    # of its jobs

    [streams.readings]              # streams, operators and sinks are those of a job, and have
    place = ["gate"]                #   a daemon, a list (an instance each), or "auto"
    instances = 1                   #   how many; default: one for each daemon of `place`

    [links.by-turbine]
    from = "readings"               # rows of this part
    to = "daily"                    # as input of that one
    partition = "hash"              # hash, random, round_robin, broadcast, direct, or SQL that
    by = ["turbine"]                #   yields the instance; other keys are the `edge` sink's

A part without `place` runs where its first input does.  With `instances` alone it is placed `auto`.
Tables run wherever they are read.  `{instance}`, `{daemon}` and `{host}` in texts of sources and
sinks stand for those of each instance.  An operator with `per_instance = true` keeps state for the
rows of its own instance, whatever their keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edged.documents import reader as doc
from edged.documents.faults import FaultCollector
from edged.errors import JobError
from edged.job.durability import DURABILITIES
from edged.job.graph_tag import DAEMONS_MAX
from edged.job.plan import JobPlan, parse_job
from edged.job.plan import faults as job_faults
from edged.links.partition import DIRECT, HASH, ROUND_ROBIN
from edged.links.partition import SCHEMES as PARTITIONS

SECTIONS = ("streams", "operators", "sinks")
"""Sections of parts that are placed."""
ANYWHERE = "auto"
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
INSTANCES_MAX = 64
PORTS_DEFAULT = "9100-9199"

_KEYS = (
    "name", "promises", "governor", "daemons", "streams", "tables", "operators", "sinks", "links",
)  # fmt: skip
_DAEMON_KEYS = (
    "api", "token_file", "ca", "cert", "plain_token", "host", "ports", "memory", "device",
    "promises", "tls_cert", "tls_key",
)  # fmt: skip
_PLACED = ("place", "instances", "per_instance")
"""Keys of a part that are not those of a job."""


@dataclass(frozen=True)
class DaemonTerms:
    """A daemon of the graph: how to reach it, and what it offers."""

    name: str
    api: str
    host: str = "127.0.0.1"
    ports: tuple[int, int] = (9100, 9199)
    memory_bytes: int = 0
    """0: not bounded."""
    device: str = ""
    promises: dict[str, Any] = field(default_factory=dict)
    token_file: str | None = None
    ca: str | None = None
    cert: str | None = None
    tls_cert: str | None = None
    """Of its links' listeners, as are the following; files on its machine."""
    tls_key: str | None = None
    plain_token: bool = False


@dataclass(frozen=True)
class GraphPart:
    """A stream, operator or sink and its placement as written."""

    id: str
    section: str
    document: dict[str, Any]
    """Its table in a job."""
    on: tuple[str, ...] = ()
    """Daemons of its instances; empty with `instances`: chosen when it is deployed."""
    instances: int = 0
    """0: as many as its first input, and where that is."""
    per_instance: bool = False

    @property
    def path(self) -> str:
        """Its place in the document."""
        return f"{self.section}.{self.id}"


@dataclass(frozen=True)
class LinkTerms:
    """A declared link; `settings` are the keys of the `edge` sink, unchecked."""

    id: str
    source: str
    target: str
    partition: str
    by: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphPlan:
    """A checked graph.  `whole` is the plan of all its parts as one job."""

    name: str
    document: dict[str, Any]
    end_to_end_us: int
    daemons: dict[str, DaemonTerms]
    parts: dict[str, GraphPart]
    links: dict[str, LinkTerms]
    whole: JobPlan

    def inputs(self, id: str) -> tuple[str, ...]:
        """The links that a part reads; empty for a stream."""
        return self.whole.inputs.get(id, ())

    def order(self) -> tuple[str, ...]:
        """Ids of all parts, each after its inputs."""
        streams = [i for i, p in self.parts.items() if p.section == SECTIONS[0]]
        return (*streams, *self.whole.order, *self.whole.sinks)


def load_graph(path: str | Path) -> dict[str, Any]:
    """The graph document in a file, with the paths of its daemons' files made absolute.

    Raises JobError.
    """
    document = doc.load_document(path)
    daemons = document.get("daemons")
    for daemon in daemons.values() if isinstance(daemons, dict) else ():
        for key in ("api", "token_file", "ca", "cert") if isinstance(daemon, dict) else ():
            value = daemon.get(key)
            if isinstance(value, str) and value and "://" not in value:
                daemon[key] = str(Path(path).parent.absolute() / value)
    return document


def read(document: Mapping[str, Any]) -> tuple[GraphPlan | None, list[JobError]]:
    """The graph as written, and all faults of its parts; what links and placement need is checked
    by `edged.graph.check`."""
    reader = _GraphReader()
    plan = reader.attempt(lambda: reader.graph(document))
    return (None if reader.faults else plan), reader.faults


class _GraphReader(FaultCollector):
    """Reads one document."""

    def graph(self, given: Mapping[str, Any]) -> GraphPlan | None:
        if not isinstance(given, Mapping):
            raise JobError("graph", "is not a table", "a graph has name, daemons and streams")
        document: dict[str, Any] = doc.plain(given)
        self.unknown("", document, _KEYS)
        name = self.attempt(lambda: doc.is_id("name", doc.text("", document, "name")))
        end_us = self.attempt(lambda: self.end_to_end(document))
        daemons = self.attempt(lambda: self.daemons(document)) or {}
        parts = {p.id: p for p in self.parts(document, daemons)}
        links = {link.id: link for link in self.links(document)}
        whole_document = whole(document, parts, daemons)
        wrong = job_faults(whole_document, circles=True)
        self.faults += wrong
        if wrong or self.faults:
            return None
        plan = parse_job(whole_document, circles=True)
        self.links_fit(plan, links)
        self.every_part_is_placed(parts)
        return GraphPlan(name or "", document, end_us or 0, daemons, parts, links, plan)

    def end_to_end(self, document: dict[str, Any]) -> int:
        given = doc.table("", document, "promises", {})
        return doc.duration("promises", given, "end_to_end", 0)

    def unknown(self, path: str, document: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in document:
            if key not in known:
                self.note(doc.below(path, key), "unknown key", doc.did_you_mean(key, known))

    # daemons ---------------------------------------------------------------------------------

    def daemons(self, document: dict[str, Any]) -> dict[str, DaemonTerms]:
        given = doc.table("", document, "daemons")
        if not 1 <= len(given) <= DAEMONS_MAX:
            raise JobError("daemons", f"has {len(given)} entries", f"1 to {DAEMONS_MAX}")
        found = dict[str, DaemonTerms]()
        for name, table in given.items():
            daemon = self.attempt(lambda name=name, table=table: self.daemon(name, table))  # type: ignore[misc]
            if daemon is not None:
                found[name] = daemon
        self.addresses(found)
        return found

    def daemon(self, name: str, table: Any) -> DaemonTerms:
        path = f"daemons.{name}"
        doc.is_id(path, name)
        if not isinstance(table, dict):
            raise JobError(path, f"{table!r} is not a table")
        self.unknown(path, table, _DAEMON_KEYS)
        promises = doc.table(path, table, "promises", {})
        keys = ("token_file", "ca", "cert", "tls_cert", "tls_key")
        files = {key: doc.text(path, table, key, None) for key in keys}
        return DaemonTerms(
            name,
            doc.text(path, table, "api"),
            doc.text(path, table, "host", "127.0.0.1"),
            _ports(path, doc.text(path, table, "ports", PORTS_DEFAULT)),
            doc.size(path, table, "memory", 0),
            doc.text(path, table, "device", name),
            promises,
            plain_token=doc.boolean(path, table, "plain_token", False),
            **files,
        )

    def addresses(self, daemons: Mapping[str, DaemonTerms]) -> None:
        """Two daemons are two APIs, and share no port of a host."""
        seen = list[DaemonTerms]()
        for daemon in daemons.values():
            for other in seen:
                if other.api == daemon.api:
                    advice = "a daemon is named once"
                    self.note(f"daemons.{daemon.name}.api", f"is that of {other.name}", advice)
                meet = max(other.ports[0], daemon.ports[0]) <= min(other.ports[1], daemon.ports[1])
                if other.host == daemon.host and meet:
                    problem = f"shares ports of {daemon.host} with {other.name}"
                    self.note(f"daemons.{daemon.name}.ports", problem, "give each its own range")
            seen.append(daemon)

    # parts -----------------------------------------------------------------------------------

    def parts(
        self, document: dict[str, Any], daemons: Mapping[str, DaemonTerms]
    ) -> Iterator[GraphPart]:
        for section in SECTIONS:
            entries = document.get(section)
            for id, table in entries.items() if isinstance(entries, dict) else ():
                if not isinstance(table, dict):
                    continue  # the job's reader says so
                part = self.attempt(
                    lambda s=section, i=id, t=table: self.part(s, i, t, daemons)  # type: ignore[misc]
                )
                if part is not None:
                    yield part

    def part(
        self, section: str, id: str, table: dict[str, Any], daemons: Mapping[str, DaemonTerms]
    ) -> GraphPart:
        path = f"{section}.{id}"
        own = {k: v for k, v in table.items() if k not in _PLACED}
        count = doc.integer(path, table, "instances", 0, least=0, most=INSTANCES_MAX)
        if "instances" in table and count == 0:
            raise JobError(f"{path}.instances", "is 0", "at least 1")
        each_one = doc.boolean(path, table, "per_instance", False)
        on = table.get("place", ())
        if isinstance(on, str):
            on = (on,)
        if on in (ANYWHERE, (ANYWHERE,)):
            return GraphPart(id, section, own, (), count or 1, each_one)
        if not isinstance(on, (list, tuple)):
            raise JobError(f"{path}.place", f"{on!r} is not a daemon", "a name, a list, or auto")
        for i, name in enumerate(on):
            where = f"{path}.place" + (f"[{i}]" if isinstance(table["place"], list) else "")
            if name not in daemons:
                advice = doc.did_you_mean(str(name), daemons)
                raise JobError(where, f"no daemon is called {name}", advice)
        if count and len(on) > count:
            problem = f"is {count}, but `place` names {len(on)} daemons"
            raise JobError(f"{path}.instances", problem, "name one for each instance, or fewer")
        count = count or len(on)
        spread = tuple(on[i % len(on)] for i in range(count)) if on else ()
        return GraphPart(id, section, own, spread, count, each_one)

    def every_part_is_placed(self, parts: Mapping[str, GraphPart]) -> None:
        for part in parts.values():
            if part.section == SECTIONS[0] and not part.instances:
                advice = "name the daemons that its source runs on"
                self.note(f"{part.path}.place", "is missing", advice)

    # links -----------------------------------------------------------------------------------

    def links(self, document: dict[str, Any]) -> Iterator[LinkTerms]:
        given = self.attempt(lambda: doc.table("", document, "links", {})) or {}
        for id, table in given.items():
            link = self.attempt(lambda id=id, table=table: self.link(id, table))  # type: ignore[misc]
            if link is not None:
                yield link

    def link(self, id: str, table: Any) -> LinkTerms:
        path = f"links.{id}"
        doc.is_id(path, id)
        if not isinstance(table, dict):
            raise JobError(path, f"{table!r} is not a table")
        partition = doc.text(path, table, "partition", HASH if "by" in table else ROUND_ROBIN)
        by: tuple[str, ...] = ()
        if partition in (HASH, DIRECT):
            if "by" not in table:
                means = (
                    "whose equal values come to one instance"
                    if partition == HASH
                    else ("whose value is the instance")
                )
                raise JobError(f"{path}.by", "is missing", f"name the columns {means}")
            by = doc.names(path, table, "by")
        elif "by" in table:
            raise JobError(f"{path}.by", f"{partition} takes no columns", "leave it out")
        own = ("from", "to", "partition", "by")
        settings = {key: value for key, value in table.items() if key not in own}
        ends = doc.text(path, table, "from"), doc.text(path, table, "to")
        return LinkTerms(id, *ends, partition, by, settings)

    def links_fit(self, plan: JobPlan, links: Mapping[str, LinkTerms]) -> None:
        """Each link is an input of its target, and names columns of its source."""
        names = {*plan.streams, *plan.operators, *plan.sinks}
        taken = dict[tuple[str, str], str]()
        for link in links.values():
            path = f"links.{link.id}"
            if link.id in names:
                self.note(path, f"a part is called {link.id}", "call the link otherwise")
            if link.source not in plan.links or link.target not in plan.inputs:
                bad, known = "from", (*plan.links,)
                if link.source in plan.links:
                    bad, known = "to", (*plan.inputs,)
                name = link.source if bad == "from" else link.target
                self.note(
                    f"{path}.{bad}", f"no part is called {name}", doc.did_you_mean(name, known)
                )
                continue
            if link.source not in plan.inputs[link.target]:
                inputs = ", ".join(plan.inputs[link.target])
                self.note(f"{path}.to", f"{link.target} does not read {link.source}",
                          f"it reads {inputs}")  # fmt: skip
            if plan.links[link.source].table is not None:
                self.note(f"{path}.from", "is a table", "tables run where they are read")
            if (other := taken.setdefault((link.source, link.target), link.id)) != link.id:
                self.note(path, f"links.{other} joins the same parts", "remove one of them")
            schema = plan.links[link.source].schema
            known = (*PARTITIONS, *schema.names)
            if _WORD.fullmatch(link.partition) and link.partition not in known:
                problem = f"{link.partition!r} is no way to partition, and no column"
                advice = doc.did_you_mean(
                    link.partition, PARTITIONS, otherwise=f"one of {', '.join(PARTITIONS)}"
                )
                self.note(f"{path}.partition", problem, advice)
            for i, name in enumerate(link.by):
                if name not in schema:
                    advice = doc.did_you_mean(name, schema.names)
                    self.note(f"{path}.by[{i}]", f"{link.source} has no column {name}", advice)


def whole(
    document: Mapping[str, Any],
    parts: Mapping[str, GraphPart],
    daemons: Mapping[str, DaemonTerms],
) -> dict[str, Any]:
    """All parts as one job document."""
    kept = {k: v for k, v in document.items() if k not in ("daemons", "links")}
    promises = kept.get("promises")
    if isinstance(promises, dict):
        promises = {k: v for k, v in promises.items() if k != "end_to_end"}
        if promises.get("durability") not in (None, *DURABILITIES[:1]):
            promises.pop("durability")  # each job is checked with its own
        kept["promises"] = promises
    first = next(iter(daemons.values()), None)
    for section in SECTIONS:
        entries = kept.get(section)
        if isinstance(entries, dict):
            kept[section] = {
                id: filled(parts[id].document, section, 0, first) if id in parts else _bare(table)
                for id, table in entries.items()
            }
    return kept


def filled(
    table: Mapping[str, Any], section: str, instance: int, daemon: DaemonTerms | None
) -> dict[str, Any]:
    """A part's table with the placeholders of a source or sink filled in."""
    if daemon is None or section == SECTIONS[1]:
        return dict(table)
    words = {"{instance}": str(instance), "{daemon}": daemon.name, "{host}": daemon.host}

    def put(value: Any) -> Any:
        if isinstance(value, str):
            for word, text in words.items():
                value = value.replace(word, text)
            return value
        if isinstance(value, dict):
            return {key: put(item) for key, item in value.items()}
        return [put(item) for item in value] if isinstance(value, list) else value

    if section == SECTIONS[0]:
        return {**table, "source": put(table["source"])} if "source" in table else dict(table)
    return {key: put(value) for key, value in table.items()}


def _bare(table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    return {k: v for k, v in table.items() if k not in _PLACED}


def _ports(path: str, text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65536:
        return int(first), int(last)
    raise JobError(f"{path}.ports", f"{text!r} is no range of ports", "e.g. 9100-9199")
