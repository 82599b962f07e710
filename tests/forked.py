"""Commands of edged that tests start: forked from a process that has imported edged already.

Where `Popen` is in the place of `subprocess.Popen`, `python -m edged …` and `python -m api …` are
forked by a server (`tests.fork_server`), of which each process of pytest has one for each set of
interpreter options: with the compiler, or as a daemon without it.  What a fork could not show is
started as usual: other programs, other interpreters, commands with `preexec_fn`, another user or
group, or with variables that Python and numba read at their start.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.fork_server import AHEAD, COMPILER, FDS_MAX, LENGTH_BYTES

PR_SET_CHILD_SUBREAPER = 36
MODULES = ("api", "edged", "edged.expressions.compile", "tests.beat.crashing")
"""What is forked: modules that are run by name."""
PACKAGES = ("edged", "kernels", "governors", "api", "tests")
"""What a server has imported: another version of it is started as usual."""
AT_START = ("PYTHON", "NUMBA", "LC_", "LANG", "LD_", "OPENBLAS", "OMP_", "MALLOC_", "ARROW_")
"""Prefixes of variables that are read before a server forks, or by other libraries' imports."""
IN_FORK = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
ROOT = Path(__file__).parents[1]


class Refused(Exception):
    """A command that is not forked."""


class Server:
    """The end that asks."""

    def __init__(self, options, form):
        ours, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, *options, "-m", "tests.fork_server"]
            words += [str(theirs.fileno()), form]
            kept = {k: v for k, v in os.environ.items() if not k.startswith(AT_START)}
            self.process = STARTED(
                words, pass_fds=[theirs.fileno()], cwd=ROOT, env={**kept, **_AT_START}
            )
        self._channel, self._lock = ours, threading.Lock()

    def fork(self, request, fds):
        """The number of a new child of this process."""
        text = json.dumps(request).encode()
        packed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())
        with self._lock, _adopting():
            self._channel.sendmsg([len(text).to_bytes(LENGTH_BYTES, "little")], [packed])
            self._channel.sendall(text)
            answer = self._channel.recv(LENGTH_BYTES, socket.MSG_WAITALL)
        if len(answer) < LENGTH_BYTES:
            raise Refused("the server is gone")
        return int.from_bytes(answer, "little")

    def close(self):
        """End the server; its children go on."""
        self._channel.close()
        self.process.wait()


@contextlib.contextmanager
def _adopting():
    """Orphans below this process become its children."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


STARTED = subprocess.Popen
"""The usual way."""
_SERVERS: dict[tuple[tuple[str, ...], str], Server] = {}
_STARTING = threading.Lock()


def server(options, form):
    """The server of these interpreter options, started where there is none."""
    with _STARTING:
        if (options, form) not in _SERVERS:
            _SERVERS[options, form] = Server(options, form)
        return _SERVERS[options, form]


def form_of(request):
    """Whether the command has its kernels from libraries, or the compiler: plug-ins want it."""
    command = [request["module"], *request["arguments"][:1]]
    daemon = command == ["edged", "run"] or command[0] in ("api", "edged.uplink")
    compiles = request["search"] or request["environment"].get("EDGED_AHEAD") == "0"
    return AHEAD if daemon and not compiles else COMPILER


def close():
    """End all servers."""
    while _SERVERS:
        _SERVERS.popitem()[1].close()


class Popen(STARTED):
    """`subprocess.Popen` that forks commands of edged."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                       startupinfo, creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite,
                       errread, errwrite, restore_signals, gid, gids, uid, umask,
                       start_new_session, *process_group):  # fmt: skip
        try:
            unusual = executable, preexec_fn, gid, gids, uid
            if shell or any(x is not None for x in unusual) or not close_fds or umask >= 0:
                raise Refused
            if any(group >= 0 for group in process_group) or len(pass_fds) + 3 > FDS_MAX:
                raise Refused
            options, module, arguments = _command(args)
            environment = _environment(env)
            request = {
                "search": _search(environment, Path(cwd or ".").absolute()),
                "module": module, "arguments": arguments, "environment": environment,
                "directory": str(Path(cwd or ".").absolute()), "session": bool(start_new_session),
                "passed": list(pass_fds), "cpus": sorted(os.sched_getaffinity(0)),
                "limits": {number: resource.getrlimit(number) for number in LIMITS},
            }  # fmt: skip
            given = [
                own if fd == -1 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))
            ]
            form = form_of(request)
            self.pid = server(options, form).fork(request, [*given, *pass_fds])
        except Refused:
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
                creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
                restore_signals, gid, gids, uid, umask, start_new_session, *process_group,
            )  # fmt: skip
            return
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def _command(args):
    """(interpreter options, module, arguments).  Raises Refused."""
    if isinstance(args, (str, bytes, os.PathLike)):
        raise Refused
    words = [os.fsdecode(word) for word in args]
    if words[0] != sys.executable or "-m" not in words:
        raise Refused
    at = words.index("-m")
    options, module, arguments = tuple(words[1:at]), words[at + 1], words[at + 2 :]
    if module not in MODULES or options not in ((), ("-W", "error")):
        raise Refused
    if arguments[:1] == ["compile"]:  # a server has its kernels
        raise Refused
    return options, module, arguments


def _environment(env):
    """The new process's variables.  Raises Refused where a server has others of its start."""
    wanted = {
        os.fsdecode(k): os.fsdecode(v) for k, v in (os.environ if env is None else env).items()
    }
    for name in {*wanted, *_AT_START}:
        if name.startswith(AT_START) and name not in IN_FORK and (
            wanted.get(name) != _AT_START.get(name)
        ):  # fmt: skip
            raise Refused
    return wanted


def _search(environment, directory):
    """Directories of PYTHONPATH that the server lacks.  Raises Refused where it has others, and
    where one of them, or the working directory, has its own version of what is imported."""
    wanted, had = (
        [
            str(Path(entry).absolute())
            for entry in names.get("PYTHONPATH", "").split(os.pathsep)
            if entry
        ]
        for names in (environment, _AT_START)
    )
    if had and wanted[-len(had) :] != had:
        raise Refused
    new = wanted[: len(wanted) - len(had)]
    places = [Path(place) for place in new] + [directory] * (directory != ROOT)
    if any((place / package).exists() for place in places for package in PACKAGES):
        raise Refused
    return new


_AT_START = {name: value for name, value in os.environ.items() if name.startswith(AT_START)}
"""What servers start with."""
