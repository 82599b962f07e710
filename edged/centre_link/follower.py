"""The daemon's part of the desired state: a child judges and applies it, here is told what came
of it.

    uplink's process ──► STORE/desired.received.json ──► python -m edged.centre_link.desired_state
    ──► the door
                                                           │
             telemetry, events, windows ◄── STORE/desired.json

Judging a document and compiling its expressions takes seconds: nothing of it runs in this process.
`desired.json` is written when a version has been applied or refused, so a version that a crash cut
short is taken up again by the next start; applying it again changes nothing that it had changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edged.centre_link.desired_state import RECEIVED, RESULT, read
from edged.events.log import Events
from edged.platform.event_loop import Waiter

_READ_BYTES = 1 << 16


class Follower:
    """Of one daemon with an uplink; the heart's thread only."""

    def __init__(self, directory: Path, waiter: Waiter, events: Events) -> None:
        self.ended: Callable[[], None] = lambda: None
        """Told that a version has been applied or refused."""
        self._directory, self._waiter, self._events = directory, waiter, events
        self._result = self.read(directory)
        self.received: int = self._result["received"]
        """The newest version that the uplink's process has written."""
        self._child: subprocess.Popen[bytes] | None = None
        self._said = bytearray()

    @staticmethod
    def read(directory: Path) -> dict[str, Any]:
        """What `desired.json` says, and with `received` the newest version that has come."""
        none: dict[str, Any] = {
            "version": 0,
            "applied": 0,
            "problem": "",
            "windows": [],
            "policy": None,
        }
        result = none | read(directory / RESULT)
        came = int(read(directory / RECEIVED).get("version", 0))
        return {**result, "received": max(int(result["version"]), came)}

    @property
    def windows(self) -> list[list[int]]:
        """The upload windows that count."""
        windows: list[list[int]] = self._result["windows"]
        return windows

    @property
    def policy(self) -> dict[str, Any] | None:
        """The policy that counts, `{"name", "settings"}`; None: the configuration's."""
        policy: dict[str, Any] | None = self._result["policy"]
        return policy

    def outcome(self) -> dict[str, Any]:
        """The newest `version` that came, the one that is `applied`, and the `problem` since."""
        result = self._result
        judged = result["version"] == self.received
        return {
            "version": self.received,
            "applied": result["applied"],
            "problem": result["problem"] if judged else "",
        }

    def look(self, told: Any, door: Path) -> None:
        """Take up the version that the uplink tells of (`Uplink.desired`), or has received
        before, unless that was done."""
        if isinstance(told, Mapping) and isinstance(told.get("version"), int):
            self.received = max(self.received, told["version"])
        if self._child is not None or self.received <= self._result["version"]:
            return
        words = [
            sys.executable,
            "-m",
            "edged.centre_link.desired_state",
            str(self._directory),
            str(door),
        ]
        try:
            self._child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        except OSError as problem:  # TasksMax, descriptors, memory: the next version tries again
            self._failed(f"judging it could not begin: {problem}")
            return
        assert self._child.stdout is not None
        self._said.clear()
        self._waiter.add_control(self._child.stdout.fileno(), lambda: self._hear(door))

    def close(self) -> None:
        """End the child; the next start takes up what it leaves."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _hear(self, door: Path) -> None:
        """The child has said something, or ended: an interpreter takes some 0.3 s for that after
        its last word, which no beat waits for."""
        assert self._child is not None and self._child.stdout is not None
        part = os.read(self._child.stdout.fileno(), _READ_BYTES)
        self._said += part
        if not part:
            self._ended(door)

    def _ended(self, door: Path) -> None:
        child, self._child = self._child, None
        assert child is not None and child.stdout is not None
        self._waiter.remove_control(child.stdout.fileno())
        child.stdout.close()
        child.wait()
        try:
            self._result |= json.loads(self._said)
        except ValueError:
            self._failed(f"judging it ended with status {child.returncode}; the log says why")
        else:
            self._tell()
            self.ended()
        self.look(None, door)

    def _failed(self, problem: str) -> None:
        """The newest version is neither applied nor refused before the next start, or another."""
        self._result |= {"version": self.received, "problem": problem, "done": []}
        self._tell()
        self.ended()

    def _tell(self) -> None:
        version, problem = self._result["version"], self._result["problem"]
        facts = {"version": version, "applied": self._result.get("done", [])}
        if problem:
            text = f"desired state {version} refused: {problem}"
            told = {**facts, "problem": problem}
            self._events.add("desired.refused", text, level="error", facts=told)
        else:
            text = f"desired state {version} applied: {', '.join(facts['applied']) or 'no change'}"
            self._events.add("desired.applied", text, facts=facts)
