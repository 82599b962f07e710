"""Interrupts by source, from /proc/interrupts (docs/hardware.md, Documentation/filesystems/proc).

An interrupt wakes the core that it finds asleep.  The counts are of all interrupts, so they bound
the wakeups of a source from above; `governors.actuators.sleep` counts the wakeups themselves where
the board has idle states.
"""

from __future__ import annotations

import re

from governors.sysfs import Sysfs, SysfsError

PATH = "/proc/interrupts"
_TRIGGER = re.compile(r"^.*?\b(?:edge|level|fasteoi)\b\s*(?=\S)", re.IGNORECASE)


def read(sysfs: Sysfs) -> dict[str, int]:
    """Counts since boot by source, of all cores; empty where the file cannot be read.  Sources of
    one name are added."""
    try:
        lines = sysfs.read_long(PATH).splitlines()
    except SysfsError:
        return {}
    if not lines:
        return {}
    cores = len(lines[0].split())
    counts: dict[str, int] = {}
    for line in lines[1:]:
        label, colon, rest = line.partition(":")
        fields = rest.split(None, cores)
        numbers = fields[:cores]
        if not colon or not numbers or len(numbers) < cores or not all(map(str.isdigit, numbers)):
            continue  # ERR and MIS have one number, for the whole machine
        name = _name(label.strip(), fields[cores] if len(fields) > cores else "")
        counts[name] = counts.get(name, 0) + sum(map(int, numbers))
    return counts


def per_s(before: dict[str, int], after: dict[str, int], seconds: float) -> dict[str, float]:
    """Interrupts per second by source, most first; sources without any are left out."""
    if seconds <= 0:
        return {}
    rates = {
        name: (count - before.get(name, 0)) / seconds
        for name, count in after.items()
        if count > before.get(name, 0)
    }
    return dict(sorted(rates.items(), key=lambda item: (-item[1], item[0])))


def _name(label: str, text: str) -> str:
    """The device of a numbered interrupt, or the description of an architecture's own."""
    described = " ".join(text.split())
    return _TRIGGER.sub("", described) or f"interrupt {label}"
