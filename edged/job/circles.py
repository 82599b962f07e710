"""Circles: links of a job that lead back to it.

A link with too much in flight keeps its job from taking rows.  Where the rows come back to that
job, they wait in its staging for ever, and the link with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from edged.documents.reach import Reach
from edged.errors import JobError
from edged.platform.loopback import is_loopback
from edged.sinks.base import SinkPlan
from edged.sources.base import SourcePlan

ADVICE = "send to another job; rows that a job needs again stay in it"
_ANY = ("0.0.0.0", "::", "*")


def circle_faults(
    sources: Mapping[str, SourcePlan], sinks: Mapping[str, SinkPlan]
) -> Iterator[JobError]:
    """The addresses of links that the job's own streams listen on, as far as texts can tell."""
    root = Path()
    listens = [
        (name, address)
        for name, source in sources.items()
        for address in (source.reach(root) or Reach()).listens.values()
    ]
    for id, sink in sinks.items():
        target = sink.link()
        for i, to in enumerate(() if target is None else target.to):
            found = next((name for name, address in listens if leads_to(to, address)), None)
            if found is not None:
                where = f"sinks.{id}.to[{i}]"
                yield JobError(where, f"leads to stream {found} of this job", ADVICE)


def leads_to(to: str, listen: str, host: str = "127.0.0.1") -> bool:
    """Whether a connection to the address `to` reaches a listener on a machine whose name for
    others is `host`."""
    target, port = parts_of(to)
    bound, own = parts_of(listen)
    if port != own or own == "0":
        return False
    local = is_loopback(target) and is_loopback(host)
    return (
        target == bound
        or (bound in _ANY and (local or target == host))
        or (local and is_loopback(bound))
    )


def parts_of(address: str) -> tuple[str, str]:
    """Host and port as texts."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port
