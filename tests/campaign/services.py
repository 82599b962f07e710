"""Processes under a service manager: each is started again when it ends, as systemd would."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from edged.platform.processes import ChildProcess, free_port

RESTART_S = 0.1
"""Pause before a restart."""


def reserved_port() -> socket.socket:
    """A socket that keeps a port of the loopback interface while its service is away: listeners
    with SO_REUSEADDR may bind it, other programs may not."""
    while True:
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            held.bind(("127.0.0.1", free_port()))
            return held


class Service(ChildProcess):
    """`python -m ARGUMENTS`, restarted until `stop`; `exits` are the statuses of its lives.

    `watchdog_s` is systemd's WatchdogSec: a life that is silent for longer gets SIGABRT, and
    SIGKILL where that does not end it.
    """

    def __init__(self, name, arguments, logs: Path, watchdog_s: float = 0.0) -> None:
        self.exits: list[int] = []
        self.watchdog_s, self.aborted = watchdog_s, 0
        self._over, self._held = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._notify = logs / f"{name}.notify"
        super().__init__(name, arguments, logs)
        threading.Thread(target=self._supervise, daemon=True).start()

    def _start(self) -> None:
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if self.watchdog_s:
            env["NOTIFY_SOCKET"] = str(self._notify)
            env["WATCHDOG_USEC"] = str(int(self.watchdog_s * 1e6))
            env["PYTHONFAULTHANDLER"] = "1"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=env,
            )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        if self.watchdog_s:
            threading.Thread(target=self._watch, args=(self.process,), daemon=True).start()

    def _supervise(self) -> None:
        while not self._over.is_set():
            process = self.process
            self.exits.append(process.wait())
            if self._over.wait(RESTART_S):
                return
            with self._lock:
                while self._held.is_set() and not self._over.is_set():
                    time.sleep(0.02)
                if not self._over.is_set():
                    self._start()

    def _watch(self, process: subprocess.Popen) -> None:
        """Abort a life that has said it is ready and then is silent for too long."""
        with contextlib.suppress(FileNotFoundError):
            self._notify.unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
            inbox.bind(str(self._notify))
            inbox.settimeout(0.1)
            fed = None
            while process.poll() is None:
                with contextlib.suppress(TimeoutError):
                    if b"WATCHDOG=1" in inbox.recv(1 << 16) or fed is not None:
                        fed = time.monotonic()
                if fed is not None and time.monotonic() - fed > self.watchdog_s:
                    self.aborted += 1
                    process.send_signal(signal.SIGABRT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(1.0)
                    process.kill()
                    return

    def check(self) -> None:
        """A service never fails: it is restarted."""

    def kill(self) -> None:
        """SIGKILL; the service manager starts it again."""
        self.process.kill()

    def hold(self) -> None:
        """SIGKILL, and no restart until `release`."""
        self._held.set()
        process = self.process
        for child in self.tree()[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait()

    def release(self) -> None:
        """Start it again."""
        self._held.clear()

    def tree(self) -> list[psutil.Process]:
        """The process and its children."""
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        return []

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children."""
        for each in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def stop(self, timeout_s: float = 20.0) -> None:
        """SIGTERM, after `timeout_s` SIGKILL; no restart."""
        self._over.set()
        with self._lock:
            super().stop(timeout_s)
