"""What the API says, as pydantic models: the one source of the OpenAPI document and the client.

Names carry units last (`_us` microseconds, on the wall clock where the name ends in `_at_us`,
`joules`, `watts`, `hz`, `bytes`).  Every field is always there; null says that nobody knows.  Every
figure of energy stands beside its provenance: measured, modelled or simulated.
"""

from api.models.base import Answer, Asked, Fault, Name, Problem
from api.models.daemon import (
    Config,
    Device,
    Event,
    Events,
    Health,
    Histogram,
    Log,
    LogChange,
    Reloaded,
    Store,
    Uplink,
)
from api.models.energy import Board, Energy, Governor, GovernorChange
from api.models.jobs import Explanation, Job, Jobs, Operation, Operations, Verdict
from api.models.streams import (
    Accepted,
    KernelChange,
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
    "Answer",
    "Asked",
    "Board",
    "Config",
    "Device",
    "Energy",
    "Event",
    "Events",
    "Explanation",
    "Fault",
    "Governor",
    "GovernorChange",
    "Health",
    "Histogram",
    "Job",
    "Jobs",
    "KernelChange",
    "KernelRuns",
    "Log",
    "LogChange",
    "Name",
    "Operation",
    "Operations",
    "Operator",
    "Operators",
    "Problem",
    "Reloaded",
    "Source",
    "Sources",
    "Store",
    "Stream",
    "Streams",
    "Uplink",
    "Verdict",
]
