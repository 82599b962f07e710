"""Starting, watching and killing the parts of edged as processes: what demo and benchmarks run."""

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

EPHEMERAL_FIRST = 32_768
"""The first port of Linux's default `net.ipv4.ip_local_port_range`."""


class PartFailed(EdgedError):
    """A part ended or kept silent when it should not have; names its log."""

    exit_code = 70


class Part:
    """One process.  JSON lines of its standard output become `events`; the rest goes to a log."""

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
        """The part's first event that says `ready`; raises PartFailed where none comes."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                event = self.events.get(timeout=0.1)
                if event.get("ready"):
                    return event
            self.check()
        raise PartFailed(f"{self.name} is not ready after {timeout_s:.0f} s; see {self.log}")

    def check(self) -> None:
        """Raise PartFailed where the process has ended with an error that nobody asked for."""
        code = self.process.poll()
        if code not in (None, 0) and not self.killed:
            tail = self.log.read_text(errors="replace").strip().splitlines()[-5:]
            raise PartFailed(f"{self.name} ended with {code}; see {self.log}:\n" + "\n".join(tail))

    def running(self) -> bool:
        """Whether the process is there."""
        return self.process.poll() is None

    def kill(self) -> None:
        """`kill -9`, the process alone: what belongs to it must notice by itself."""
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
    """A TCP port of the loopback interface that nobody uses at this moment.

    It is none of those that Linux gives to outgoing connections: one of them could take it while
    a part that was killed is away.
    """
    dice = random.SystemRandom()
    while True:
        port = dice.randrange(10_000, EPHEMERAL_FIRST)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port
