"""Waiting for a job to drain, driven by the daemon's live snapshots and events, without polling."""

from __future__ import annotations

import contextlib
from typing import Any

from api.door_client import DoorClient, Mailbox, Snapshot
from api.operations import Progress
from api.problems import ApiProblem

_PAUSE_S = 3600.0
"""Longest wait for a snapshot; while the daemon is there they come once a second."""


class Drain:
    """Waits for the draining job `name`.

    It reports two steps: `race` counts accepted rows that are in no sealed page, `ship` counts
    pages that the centre does not have.  Progress is relative to the largest count seen.
    """

    def __init__(self, door: DoorClient, name: str, goes: bool, progress: Progress) -> None:
        self._door, self._name, self._progress = door, name, progress
        self._goes = goes
        """Whether the job is deleted at the end."""
        self._most = {"race": 0, "ship": 0}
        self._created_us: int | None = None

    async def wait(self) -> None:
        """Wait until the job has drained or is deleted, across restarts of the daemon.

        Raises ApiProblem 409 if another command has changed the job's state.
        """
        async with self._door.reader() as mailbox:
            latest = await self._ask()
            while latest is None or not self._look(latest):
                latest = await self._next(mailbox, latest)

    async def _ask(self) -> Snapshot | None:
        """The state after all earlier answers; None while the daemon is away."""
        with contextlib.suppress(ApiProblem):
            return await self._door.ask("status")
        return None

    async def _next(self, mailbox: Mailbox, before: Snapshot | None) -> Snapshot | None:
        """A state newer than `before`, as soon as something has happened to the job."""
        while True:
            await mailbox.wait(_PAUSE_S)
            concerns = any(event.get("job") == self._name for event in mailbox.events)
            mailbox.events.clear()
            if concerns:
                return await self._ask() or before
            latest, mailbox.snapshot = mailbox.snapshot, None
            if latest is not None and (before is None or _age(latest) > _age(before)):
                return latest

    def _look(self, snapshot: Snapshot) -> bool:
        """Report the progress; true once the drain is over."""
        job = snapshot["jobs"].get(self._name)
        if job is None or self._created_us not in (None, job["created_us"]):
            return True
        self._created_us = job["created_us"]
        if job["state"] not in ("draining", "drained"):
            raise ApiProblem(
                "conflict", f"job {self._name} was latest otherwise: it is {job['state']}"
            )
        step, left = _left(job)
        self._most[step] = most = max(self._most[step], left)
        self._progress(step, most - left, most)
        return not self._goes and bool(job["state"] == "drained")


def _left(job: dict[str, Any]) -> tuple[str, int]:
    """The current step of a job, and the amount that remains of it."""
    rows = sum(stream["staged"] for stream in job["streams"].values())
    rows += sum(sink["open_rows"] for sink in job["sinks"].values())
    return ("race", rows) if rows else ("ship", int(job["pages_waiting"] or 0))


def _age(snapshot: Snapshot) -> tuple[int, float]:
    return snapshot["session"], snapshot["uptime_s"]
