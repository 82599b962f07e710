"""The equipment job over four daemons, a stage on each, with a link for each machine between two:

    records ─► source, seconds ─► edges ─► delays ─► alarms, trends

All 66 fields cross the first link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edged.bench.equipment_jobs import STREAM
from edged.data.flow import Link, owner
from edged.job.plan import parse_job

STAGES = ("source", "edges", "delays", "trends")
_READS = {"source": STREAM, "edges": STREAM, "delays": "edges", "trends": "delays"}
_OPERATORS = {
    "source": {"power", "seconds", "peaks"},
    "edges": {"switches", "paired", "edges"},
    "trends": {"firsts", "compared", "alarms", "trends"},
}
"""Those of each stage; `delays` has the rest."""


def staged(document: dict[str, Any], address: Callable[[], str]) -> dict[str, dict[str, Any]]:
    """The job of each stage; `address` gives one that is free."""
    links = parse_job(document).links
    listens = {STAGES[0]: document["streams"][STREAM]["source"]["listen"]}
    listens |= {name: address() for name in STAGES[1:]}
    found = {}
    for name, following in zip(STAGES, (*STAGES[1:], ""), strict=True):
        operators = {id: o for id, o in document["operators"].items() if _stage(id) == name}
        sinks = {
            id: sink for id, sink in document["sinks"].items()
            if _stage(owner(sink["input"])) == name
        }  # fmt: skip
        if following:
            sinks["on"] = {
                "type": "edge", "input": _link(links, _READS[following]), "compress": "never",
                "stream": _READS[following], "to": [listens[following]],
            }  # fmt: skip
        stream, read = _READS[name], _link(links, _READS[name])
        source = {"type": "tcp", "listen": listens[name]}
        found[name] = {
            **document, "name": f"{document['name']}-{name}", "sinks": sinks,
            "streams": {stream: {
                "source": source, "columns": _columns(links[read]), "time": links[read].time,
                "idle_after": "60s",
            }},
            "operators": {
                id: {key: stream if value == read else value for key, value in o.items()}
                for id, o in operators.items()
            },
        }  # fmt: skip
    return found


def _link(links: Mapping[str, Link], stream: str) -> str:
    """The link whose rows a stage's stream has: of this name, or an output of this name."""
    return next(name for name in links if stream in (name, name.rpartition(".")[2]))


def _stage(operator: str) -> str:
    return next((name for name, own in _OPERATORS.items() if operator in own), "delays")


def _columns(link: Link) -> dict[str, str]:
    return {f.name: f.dtype.name + "?" * f.nullable for f in link.schema}
