"""Circles: jobs of a graph whose links lead back to them.

The links that the cut makes lead to higher levels only.  A stream and an `edge` sink of the
document may connect two jobs besides, by their addresses.  Jobs in a circle wait for each other for
ever once their links have too much in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from edged.errors import JobError
from edged.graph.document import DaemonTerms
from edged.graph.jobs import JobInstance
from edged.job.circles import ADVICE, leads_to, parts_of
from edged.platform.loopback import is_loopback

_Hop = tuple[int, str]
"""Number of the receiving job, path of the address in the sender's document."""


class _Listener(NamedTuple):
    """A job that listens."""

    job: int
    daemon: str
    host: str
    listen: str


def circle_faults(
    jobs: list[JobInstance],
    daemons: Mapping[str, DaemonTerms],
    origin: Callable[[JobInstance, str], str],
) -> list[JobError]:
    """A fault for each circle, at the first link in it that is a sink of the document; `origin` is
    the path in the graph's document of a path in a job's."""
    listeners = _listeners(jobs, daemons)
    hops = [list(_hops(one, listeners)) for one in jobs]
    wrong: list[JobError] = []
    done: set[int] = set()
    for start in range(len(jobs)):
        trail: list[_Hop] = []
        _search(start, start, hops, done, trail)
        if trail:
            way = [start, *(k for k, _ in trail)]
            paths = [origin(jobs[k], hop[1]) for k, hop in zip(way, trail, strict=False)]
            path = next((p for p in paths if p.startswith("sinks.")), paths[0])
            names = " → ".join(jobs[k].name for k in way)
            wrong.append(JobError(path, f"is in a circle: {names}", ADVICE))
            done |= {start, *(k for k, _ in trail)}
    return wrong


def _search(at: int, goal: int, hops: list[list[_Hop]], done: set[int], trail: list[_Hop]) -> bool:
    """Whether links lead from a job to `goal`; `trail` has the way."""
    seen = {at}

    def visit(job: int) -> bool:
        for hop in hops[job]:
            if hop[0] in done or (hop[0] in seen and hop[0] != goal):
                continue
            seen.add(hop[0])
            trail.append(hop)
            if hop[0] == goal or visit(hop[0]):
                return True
            trail.pop()
        return False

    return at not in done and visit(at)


def _listeners(
    jobs: list[JobInstance], daemons: Mapping[str, DaemonTerms]
) -> dict[str, list[_Listener]]:
    """The jobs that listen, by port."""
    found: dict[str, list[_Listener]] = {}
    for k, job in enumerate(jobs):
        for stream in job.document.get("streams", {}).values():
            source = stream.get("source", {})
            if source.get("type") == "tcp":
                address = str(source.get("listen", ""))
                one = _Listener(k, job.daemon, daemons[job.daemon].host, address)
                found.setdefault(parts_of(address)[1], []).append(one)
    return found


def _hops(one: JobInstance, listeners: Mapping[str, list[_Listener]]) -> Iterator[_Hop]:
    """The jobs that a job's links lead to."""
    for id, sink in one.document.get("sinks", {}).items():
        to = sink.get("to") if sink.get("type") == "edge" else None
        for i, address in enumerate(map(str, to if isinstance(to, list) else ())):
            host, port = parts_of(address)
            for other in listeners.get(port, ()):
                apart = other.daemon != one.daemon and not is_loopback(other.host)
                if leads_to(address, other.listen, other.host) and not (
                    apart and is_loopback(host)
                ):
                    yield other.job, f"sinks.{id}.to[{i}]"
