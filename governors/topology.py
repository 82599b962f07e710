"""The cores of a machine and their clocks, as its kernel shows them (docs/hardware.md 1.1).

Nothing is taken from a profile: what the kernel does not show is None or empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from governors.actuators.base import Knob, discover
from governors.actuators.cpufreq import cpu_list
from governors.detect import DetectedBoard
from governors.sysfs import CPU, Sysfs

CPUINFO = "/proc/cpuinfo"


@dataclass(frozen=True, slots=True)
class CoreDomain:
    """Cores that share a clock, or all cores whose clock the kernel does not show."""

    name: str
    """cpu.policy0; `cpu` where the kernel shows no clock."""
    cores: tuple[int, ...]
    table_hz: tuple[int, ...]
    """Clocks that can be set; empty where the range is continuous or not shown."""
    floor_hz: int | None
    ceiling_hz: int | None
    hz: int | None
    """Current clock."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The cores of a machine."""

    model: str
    """Name of the processor; empty where the kernel has none."""
    online: tuple[int, ...]
    """Numbers of the online cores; hardware threads count as cores."""
    physical: int | None
    """Number of online cores without their further hardware threads."""
    domains: tuple[CoreDomain, ...]

    @property
    def text(self) -> str:
        """`4 cores, 8 threads: AMD EPYC`."""
        count = len(self.online)
        if self.physical is not None and self.physical < count:
            said = f"{_cores(self.physical)}, {count} threads"
        else:
            said = _cores(count) if count else "cores not known"
        return f"{said}: {self.model}" if self.model else said


def topology(sysfs: Sysfs, board: DetectedBoard) -> Topology:
    """The cores of a tree."""
    online = cpu_list(sysfs.get(f"{CPU}/online") or "")
    knobs = [knob for knob in discover(sysfs, board) if knob.kind == "cpu"]
    domains = [_domain(sysfs, knob) for knob in knobs]
    shown = {core for domain in domains for core in domain.cores}
    if rest := tuple(core for core in online if core not in shown):
        domains.append(CoreDomain("cpu", rest, (), None, None, None))
    found = re.search(r"^model name\s*:\s*(.+)$", sysfs.get(CPUINFO) or "", re.M)
    model = found[1].strip() if found else ""
    return Topology(model, online, _physical(sysfs, online), tuple(domains))


def _domain(sysfs: Sysfs, knob: Knob) -> CoreDomain:
    now = sysfs.get_int(knob.current_path) if knob.current_path else None
    hz = None if now is None else now * knob.unit_hz
    return CoreDomain(
        knob.name, knob.cores, knob.table_hz, knob.floor_hz, knob.ceiling_hz, hz
    )  # fmt: skip


def _physical(sysfs: Sysfs, online: tuple[int, ...]) -> int | None:
    """Cores by the lists of their threads; None where a core has no list."""
    lists = {sysfs.get(f"{CPU}/cpu{core}/topology/thread_siblings_list") for core in online}
    return None if None in lists or not lists else len(lists)


def _cores(count: int) -> str:
    return f"{count} core" if count == 1 else f"{count} cores"
