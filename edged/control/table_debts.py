"""What the tables of a running job owe: rates of probes and merges, runs, and the debt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edged.control.door import ask
from edged.errors import ConfigError

DEBT = "debt_ns"


def debts(door: Path, name: str) -> list[str]:
    """A line for each state of a job's tables.  Raises ConfigError where the job does not run."""
    status = ask(door, "status")
    job = status["jobs"].get(name)
    if job is None:
        raise ConfigError(f"the daemon at {door} runs no job {name}")
    return debt_lines(job, max(1e-6, float(status["uptime_s"])))


def debt_lines(job: dict[str, Any], seconds: float) -> list[str]:
    """The lines of a job's status, with rates over so many seconds."""
    lines = []
    for id, figures in job["operators"].items():
        for side in [key.removesuffix(DEBT) for key in figures if key.endswith(DEBT)]:
            joules = figures.get(f"{side}debt_j")
            probed, merged = (
                figures[f"{side}{n}"] / seconds for n in ("probed_keys", "merged_rows")
            )
            debt = f"{figures[side + DEBT] / 1e6:.1f} ms"
            lines.append(
                f"{id} {side.strip('_') or 'table'}: {figures[side + 'runs']} runs,"
                f" {probed:.0f} keys/s probed, {merged:.0f} rows/s merged, debt {debt}"
                + ("" if joules is None else f" ({1e3 * joules:.2f} mJ)")
            )
    return lines
