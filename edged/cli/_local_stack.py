"""A collector, a daemon and a REST API as child processes of one command.

`LocalStack` starts the three in order, restarts one that dies, and stops them in the order that
lets the daemon ship its last pages.  All files lie in one directory:

    edged.toml      the configuration of daemon and API, written at each start
    store/          the daemon's durable state
    landing/        the pages that the collector has landed
    api.sock        the REST API
    logs/           what each process writes to standard error
    lock            held while a stack runs
    token, tokens   the device's token and the collector's line for it, written at each start

A second start in the same directory continues from the store.  Limits: for trying edged out on one
machine.  SIGKILL of the command leaves its children running: `edged stop --config edged.toml` ends
the daemon.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edged.central.tokens import new_token, token_line
from edged.control.door import ask
from edged.errors import ConfigError, EdgedError, StoreBusy
from edged.platform.processes import ChildProcess, ChildProcessFailed, free_port

RESTARTS_MAX = 5
"""Restarts of one process before the stack gives up."""
USAGE_CODES = (64, 65, 73, 77, 78)
"""Exit codes that the next start would repeat."""
DRAIN_S, STOP_S = 10, 60
"""Seconds for the last pages to reach the collector, and then for the daemon to end."""
SOCKET_PATH_BYTES_MAX = 107


class StackFailed(EdgedError):
    """A process of the stack could not start, or died too often.  `exit_code` is the process's."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class StackLayout:
    """The files of a stack.  Raises ConfigError where a socket's path would be too long."""

    directory: Path

    def __post_init__(self) -> None:
        for path in (self.door, self.api):
            if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
                raise ConfigError(
                    f"{path}: a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes; "
                    "choose a shorter --directory"
                )

    @property
    def config(self) -> Path:
        """Configuration of daemon and API."""
        return self.directory / "edged.toml"

    @property
    def store(self) -> Path:
        """The daemon's state."""
        return self.directory / "store"

    @property
    def door(self) -> Path:
        """The daemon's control socket."""
        return self.store / "door"

    @property
    def landing(self) -> Path:
        """The collector's directory."""
        return self.directory / "landing"

    @property
    def api(self) -> Path:
        """The REST API's socket."""
        return self.directory / "api.sock"

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.directory / "logs"

    @property
    def token(self) -> Path:
        """The device's token."""
        return self.directory / "token"

    @property
    def tokens(self) -> Path:
        """The collector's tokens file."""
        return self.directory / "tokens"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory, made where it is missing.  Raises ConfigError, and StoreBusy where
        another stack holds it."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise ConfigError(f"{self.directory}: {problem.strerror}") from problem
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as problem:
            raise StoreBusy(f"{self.directory}: another `edged up` runs there") from problem
        finally:
            os.close(lock)

    def prepare(
        self, jobs: Sequence[Path], device: str, energy: dict[str, object], url: str
    ) -> None:  # fmt: skip
        """Make the directories, the token and the configuration, with `energy` as its section of
        that name.  Raises ConfigError.

        Jobs over the API may name files below the current directory, where relative paths begin:
        the socket is open to the user of the command only."""
        token = new_token()
        line = token_line(device, token)
        sections: dict[str, dict[str, object]] = {
            "device": {"name": device},
            "store": {"directory": self.store.name},
            "run": {
                "jobs": [str(path.absolute()) for path in jobs],
                "remote_files": [str(Path.cwd())],
            },
            "uplink": {"url": url, "token_file": self.token.name},
            "energy": energy,
            "api": {"socket": self.api.name},
        }
        try:
            _write_secret(self.token, token)
            _write_secret(self.tokens, line)
            self.config.write_text("# Written by `edged up` at each start.\n" + _toml(sections))
        except OSError as problem:
            raise ConfigError(f"{self.directory}: {problem.strerror}") from problem


class LocalStack:
    """The processes of one `edged up`.  `on_restart` is called with the name of each restarted
    process and the text of its exit status.  With `until_end` the daemon ends with its sources."""

    def __init__(
        self, layout: StackLayout, on_restart: Callable[[str, str], None], until_end: bool = False
    ) -> None:
        self.layout, self._on_restart = layout, on_restart
        self._daemon_flags = ("--until-end",) if until_end else ()
        self.collector_address = f"127.0.0.1:{free_port()}"
        self._processes: list[ChildProcess] = []
        self._restarts: dict[str, int] = {}

    @property
    def url(self) -> str:
        """The collector's URL."""
        return f"http://{self.collector_address}"

    def start(self) -> Iterator[str]:
        """Start all; yields the name of each process that is ready.  Raises StackFailed."""
        at, config = self.layout, str(self.layout.config)
        commands = {
            "collector": ("edged", "central", "collect", "--landing", str(at.landing),
                          "--listen", self.collector_address, "--tokens", str(at.tokens)),
            "daemon": ("edged", "run", "--config", config, *self._daemon_flags),
            "api": ("api", "--config", config),
        }  # fmt: skip
        for name, command in commands.items():
            (at.logs / f"{name}.log").unlink(missing_ok=True)
            child = ChildProcess(name, (*command, "--json"), at.logs)
            self._processes.append(child)
            self._await_ready(child)
            yield name

    def supervise(self) -> None:
        """Restart a process that dies; returns when the daemon has ended with success, as after
        `edged stop` or at the end of its sources.  Raises StackFailed."""
        while True:
            for child in self._ended():
                if child.name == "daemon" and child.process.returncode == 0:
                    return
                self._restart(child)

    def stop(self) -> None:
        """Let the daemon ship its pages and end, then end the others."""
        for child in self._processes:
            if child.name == "daemon" and child.running():
                with contextlib.suppress(EdgedError, subprocess.TimeoutExpired):
                    ask(self.layout.door, "stop", drain=True, within_s=DRAIN_S)
                    child.process.wait(DRAIN_S + STOP_S)
        for child in reversed(self._processes):
            child.stop()

    def _await_ready(self, child: ChildProcess) -> None:
        try:
            child.ready()
        except ChildProcessFailed as problem:
            code = child.process.poll()
            raise StackFailed(str(problem), code if code and code > 0 else 70) from problem

    def _ended(self) -> list[ChildProcess]:
        """The processes that have ended; waits for the first."""
        with contextlib.ExitStack() as opened:
            running = []
            for child in self._processes:
                if not child.running():
                    continue
                running.append(os.pidfd_open(child.process.pid))
                opened.callback(os.close, running[-1])
            if len(running) == len(self._processes):
                select.select(running, [], [])
        return [child for child in self._processes if not child.running()]

    def _restart(self, child: ChildProcess) -> None:
        code = child.process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        self._restarts[child.name] = self._restarts.get(child.name, 0) + 1
        if code in USAGE_CODES or self._restarts[child.name] > RESTARTS_MAX:
            exit_code = code if code in USAGE_CODES else 70
            raise StackFailed(f"{child.name} {how}; see {child.log}", exit_code)
        child.stop(0)  # children that it left behind
        child.restart()
        self._await_ready(child)
        self._on_restart(child.name, how)


def _write_secret(path: Path, text: str) -> None:
    """A file that only its owner may read."""
    path.touch(mode=0o600)
    path.write_text(text + "\n")


def _toml(sections: dict[str, dict[str, object]]) -> str:
    """Texts and lists of texts as TOML, whose basic strings are JSON's."""
    lines = []
    for name, values in sections.items():
        lines += [f"\n[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
