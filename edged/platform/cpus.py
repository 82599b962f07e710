"""The CPUs that this process may use: its affinity, and the limit of its control group.

A cpuset is part of the affinity that the kernel reports.  `cpu.max` (version 2: `QUOTA PERIOD` or
`max PERIOD`, in µs) limits time, also in a group above; version 1 has the same in two files.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def parse_cpus(text: str) -> frozenset[int]:
    """CPUs of a list such as `0-3,6`, as in cpuset.cpus.  Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{text!r} is no list of CPUs: write e.g. 0-3,6")
        low, high = int(first), int(last or first)
        if not low <= high < 4096:
            raise ValueError(f"{part.strip()!r} is no range of CPUs")
        found.update(range(low, high + 1))
    return frozenset(found)


def confine(cpus: str) -> None:
    """Run this process, and its threads and children from now on, on these CPUs; empty: where it
    may already.  Raises ValueError where it may use none of them."""
    if not cpus:
        return
    wanted, allowed = parse_cpus(cpus), os.sched_getaffinity(0)
    if not wanted & allowed:
        raise ValueError(f"this process may use none of the CPUs {cpus}, only {sorted(allowed)}")
    os.sched_setaffinity(0, wanted & allowed)


def worker_count(own: Path = OWN, root: Path = CGROUPS) -> int:
    """Threads that can run at a time: CPUs of the affinity, and no more than whole CPUs of the
    time that the control group has; at least one."""
    count, limit = len(os.sched_getaffinity(0)), cpu_limit(own, root)
    return count if limit is None else max(1, min(count, math.floor(limit + 0.01)))


def cpu_limit(own: Path = OWN, root: Path = CGROUPS) -> float | None:
    """CPUs' worth of time that the control group and those above it allow; None: no limit."""
    limits = []
    for line in _text(own).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            limits += _limits(root, path)
        elif "cpu" in controllers.split(","):
            limits += _limits(root / "cpu", path)
    return min(limits, default=None)


def _limits(root: Path, path: str) -> list[float]:
    at, found = root / path.lstrip("/"), []
    for place in (at, *at.parents):
        if not place.is_relative_to(root):
            break
        quota, period = [*_text(place / "cpu.max").split(), "", ""][:2]
        if not quota:
            quota, period = (_text(place / f"cpu.cfs_{what}_us") for what in ("quota", "period"))
        if quota.strip().isdecimal() and period.strip().isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
