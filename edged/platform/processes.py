"""Child processes of edged, as the demo and the benchmarks start, watch and kill them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edged.errors import EdgedError

NICENESS = 10
"""Niceness of the API and of checks: beats have priority."""

EPHEMERAL_FIRST = 32_768
"""The first port of Linux's default `net.ipv4.ip_local_port_range`."""


class ChildProcessFailed(EdgedError):
    """A child process ended with an error or did not become ready; names its log."""

    exit_code = 70


class ChildProcess:
    """One process.  JSON lines of its standard output become `events`; standard error is logged."""

    def __init__(self, name: str, arguments: Sequence[str], logs: Path) -> None:
        self.name, self.arguments = name, list(arguments)
        self.log = logs / f"{name}.log"
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.killed = False
        self._start()

    def _start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        self.events.put(event)

    def ready(self, timeout_s: float = 300.0) -> dict[str, Any]:
        """The first event with `ready`.  Raises ChildProcessFailed where none comes in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                event = self.events.get(timeout=0.1)
                if event.get("ready"):
                    return event
            self.check()
        raise ChildProcessFailed(
            f"{self.name} is not ready after {timeout_s:.0f} s; see {self.log}"
        )

    def check(self) -> None:
        """Raise ChildProcessFailed where the process has ended with an error and was not killed."""
        code = self.process.poll()
        if code not in (None, 0) and not self.killed:
            tail = self.log.read_text(errors="replace").strip().splitlines()[-5:]
            raise ChildProcessFailed(
                f"{self.name} ended with {code}; see {self.log}:\n" + "\n".join(tail)
            )

    def running(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the process alone; its own children must notice by themselves."""
        self.killed = True
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start the same command again."""
        self._start()
        self.killed = False

    def stop(self, timeout_s: float = 20.0) -> None:
        """SIGTERM, and after `timeout_s` SIGKILL for the whole session."""
        if self.running():
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    """A TCP port of the loopback interface that is free now.

    It lies below Linux's ports for outgoing connections: one of those could be taken while a killed
    process is away.
    """
    source = random.SystemRandom()
    while True:
        port = source.randrange(10_000, EPHEMERAL_FIRST)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port
