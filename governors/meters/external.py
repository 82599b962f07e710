"""External meters: figures that another program writes to a file or publishes by MQTT.

For an INA226 or INA228 at the plug, a Victron device (VE.Direct), a battery monitor.  The figure is

    JSON          the number at `key` (a.b.c; digits are indices of lists), or the whole document
    text          `key` is the first word of a line, the number the next (VE.Direct: `P\t-12`)
    a number      where there is no key

times `scale`: watts, or joules of a counter.

A figure counts only when it is known to be new: a file by its modification time, a message by its
arrival.  A figure older than `stale_s` is a gap, so the last value of a dead program is not used.
Files below /sys are computed by the kernel at each read and always new.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Protocol

from governors.energy import Provenance, Rail
from governors.meters.base import (
    COUNTER_SPAN_US,
    BoardLike,
    Found,
    Meter,
    PlainMeter,
    Reading,
    failed,
    opener,
    power_reading,
)
from governors.meters.external_mqtt import MqttFeed
from governors.meters.settings import External, MeterSettings
from governors.sysfs import Sysfs, SysfsError

WORD = re.compile(r"[\s:=,;]+")


class TextFeed(Protocol):
    """Origin of a figure as text.  Never blocks and never raises."""

    problem: str
    """Why there is no figure."""

    def latest(self, now_us: int) -> tuple[str, int] | None:
        """The last text, and the time when it was found to be new (monotonic µs)."""

    def close(self) -> None:
        """Release resources."""


class FileFeed:
    """A file that another program rewrites."""

    def __init__(self, sysfs: Sysfs, path: str) -> None:
        self.problem = ""
        self._sysfs, self._path = sysfs, path
        self._kernels = path.startswith("/sys/")
        self._version: tuple[int, int] | None = None
        self._fresh_us: int | None = None

    def latest(self, now_us: int) -> tuple[str, int] | None:
        """Its content; the content at the first read has an unknown age and does not count."""
        try:
            if not self._kernels:
                self._look(now_us)
            text = self._sysfs.read(self._path)
        except (SysfsError, OSError) as problem:
            self.problem = str(problem)
            return None
        if self._kernels:
            return text, now_us
        self.problem = f"{self._path} has not been rewritten since the meter was opened"
        return None if self._fresh_us is None else (text, self._fresh_us)

    def close(self) -> None:
        """Nothing to release."""

    def _look(self, now_us: int) -> None:
        status = Path(self._sysfs.place(self._path)).stat()
        version = (status.st_mtime_ns, status.st_ino)
        if self._version is not None and version != self._version:
            self._fresh_us = now_us
        self._version = version


class ExternalMeter(PlainMeter):
    """One figure of one feed."""

    rank = 10

    def __init__(self, external: External, feed: TextFeed, provenance: Provenance) -> None:
        self.name, self.provenance = f"external:{external.name}", provenance
        self.rails: tuple[Rail, ...] = (Rail(external.name, external.feeds),)
        self.interval_us = int(external.interval_s * 1e6)
        self._counts = external.quantity == "joules"
        self._stale_us = int(external.stale_s * 1e6)
        self.span_us: int | None = COUNTER_SPAN_US if self._counts else None
        self._external, self._feed = external, feed
        self._base: float | None = None
        self._joules = 0.0

    def close(self) -> None:
        """Close the feed."""
        self._feed.close()

    def read(self, now_us: int) -> list[Reading]:
        """The last figure, unless stale."""
        rail = self.rails[0]
        found = self._feed.latest(now_us)
        if found is None:
            return [failed(rail, now_us, self._feed.problem)]
        text, at_us = found
        if now_us - at_us > self._stale_us:
            age_s = (now_us - at_us) / 1e6
            return [failed(rail, now_us, f"no new figure for {age_s:.0f} s")]
        value = number(text, self._external.key)
        if value is None:
            where = f" at {self._external.key!r}" if self._external.key else ""
            return [failed(rail, now_us, f"holds {text[:40]!r}: no number{where}")]
        value *= self._external.scale
        if not self._counts:
            return [power_reading(rail, now_us, value)]
        before, self._base = self._base, value
        if before is not None and value >= before:
            self._joules += value - before
            return [Reading(rail, now_us, None, self._joules, "")]
        lost = "counted from here on" if before is None else "the counter fell: it restarted"
        return [Reading(rail, now_us, None, self._joules, lost)]


def number(text: str, key: str) -> float | None:
    """The finite number at `key`, or of the whole text without a key."""
    try:
        found: Any = json.loads(text)
        for part in key.split(".") if key else ():
            found = found[int(part) if isinstance(found, list) else part]
    except (ValueError, RecursionError):
        found = _in_lines(text, key)
    except (KeyError, IndexError, TypeError):
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float, str)):
        return None
    try:
        value = float(found)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _in_lines(text: str, key: str) -> str | None:
    if not key:
        return text
    for line in text.splitlines():
        words = WORD.split(line.strip())
        if words[0] == key and len(words) > 1:
            return words[1]
    return None


@opener("external")
def find(sysfs: Sysfs, board: BoardLike, settings: MeterSettings) -> Found:
    """The configured external meters."""
    meters: list[Meter] = []
    for external in settings.externals:
        feed: TextFeed = FileFeed(sysfs, external.file) if external.file else MqttFeed(external)
        meters.append(ExternalMeter(external, feed, settings.provenance))
    return Found(tuple(meters))
