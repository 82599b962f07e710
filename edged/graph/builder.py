"""A graph built in Python: the parts of a job, with daemons, places and links.

    graph = Graph("farm", latency="250ms").end_to_end("2s")
    graph.daemon("gate", "/run/edged/api.sock", ports="9100-9199")
    graph.daemon("site", "https://site:7443", host="10.0.0.2", token_file="site.token")
    readings = graph.job.stream("readings", tcp("127.0.0.1:7400"), {…}, time="time")
    mean = readings.window("mean", {"kw": "mean(kw)"}, size="1min", keys=["turbine"])
    mean.pages("means")
    graph.place(readings, "gate").place(mean, "site", instances=2)
    graph.link("by-turbine", readings, mean, by=["turbine"], linger="10ms")

    graph.document()     # the document; equal to that of a TOML file
    graph.check()        # placed on idle daemons: raises JobError
    graph.save("farm.json")

`graph.job` is a `edged.job.builder.Job`, with all of its methods.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edged.documents.reader import plain
from edged.errors import JobError
from edged.graph.check import PlacedGraph, load
from edged.graph.document import ANYWHERE, SECTIONS
from edged.job.builder import Duration, Job, Rows, Size


class Graph:
    """A graph under construction.  Nothing is checked before `check`, but names must be new."""

    def __init__(self, name: str, **promises: Any) -> None:
        self.job = Job(name).promise(**promises)
        self._daemons: dict[str, Any] = {}
        self._links: dict[str, Any] = {}
        self._places: dict[str, dict[str, Any]] = {}
        self._end_to_end: Duration | None = None

    def end_to_end(self, latency: Duration) -> Graph:
        """Bound the promises added up from a stream to any sink."""
        self._end_to_end = latency
        return self

    def daemon(self, name: str, api: str, *, memory: Size | None = None, **keys: Any) -> Graph:
        """A daemon, and keys of its table such as `host`, `ports`, `token_file`, `promises`."""
        given = {"api": api, "memory": memory, **keys}
        self._add(self._daemons, "daemons", name, given)
        return self

    def place(
        self,
        part: Rows | str,
        *on: str,
        instances: int | None = None,
        per_instance: bool | None = None,
    ) -> Graph:
        """Where a stream, an operator or a sink runs: daemons, or `auto`."""
        id = part.link if isinstance(part, Rows) else part
        place = on[0] if on == (ANYWHERE,) else list(on) or None
        given = {"place": place, "instances": instances, "per_instance": per_instance}
        self._places[id] = {key: value for key, value in given.items() if value is not None}
        return self

    def link(
        self,
        id: str,
        source: Rows | str,
        target: Rows | str,
        *,
        partition: str | None = None,
        by: Sequence[str] | None = None,
        **keys: Any,
    ) -> Graph:
        """How rows of `source` come to the instances of `target`; `keys` as of an `edge` sink."""
        ends = [part.link if isinstance(part, Rows) else part for part in (source, target)]
        columns = None if by is None else list(by)
        given = {"from": ends[0], "to": ends[1], "partition": partition, "by": columns, **keys}
        self._add(self._links, "links", id, given)
        return self

    def document(self) -> dict[str, Any]:
        """The graph document, as plain JSON values.  Raises JobError for a place without a part."""
        document = self.job.document()
        if self._end_to_end is not None:
            document.setdefault("promises", {})["end_to_end"] = self._end_to_end
        for id, place in self._places.items():
            sections = [s for s in SECTIONS if id in document.get(s, {})]
            if not sections:
                raise JobError(id, "is placed, and is no part of the graph")
            document[sections[0]][id] |= place
        document["daemons"] = self._daemons
        if self._links:
            document["links"] = self._links
        copy: dict[str, Any] = plain(document)
        return copy

    def check(self) -> PlacedGraph:
        """The checked graph, placed as if all daemons were idle.  Raises JobError."""
        return load(self.document())

    def save(self, path: str | Path) -> None:
        """Write the document as JSON, for `edged graph`."""
        Path(path).write_text(json.dumps(self.document(), indent=2) + "\n", encoding="utf-8")

    def _add(self, section: dict[str, Any], name: str, id: str, table: dict[str, Any]) -> None:
        if id in section:
            raise JobError(f"{name}.{id}", "is there already", "ids are unique")
        section[id] = {key: value for key, value in table.items() if value is not None}
