"""The answers of the REST API: one set of TypedDicts for the API, its document and its client.

The API validates and completes answers with pydantic (`api.answers`) and describes them in
docs/openapi.json; the typed client returns the same dictionaries.  Every key is always present;
null means unknown or absent.  `total=False` marks keys that have a default, which the API fills in.

Units are the last word of a name: `_us` is microseconds (`_at_us` on the wall clock), `watts`,
`joules`, `hz`, `bytes`.  Every energy figure has a provenance: measured, modelled or simulated.

TypedDicts instead of pydantic models: a command of the client must not import pydantic, which takes
0.2 s of its start.
"""

from edged.rest.answers.base import Cursor, Fault, Figures, Name, Problem, Provenance
from edged.rest.answers.daemon import (
    Config,
    Device,
    Event,
    Events,
    Health,
    Histogram,
    Index,
    Log,
    Reloaded,
    Store,
    Uplink,
)
from edged.rest.answers.energy import Board, Energy, Governor
from edged.rest.answers.graphs import Graph, Graphs
from edged.rest.answers.jobs import (
    Explanation,
    Job,
    Jobs,
    Operation,
    Operations,
    StateChunk,
    StateExport,
    Verdict,
)
from edged.rest.answers.streams import (
    Accepted,
    KernelRuns,
    Operator,
    Operators,
    Source,
    Sources,
    Stream,
    Streams,
)

__all__ = [
    "Accepted",
    "Board",
    "Config",
    "Cursor",
    "Device",
    "Energy",
    "Event",
    "Events",
    "Explanation",
    "Fault",
    "Figures",
    "Governor",
    "Graph",
    "Graphs",
    "Health",
    "Histogram",
    "Index",
    "Job",
    "Jobs",
    "KernelRuns",
    "Log",
    "Name",
    "Operation",
    "Operations",
    "Operator",
    "Operators",
    "Problem",
    "Provenance",
    "Reloaded",
    "Source",
    "Sources",
    "StateChunk",
    "StateExport",
    "Store",
    "Stream",
    "Streams",
    "Uplink",
    "Verdict",
]
