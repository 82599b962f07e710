"""The device side of the desired state: runs the child process that applies each new version.

    uplink process ──► STORE/desired.received.json ──► python -m edged.centre_link.desired_state
                                                           │            │
             telemetry, events, windows ◄── STORE/desired.json      control door

Checking a document and compiling its expressions takes seconds, so a child process does it.  The
child writes `desired.json` once a version is applied or refused.  A version interrupted by a crash
is applied again at the next start; applying is idempotent.
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
from edged.platform.event_loop import EventLoop

_READ_BYTES = 1 << 16


class DesiredStateFollower:
    """Follows the desired state of one daemon; the heart's thread only.

    `on_result` is called when a version is applied, refused, or its child process failed.
    """

    def __init__(
        self,
        directory: Path,
        door: Path,
        event_loop: EventLoop,
        events: Events,
        on_result: Callable[[], None],
    ) -> None:
        self._directory, self._door = directory, door
        self._event_loop, self._events, self._on_result = event_loop, events, on_result
        self._result = self.read(directory)
        self.received: int = self._result["received"]
        """The newest version that the uplink process has written."""
        self._child: subprocess.Popen[bytes] | None = None
        self._output = bytearray()

    @staticmethod
    def read(directory: Path) -> dict[str, Any]:
        """The content of `desired.json`, and under `received` the newest version received."""
        defaults: dict[str, Any] = {
            "version": 0,
            "applied": 0,
            "problem": "",
            "windows": [],
            "policy": None,
        }
        result = defaults | read(directory / RESULT)
        received = int(read(directory / RECEIVED).get("version", 0))
        return {**result, "received": max(int(result["version"]), received)}

    @property
    def windows(self) -> list[list[int]]:
        """The upload windows of the applied version; empty: always."""
        windows: list[list[int]] = self._result["windows"]
        return windows

    @property
    def policy(self) -> dict[str, Any] | None:
        """The policy of the applied version, `{"name", "settings"}`; None: the configuration's."""
        policy: dict[str, Any] | None = self._result["policy"]
        return policy

    def outcome(self) -> dict[str, Any]:
        """The newest `version` received, the one `applied`, and the `problem` of the newest."""
        result = self._result
        decided = result["version"] == self.received
        return {
            "version": self.received,
            "applied": result["applied"],
            "problem": result["problem"] if decided else "",
        }

    def follow(self, announced: Any = None) -> None:
        """Start a child for the newest version that is neither applied nor refused.

        `announced` is a version that the uplink announces (`Uplink.desired`).  Does nothing while
        a child runs; its end calls this again.
        """
        if isinstance(announced, Mapping) and isinstance(announced.get("version"), int):
            self.received = max(self.received, announced["version"])
        if self._child is not None or self.received <= self._result["version"]:
            return
        words = [
            sys.executable,
            "-m",
            "edged.centre_link.desired_state",
            str(self._directory),
            str(self._door),
        ]
        try:
            self._child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        except OSError as problem:  # TasksMax, descriptors, memory: the next version tries again
            self._fail(f"its child process did not start: {problem}")
            return
        assert self._child.stdout is not None
        self._output.clear()
        self._event_loop.add_control(self._child.stdout.fileno(), self._on_output)

    def close(self) -> None:
        """Kill the child; the next start follows the same version again."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _on_output(self) -> None:
        """Read what is there.  An interpreter needs some 0.3 s to exit after its last write; no
        beat waits for that."""
        assert self._child is not None and self._child.stdout is not None
        part = os.read(self._child.stdout.fileno(), _READ_BYTES)
        self._output += part
        if not part:
            self._on_exit()

    def _on_exit(self) -> None:
        child, self._child = self._child, None
        assert child is not None and child.stdout is not None
        self._event_loop.remove_control(child.stdout.fileno())
        child.stdout.close()
        child.wait()
        try:
            self._result |= json.loads(self._output)
        except ValueError:
            status = child.returncode
            self._fail(f"its child process ended with status {status}; see the log")
        else:
            self._publish()
            self._on_result()
        self.follow()

    def _fail(self, problem: str) -> None:
        """Give the newest version up until the next start or the next version."""
        self._result |= {"version": self.received, "problem": problem, "done": []}
        self._publish()
        self._on_result()

    def _publish(self) -> None:
        version, problem = self._result["version"], self._result["problem"]
        facts = {"version": version, "applied": self._result.get("done", [])}
        if problem:
            text = f"desired state {version} refused: {problem}"
            refusal = {**facts, "problem": problem}
            self._events.add("desired.refused", text, level="error", facts=refusal)
        else:
            text = f"desired state {version} applied: {', '.join(facts['applied']) or 'no change'}"
            self._events.add("desired.applied", text, facts=facts)
