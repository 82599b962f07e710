"""`[graph]` of a job document: the graph that the job is a part of, and the version that put it.

    graph = { name = "farm", version = 3 }

`edged graph` writes it.  A daemon takes such a job over its API only while the graph is at this
version there (`edged.daemon.graph_records`), so that deployments of two versions cannot mix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from edged.documents import reader as doc

KEY = "graph"
VERSION_MAX = 2**31 - 1
DAEMONS_MAX = 200
"""Most daemons of a graph."""


class GraphTag(NamedTuple):
    """A graph's name and version."""

    name: str
    version: int


def graph_tag(document: Mapping[str, Any]) -> GraphTag | None:
    """The tag of a job document; None without one.  Raises JobError."""
    if document.get(KEY) is None:
        return None
    given = doc.table("", document, KEY)
    doc.refuse_unknown(KEY, given, GraphTag._fields)
    name = doc.is_id(f"{KEY}.name", given.get("name"))
    return GraphTag(name, doc.integer(KEY, given, "version", least=1, most=VERSION_MAX))
