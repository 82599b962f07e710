"""The plan of one beat, made before it and carried out by the heart."""

from __future__ import annotations

from dataclasses import dataclass

from edged.beat.runtime import JobRuntime


@dataclass(slots=True)
class BeatPlan:
    """What one beat is to do."""

    oldest_us: int
    """Arrival (monotonic) of the oldest rows that it may find."""
    race: bool
    """Whether to run the jobs, or only to commit what has arrived."""
    rows_max: int | None = None
    """Rows that the governor admits; None: all."""
    last: bool = False
    """Whether this is the last beat, which seals every page."""
    seal: JobRuntime | None = None
    """A job whose pages are all sealed in this beat."""
