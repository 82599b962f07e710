"""Placement: the daemon of each instance, chosen where the document leaves it open.

`auto` takes the least loaded daemon that fits.  In this order:

1. An instance stays where it runs already.
2. Daemons that answer and have memory left for its promise (and ports for its links).
3. Of these the one with the fewest instances of the same stage, then the least loaded: the share of
   its cores that it used lately, and a twentieth for each instance that this placement adds.  Ties
   go to the first in the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edged.documents.units import show_size
from edged.errors import JobError
from edged.graph.document import DaemonTerms
from edged.graph.stages import Cut, Placement, Stage

ADDED_LOAD = 0.05
"""The share of a daemon's cores that an instance is expected to use before it runs."""


@dataclass(frozen=True)
class DaemonLoad:
    """What a daemon runs now; the default is one that has not been asked."""

    reachable: bool = True
    busy: float = 0.0
    """Share of its cores."""
    promised_bytes: int = 0
    """Memory promised by jobs of other graphs, or of none."""
    instances: frozenset[tuple[str, int]] = field(default_factory=frozenset)
    """(stage, instance) of this graph's jobs that run there."""


def place(
    made: Cut, memory_bytes: int, loads: Mapping[str, DaemonLoad]
) -> tuple[dict[str, Placement], list[JobError]]:
    """The daemon of each instance of each stage, and the instances without one."""
    plan = made.plan
    loads = {name: loads.get(name, DaemonLoad()) for name in plan.daemons}
    taken = {name: load.promised_bytes for name, load in loads.items()}
    busy = {name: load.busy for name, load in loads.items()}
    found, wrong = dict[str, Placement](), list[JobError]()
    for stage in made.stages.values():
        for name in stage.on:
            taken[name] += memory_bytes
            busy[name] += ADDED_LOAD
        if stage.on:
            found[stage.name] = stage.on
    for stage in made.stages.values():
        if stage.on:
            continue
        chosen = list[str]()
        for i in range(stage.instances):
            fits = [
                n for n, d in plan.daemons.items() if _fits(d, loads[n], taken[n], memory_bytes)
            ]
            stays = [n for n in fits if (stage.name, i) in loads[n].instances]
            if not fits:
                wrong.append(_nowhere(made, stage, memory_bytes, loads))
                break
            name = min(stays or fits, key=lambda n: (chosen.count(n), busy[n]))
            chosen.append(name)
            taken[name] += memory_bytes
            busy[name] += ADDED_LOAD
        found[stage.name] = tuple(chosen)
    wrong += _overfull(made, found, memory_bytes, loads)
    return found, wrong


def _fits(daemon: DaemonTerms, load: DaemonLoad, taken: int, needed: int) -> bool:
    return load.reachable and (not daemon.memory_bytes or taken + needed <= daemon.memory_bytes)


def _nowhere(made: Cut, stage: Stage, needed: int, loads: Mapping[str, DaemonLoad]) -> JobError:
    silent = [n for n, load in loads.items() if not load.reachable]
    why = f"; {', '.join(silent)} does not answer" if silent else ""
    path = f"{made.plan.parts[stage.name].path}.place"
    problem = f"no daemon has {show_size(needed)} left{why}"
    return JobError(path, problem, "lower promises.memory, or raise a daemon's memory")


def _overfull(
    made: Cut, found: Mapping[str, Placement], needed: int, loads: Mapping[str, DaemonLoad]
) -> list[JobError]:
    wrong = []
    for name, daemon in made.plan.daemons.items():
        jobs = sum(on.count(name) for on in found.values())
        asked = jobs * needed + loads[name].promised_bytes
        if daemon.memory_bytes and jobs and asked > daemon.memory_bytes:
            problem = f"is {show_size(daemon.memory_bytes)}, its jobs promise {show_size(asked)}"
            wrong.append(JobError(f"daemons.{name}.memory", problem, "move one of them"))
    return wrong
