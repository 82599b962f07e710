"""The schedule of an operator: when it runs on the rows that wait in its input.

    schedule = { every = "500ms" }              at most once in this time
    schedule = { rows = 1000 }                  when so many rows wait
    schedule = { every = "500ms", rows = 1000 } on whichever comes first
    schedule = "data"                           in each beat with rows: the default

Rows, and the watermark behind them, wait in the operator's input until it runs.  So a schedule adds
to the latency of all that is made of them; with `rows` alone there is no bound.  What waits runs at
the end of the streams, and before a drain, a pause, a replacement or a stop.

`every` counts from the operator's last run.  A schedule is no part of an operator's state, and may
change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edged.documents import reader as doc
from edged.documents.units import show_duration
from edged.errors import JobError
from edged.job.durability import THROUGH

KEY = "schedule"
"""The key of an operator's table."""
DATA = "data"
"""The schedule of an operator that runs in each beat with rows."""
_ADVICE = 'such as { every = "500ms" }, { rows = 1000 }, both, or "data"'


@dataclass(frozen=True)
class OperatorSchedule:
    """A checked schedule: `every_us`, `rows` or both are set."""

    every_us: int = 0
    rows: int = 0

    def describe(self) -> str:
        """A line for `edged explain`."""
        parts = [f"at most every {show_duration(self.every_us)}"] if self.every_us else []
        parts += [f"after {self.rows} rows"] if self.rows else []
        added = f"up to {show_duration(self.every_us)}" if self.every_us else "without a bound"
        return f"runs {' or '.join(parts)}; rows wait for it {added}, beside the latency promise"


def parse(path: str, document: Mapping[str, Any], reads_tables: bool) -> OperatorSchedule | None:
    """The schedule in an operator's table; None: it runs with its data.

    Raises JobError at `path.schedule` or below.
    """
    at, given = f"{path}.{KEY}", document.get(KEY, DATA)
    if given == DATA:
        return None
    if not isinstance(given, Mapping) or not given:
        raise JobError(at, f"{given!r} is no schedule", _ADVICE)
    doc.refuse_unknown(at, given, ("every", "rows"))
    if reads_tables:
        raise JobError(at, "the operator reads a table, whose changes cannot wait", "leave it out")
    every = doc.duration(at, given, "every", least=1) if "every" in given else 0
    rows = doc.integer(at, given, "rows", least=1, most=1 << 40) if "rows" in given else 0
    return OperatorSchedule(every, rows)


def faults(durability: str, schedules: Mapping[str, OperatorSchedule]) -> list[JobError]:
    """The schedules that a job of this durability may not have: rows that wait are state."""
    if durability != THROUGH:
        return []
    problem = f"rows may not wait in a job with durability {THROUGH}"
    return [JobError(f"operators.{id}.{KEY}", problem, "leave it out") for id in schedules]
