"""The running `pages` source: a TCP source on a unix socket, and the process that devices reach.

The listening socket belongs to the daemon and is passed on, so that the port stays while the
process is started again.  The process ends with its standard input, which the daemon holds.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edged.errors import ConfigError
from edged.pages.container import GATEWAY_DIRECTORY
from edged.platform.backoff import Backoff, jitter
from edged.platform.timers import TimerFd
from edged.sources._tcp_socket import TcpSettings, listen
from edged.sources._tcp_source import TcpSource
from edged.sources.base import Source

if TYPE_CHECKING:
    from edged.data.staging import Staging
    from edged.data.workers import Workers

_PROCESS = "edged.central.gateway"
_MESSAGE_BYTES_MAX = 64 << 20
_HEALTHY_S = 5.0
"""A process that lived this long is started again at once."""
_GOODBYE_S = 5.0
_ORPHAN_S, _ORPHAN_POLL_S = 5.0, 0.05
"""Longest wait for the port after the daemon was killed, and between two tries: the process that
it left behind has the port until it notices."""


@dataclass(frozen=True)
class GatewaySettings:
    """What streams of one listener share."""

    host: str
    port: int
    tokens: str | None
    tls_cert: str | None
    tls_key: str | None
    producers_max: int


@dataclass(frozen=True)
class DeviceStream:
    """What a stream of the job takes of the devices' pages."""

    stream: str
    """The devices' stream; empty: all that no other takes, as they are."""
    schema: str
    """JSON form of the job's columns."""


class PagesSource(TcpSource):
    """See the module's docstring.  `takes` is what each stream takes."""

    def __init__(
        self,
        settings: GatewaySettings,
        takes: Mapping[str, DeviceStream],
        stagings: Mapping[str, Staging],
        workers: Workers | None = None,
    ) -> None:
        inner = TcpSettings(
            "", 0, message_bytes_max=_MESSAGE_BYTES_MAX, producers_max=settings.producers_max,
            path=GATEWAY_DIRECTORY,
        )  # fmt: skip
        super().__init__(inner, stagings, workers)
        self.takes_http = False
        self._gateway, self._takes = settings, dict(takes)
        self._directory = self._files = Path()
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._started_s = 0.0
        self._starts = 0
        self._backoff = Backoff(jitter, 0.25, 30.0)
        self._timer: TimerFd | None = None
        self._control: select.epoll | None = None

    @property
    def port(self) -> int:
        """The port that devices reach."""
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    def place(self, directory: Path, files: Path) -> None:
        """Place the socket in the store's directory; relative paths of the plan start at `files`.

        Its name has the configured port, since a daemon may have several such listeners.
        """
        self._directory, self._files = directory / GATEWAY_DIRECTORY, files
        self._admission.path = str(directory / f"{GATEWAY_DIRECTORY}-{self._gateway.port}")

    def check(self, leaving: Sequence[Source]) -> None:
        """Read the files; bind, unless a source that leaves has the port."""
        self._check_files()
        ports = {s.port for s in leaving if isinstance(s, PagesSource)}
        if self._gateway.port not in ports:
            self._listener = self._listen()

    def start(self) -> None:
        """Bind both sockets, and start the process.  Raises ConfigError."""
        self._check_files()
        if self._listener is None:
            self._listener = self._listen()
        super().start()
        self._timer = TimerFd()
        self._control = select.epoll()
        self._control.register(super().control_fileno(), select.EPOLLIN)
        self._control.register(self._timer.fileno(), select.EPOLLIN)
        self._start_process()

    def control_fileno(self) -> int:
        """Readable when a connection of the process waits, or the process has ended."""
        assert self._control is not None
        return self._control.fileno()

    def serve_control(self, monotonic_us: int) -> None:
        """Admit connections; start the process again where it has ended."""
        super().serve_control(monotonic_us)
        process = self._process
        if process is None:
            assert self._timer is not None
            if select.select([self._timer], [], [], 0)[0]:
                self._timer.disarm()
                self._start_process()
        elif process.poll() is not None:
            self._ended(process, monotonic_us)

    def close(self) -> None:
        """End the process, which answers nothing more, and close all connections."""
        process, self._process = self._process, None
        if process is not None:
            self._forget(process)
            try:
                process.wait(_GOODBYE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for own in (self._control, self._timer, self._listener):
            if own is not None:
                own.close()
        self._listener = None
        super().close()

    def counters(self) -> Mapping[str, int | float]:
        """Those of the TCP source, and how often the process was started."""
        return {**super().counters(), "starts": self._starts}

    def _listen(self) -> socket.socket:
        """The listener.  Where the file of the last daemon's socket is still there, that daemon was
        killed, and its process may have the port for a moment.  Raises ConfigError."""
        killed = Path(self._admission.path).exists()
        deadline_s = time.monotonic() + (_ORPHAN_S if killed else 0.0)
        while True:
            try:
                return listen(self._gateway.host, self._gateway.port)
            except ConfigError:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(_ORPHAN_POLL_S)

    def _check_files(self) -> None:
        for key in ("tokens", "tls_cert", "tls_key"):
            name = getattr(self._gateway, key)
            if name is not None and not os.access(self._files / name, os.R_OK):
                raise ConfigError(f"{key} {name} cannot be read")

    def _start_process(self) -> None:
        """Start the process, and give it its configuration."""
        assert self._listener is not None and self._control is not None
        settings = asdict(self._gateway)
        for key in ("tokens", "tls_cert", "tls_key"):
            settings[key] = str(self._files / settings[key]) if settings[key] else None
        config = {
            **settings,
            "listener": self._listener.fileno(),
            "socket": self._admission.path,
            "directory": str(self._directory),
            "streams": {name: asdict(taken) for name, taken in self._takes.items()},
        }
        self._listener.set_inheritable(True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", _PROCESS],
            pass_fds=[self._listener.fileno()],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is handled by the daemon
        )
        self._listener.set_inheritable(False)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `serve_control` notices
            self._process.stdin.write(json.dumps(config).encode() + b"\n")
            self._process.stdin.flush()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._control.register(self._pidfd, select.EPOLLIN)
        self._started_s = time.monotonic()
        self._starts += 1

    def _ended(self, process: subprocess.Popen[bytes], monotonic_us: int) -> None:
        """Start the next process now, or later where this one did not live long."""
        self._forget(process)
        self._process = None
        self.on_defect("the gateway's process", RuntimeError(f"ended with {process.returncode}"))
        delay_s = 0.0
        if time.monotonic() - self._started_s >= _HEALTHY_S:
            self._backoff.succeeded()
        else:
            delay_s = self._backoff.failed()
        assert self._timer is not None
        self._timer.arm(monotonic_us + int(delay_s * 1e6))

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        """Close the daemon's ends of the process, which ends by that."""
        if self._control is not None and self._pidfd >= 0:
            self._control.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
