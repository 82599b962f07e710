"""CPU time and context switches of this machine's processes between two moments, from /proc.

A process that ends between the moments is in neither list; its time is part of the rest, the busy
time of the cores that belongs to no listed process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class ProcessTime:
    """CPU time (s) of a process, and how often it slept and was woken (voluntary switches)."""

    pid: int
    name: str
    cpu_s: float
    sleeps: int


Snapshot = Mapping[tuple[int, float], ProcessTime]
"""By process id and start time: a reused id is another process."""


def snapshot() -> Snapshot:
    """All processes now, since their start."""
    found = {}
    for process in psutil.process_iter(["name", "cpu_times", "num_ctx_switches", "create_time"]):
        facts = process.info
        times, switches = facts["cpu_times"], facts["num_ctx_switches"]
        if times is None or facts["create_time"] is None:
            continue  # ended, or hidden from this user
        found[process.pid, facts["create_time"]] = ProcessTime(
            process.pid,
            facts["name"] or "?",
            times.user + times.system,
            0 if switches is None else switches.voluntary,
        )
    return found


def between(before: Snapshot, after: Snapshot, without: Iterable[int] = ()) -> list[ProcessTime]:
    """What each process of `after` did since `before`, most CPU time first; `without`: process ids
    that are left out.  Processes that neither ran nor slept are left out too."""
    left_out = set(without)
    found = []
    for key, now in after.items():
        if now.pid in left_out:
            continue
        then = before.get(key)
        cpu_s = now.cpu_s - (then.cpu_s if then else 0.0)
        sleeps = now.sleeps - (then.sleeps if then else 0)
        if cpu_s > 0 or sleeps > 0:
            found.append(ProcessTime(now.pid, now.name, cpu_s, sleeps))
    return sorted(found, key=lambda p: (-p.cpu_s, -p.sleeps, p.pid))


def tree_cpu_s(pid: int) -> float:
    """CPU time (s) of a process, its living descendants, and those that were waited for."""
    total = 0.0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return total
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it ended meanwhile
        total += times.user + times.system + times.children_user + times.children_system
    return total
