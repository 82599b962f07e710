"""The jobs of a graph: a document for each instance of a stage.

An exchange becomes an `edge` sink in the jobs that send and a stream with a `tcp` source in those
that receive.  A job that receives has one listener, on a port of its daemon's range that follows
from its name, so that another version of the graph seldom moves it.  Such a stream has the columns
and the time of the rows that come, the disorder of its upstream part as `lateness`, and waits for
its producers for a day: a daemon that is away holds event time back, instead of making its rows
late.  Late rows are processed: what an upstream part has let through is not dropped here, as where
another instance of it was faster.

`graph = {name, version}` marks a job; `edged.graph.rollout` compares documents without it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edged.data.flow import owner
from edged.documents.units import show_duration
from edged.errors import JobError
from edged.graph.document import SECTIONS, DaemonTerms, GraphPlan, filled
from edged.graph.stages import Cut, Exchange, Placement, Stage
from edged.job.plan import StreamPlan
from edged.links.partition import ROUND_ROBIN

WAITS = "1d"
"""`idle_after` of a stream that a link feeds."""
AHEAD_US = 3_600_000_000
"""What a link's stream allows above the roots' `max_ahead`: clocks of two daemons may differ."""
NAMES_MAX = 57
"""Longest name of a job and a link of it together; the store keeps both in a page's stream."""
RECEIVER_KEYS = ("token_file",)
"""Keys of a link that its receivers' `tcp` source has too."""


@dataclass(frozen=True)
class JobInstance:
    """A job of the graph: instance `index` of a stage on a daemon."""

    name: str
    stage: str
    index: int
    daemon: str
    level: int
    document: dict[str, Any] = field(compare=False)


def job_name(graph: str, stage: str, index: int) -> str:
    """The name of an instance's job."""
    return f"{graph}-{stage}-{index}"


def jobs(made: Cut, placement: Mapping[str, Placement]) -> tuple[list[JobInstance], list[JobError]]:
    """All jobs, upstream first, and faults of their addresses and names."""
    addresses, wrong = _addresses(made, placement)
    found = []
    for stage in made.stages.values():
        for i, name in enumerate(placement[stage.name]):
            daemon = made.plan.daemons[name]
            document = _document(made, stage, i, daemon, placement, addresses)
            found.append(JobInstance(document["name"], stage.name, i, name, stage.level, document))
    wrong += _twice(made, found)
    for exchange in made.exchanges:
        longest = job_name(made.plan.name, exchange.source, 63)
        if len(longest) + len(exchange.id) > NAMES_MAX:
            problem = f"{longest} and {exchange.id} have more than {NAMES_MAX} letters together"
            wrong.append(JobError(exchange.path, problem, "shorten a name"))
    return found, wrong


def _document(
    made: Cut,
    stage: Stage,
    index: int,
    daemon: DaemonTerms,
    placement: Mapping[str, Placement],
    addresses: Mapping[str, str],
) -> dict[str, Any]:
    plan, own = made.plan, made.plan.document
    promises = {k: v for k, v in own.get("promises", {}).items() if k != "end_to_end"}
    document: dict[str, Any] = {"name": job_name(plan.name, stage.name, index)}
    if promises or daemon.promises:
        document["promises"] = {**promises, **daemon.promises}
    if "governor" in own:
        document["governor"] = own["governor"]
    sections = {section: dict[str, Any]() for section in SECTIONS}
    for id in stage.parts:
        part = plan.parts[id]
        sections[part.section][id] = filled(part.document, part.section, index, daemon)
        if id in plan.whole.operators:  # every daemon runs the code that was planned
            sections[part.section][id] |= plan.whole.operators[id].pins()
    for exchange in made.into(stage.name):
        address = addresses[document["name"]]
        sections["streams"][exchange.stream] = _stream(made, exchange, daemon, address)
        for reader in exchange.readers if exchange.stream != exchange.rows else ():
            section, id, key = reader.split(".", 2)
            sections[section][id] = _renamed(sections[section][id], key, exchange)
    for exchange in made.out_of(stage.name):
        target = made.stages[exchange.target]
        names = [job_name(plan.name, target.name, i) for i in range(len(placement[target.name]))]
        sections["sinks"][exchange.id] = sender(exchange, [addresses[name] for name in names])
    if stage.tables:
        document["tables"] = {
            t: filled(own["tables"][t], SECTIONS[0], index, daemon) for t in stage.tables
        }
    return document | {key: entries for key, entries in sections.items() if entries}


def sender(exchange: Exchange, to: list[str]) -> dict[str, Any]:
    """The `edge` sink of an exchange."""
    terms = exchange.terms
    found: dict[str, Any] = {
        "type": "edge", "input": exchange.rows, "stream": exchange.stream, "to": to,
        "partition": ROUND_ROBIN if terms is None else terms.partition,
    }  # fmt: skip
    if terms is not None:
        found |= {"by": list(terms.by)} if terms.by else {}
        found |= terms.settings
    return found


def roots(made: Cut, rows: str) -> list[StreamPlan]:
    """The streams that the rows of a link come from."""
    part, plan = owner(rows), made.plan
    if part in plan.whole.streams:
        return [plan.whole.streams[part]]
    return [root for i in plan.inputs(part) for root in roots(made, i)]


def _stream(made: Cut, exchange: Exchange, daemon: DaemonTerms, address: str) -> dict[str, Any]:
    link = made.plan.whole.links[exchange.rows]
    above = [root for root in roots(made, exchange.rows) if root.table is None]
    source: dict[str, Any] = {"type": "tcp", "listen": address}
    settings = {} if exchange.terms is None else exchange.terms.settings
    source |= {key: settings[key] for key in RECEIVER_KEYS if key in settings}
    if settings.get("tls") or "ca" in settings:
        source |= {"tls_cert": daemon.tls_cert, "tls_key": daemon.tls_key}
    found = {
        "source": source,
        "columns": {f.name: f.dtype.name + ("?" if f.nullable else "") for f in link.schema},
        "time": link.time,
        "lateness": show_duration(link.disorder_us),
        "idle_after": WAITS,
        "max_ahead": show_duration(max(root.max_ahead_us for root in above) + AHEAD_US),
        "max_behind": show_duration(max(root.max_behind_us for root in above)),
        "late": "process",
    }
    return found | ({"weight": link.weight} if link.weight else {})


def _renamed(table: dict[str, Any], key: str, exchange: Exchange) -> dict[str, Any]:
    """A reader's table with the exchange's stream in place of the rows that it names."""
    key, bracket, _ = key.partition("[")
    if not bracket:
        return {**table, key: exchange.stream}
    return {**table, key: [exchange.stream if n == exchange.rows else n for n in table[key]]}


def _addresses(
    made: Cut, placement: Mapping[str, Placement]
) -> tuple[dict[str, str], list[JobError]]:
    """The address of each job that receives, by its name."""
    found, wrong = dict[str, str](), list[JobError]()
    used: dict[str, set[int]] = {name: set() for name in made.plan.daemons}
    listening = [s for s in made.stages.values() if made.into(s.name)]
    for stage in sorted(listening, key=lambda stage: stage.name):
        for i, name in enumerate(placement[stage.name]):
            daemon, job = made.plan.daemons[name], job_name(made.plan.name, stage.name, i)
            first, last = daemon.ports
            count = last - first + 1
            start = zlib.crc32(job.encode()) % count
            free = (first + (start + k) % count for k in range(count))
            port = next((p for p in free if p not in used[name]), None)
            if port is None:
                problem = f"has {count} ports, its jobs need more"
                wrong.append(JobError(f"daemons.{name}.ports", problem, "widen the range"))
                port = first
            used[name].add(port)
            found[job] = f"{_host(daemon)}:{port}"
    return found, wrong


def _host(daemon: DaemonTerms) -> str:
    return f"[{daemon.host}]" if ":" in daemon.host else daemon.host


def _twice(made: Cut, found: list[JobInstance]) -> list[JobError]:
    """Listeners that two jobs of a daemon, or a stream and a link, have at once."""
    wrong, owners = dict[str, JobError](), dict[tuple[str, str], str]()
    plan: GraphPlan = made.plan
    linked = {(e.target, e.stream) for e in made.exchanges}
    for job in found:
        for id, stream in job.document.get("streams", {}).items():
            address = stream.get("source", {}).get("listen")
            if not isinstance(address, str) or (job.stage, id) in linked:
                continue
            path = f"streams.{id}.source.listen"
            port = address.rpartition(":")[2]
            if port == "0":
                continue
            host = plan.daemons[job.daemon].host
            where = (host, port)
            if owners.setdefault(where, job.name) != job.name:
                problem = f"{address} on {job.daemon} is used twice"
                advice = "give each instance its own port: {instance} in the address"
                wrong.setdefault(path, JobError(path, problem, advice))
            for daemon in plan.daemons.values():
                first, last = daemon.ports
                if daemon.host == host and port.isdecimal() and first <= int(port) <= last:
                    problem = f"{address} is in the ports of daemons.{daemon.name}"
                    wrong.setdefault(path, JobError(path, problem, "links listen there"))
    return list(wrong.values())
