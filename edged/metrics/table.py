"""Rows of a metrics table, and the labels that they may use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

SERIES_MAX = 64
"""Largest number of label sets of a metric whose row has no other bound."""
LABEL_CHARS_MAX = 96
"""Length at which values of labels are cut."""

LABELS = {
    "address": "where a source listens, or what it reads",
    "cause": "why the board is throttled; docs/energy.md lists them",
    "clock": "a frequency domain, as the board calls it",
    "code": "HTTP status",
    "device": "the device's name at the centre",
    "gpu": "a GPU, as the board calls it",
    "hertz": "an operating point",
    "how": "`counted` by the kernel, or `seen`: the clock at each reading",
    "job_name": "a job's name (`job` is Prometheus' label of a group of targets)",
    "kernel": "a join kernel",
    "kind": "of a source, or of an event",
    "leg": "a part of the path from arrival to landing",
    "meter": "the meter that reads the rail",
    "operator": "an operator's id within its job",
    "part_of": "the rail that contains this one; never add the two",
    "phase": "a phase of a beat",
    "policy": "an energy policy",
    "problem": "why a page did not land",
    "rail": "a supply, as the board calls it",
    "reason": "why rows were dropped",
    "receiver": "a link's receiver: its number in `to`, from 0",
    "result": "how a batch ended",
    "simulated": "`true`: of a simulated board, `false`: of this machine",
    "sink": "a sink's id within its job",
    "source": "provenance of a figure of energy: `measured`, `modelled` or `simulated`",
    "state": "a state; the current one has the value 1",
    "stream": "a stream's id within its job",
    "trip": "kind of a trip point: `passive`, `hot` or `critical`",
    "zone": "a thermal zone, as the board calls it",
}
"""Every label with its values, except those that only info metrics have."""

_NAME = re.compile(r"edged_[a-z][a-z0-9_]*")


class Kind(str, Enum):
    """The type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"
    """A gauge that is always 1; its labels carry the information."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.  Raises ValueError where it breaks the naming rules."""

    name: str
    """The exposed name, without a histogram's suffixes."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    series_max: int = 0
    """Largest number of label sets.  0: SERIES_MAX with labels, 1 without."""

    def __post_init__(self) -> None:
        ends = {Kind.COUNTER: "_total", Kind.INFO: "_info"}.get(self.kind, "")
        reserved = ("_total", "_info", "_bucket", "_count", "_sum", "_created")
        if not _NAME.fullmatch(self.name) or not self.name.endswith(ends):
            raise ValueError(f"{self.name}: edged_…{ends}, lower case")
        if not ends and self.name.endswith(reserved):
            raise ValueError(f"{self.name}: a {self.kind.value} must not end so")
        if self.kind is not Kind.INFO and not set(self.labels) <= set(LABELS):
            raise ValueError(f"{self.name}: {self.labels} are not all in LABELS")
        if not self.help.endswith(".") or "\n" in self.help:
            raise ValueError(f"{self.name}: its help is no sentence")

    @property
    def bound(self) -> int:
        """The largest number of label sets."""
        return self.series_max or (SERIES_MAX if self.labels else 1)


def table(*rows: Metric) -> dict[str, Metric]:
    """The rows by name.  Raises ValueError where two have one name."""
    named = {row.name: row for row in rows}
    if len(named) != len(rows):
        raise ValueError("two metrics have one name")
    return named


def counter(name: str, help: str, *labels: str, series_max: int = 0) -> Metric:
    """A value that only grows while its process lives."""
    return Metric(name, Kind.COUNTER, help, labels, series_max)


def gauge(name: str, help: str, *labels: str, series_max: int = 0) -> Metric:
    """A value that goes up and down."""
    return Metric(name, Kind.GAUGE, help, labels, series_max)


def histogram(name: str, help: str, *labels: str, series_max: int = 0) -> Metric:
    """Observations counted by size."""
    return Metric(name, Kind.HISTOGRAM, help, labels, series_max)


def info(name: str, help: str, *labels: str, series_max: int = 0) -> Metric:
    """Facts carried by labels."""
    return Metric(name, Kind.INFO, help, labels, series_max or 1)
