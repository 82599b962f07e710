"""A process that has imported edged and forks the commands of tests.

    python [OPTIONS] -m tests.fork_server FD FORM

FORM is `ahead`, whose kernels come from libraries as those of a daemon do (`kernels.ahead`), or
`compiler`.

A command that is forked is spared the imports and the load of the kernels: most of the CPU time of
a short one.  It is a process of its own otherwise: its arguments, environment, descriptors,
directory and limits are those that `tests.forked` sends with each start, its memory is private,
and its parent is the process that asked.  It shares the hash seed with the other commands of its
server, and /proc shows the server's arguments and environment.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import resource
import runpy
import signal
import socket
import sys
import threading
import time
import warnings
from pathlib import Path

LENGTH_BYTES = 8
STREAMS = 3
"""Standard input, output and error are the first descriptors of a request."""
FDS_MAX = 64
AHEAD, COMPILER = "ahead", "compiler"
PRELOADED = (
    "api.main", "edged.beat.replay", "edged.central.collector", "edged.cli.central",
    "edged.cli.jobs", "edged.cli.run", "edged.cli.store", "edged.config.code_directories",
    "edged.daemon.configuration", "edged.daemon.daemon", "edged.daemon.reload",
    "edged.daemon.until_end",
)  # fmt: skip


def preload(form):
    """Import what commands import at their start, and load the kernels of a daemon."""
    if form == AHEAD:
        from edged.platform.libraries import use_libraries

        use_libraries()
    for name in PRELOADED:
        importlib.import_module(name)
    from edged.daemon.compilation import compile_kernels

    compile_kernels(quiet=True)
    gc.collect()
    gc.freeze()  # a collection of a child does not copy the server's pages


def receive(channel):
    """(request, descriptors); (None, []) where the peer is gone."""
    data, packed, _, _ = channel.recvmsg(LENGTH_BYTES, socket.CMSG_SPACE(4 * FDS_MAX))
    if not data:
        return None, []
    fds = array.array("i")
    for _, _, part in packed:
        fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
    wanted, text = int.from_bytes(data, "little"), bytearray()
    while len(text) < wanted:
        text += channel.recv(wanted - len(text))
    return json.loads(text), list(fds)


def serve(channel):
    """Fork a child for each request.  Returns its request in a child, and None at the end."""
    while True:
        request, fds = receive(channel)
        if request is None:
            return None
        if child := fork_orphan():
            channel.sendall(child.to_bytes(LENGTH_BYTES, "little"))
            for fd in fds:
                os.close(fd)
            continue
        channel.close()
        become(request, fds)
        return request


def fork_orphan():
    """The number of a grandchild whose parent has ended, and 0 in it.

    The nearest ancestor that adopts orphans is its parent then: the process that asked.
    """
    ours, theirs = os.pipe()
    middle = os.fork()
    if middle:
        os.close(theirs)
        child = int.from_bytes(os.read(ours, LENGTH_BYTES), "little")
        os.close(ours)
        os.waitpid(middle, 0)
        return child
    middle = os.getpid()
    child = os.fork()
    if child:
        os.write(theirs, child.to_bytes(LENGTH_BYTES, "little"))
        os._exit(0)
    os.close(ours)
    os.close(theirs)
    while os.getppid() == middle:
        time.sleep(0.001)
    return 0


def become(request, fds):
    """Take on what the request says of the new process."""
    for number, (soft, hard) in request["limits"].items():
        resource.setrlimit(int(number), (soft, hard))
    os.sched_setaffinity(0, request["cpus"])
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    wanted = [*range(STREAMS), *request["passed"]]
    above = max(*wanted, *fds) + 1
    for at, fd in enumerate(fds):
        os.dup2(fd, above + at)
    for at, fd in enumerate(wanted):
        os.dup2(above + at, fd, inheritable=True)
    for fd in {*range(above + len(fds))}.difference(wanted):
        with contextlib.suppress(OSError):
            os.close(fd)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.path[0] = str(Path.cwd())  # as for -m
    look_in(request["search"])
    sys.argv = [request["module"], *request["arguments"]]
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(fd, getattr(sys, f"__{name}__"))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def look_in(directories):
    """Import from these directories too, and find the plug-ins there."""
    if not directories:
        return
    sys.path[1:1] = directories
    importlib.invalidate_caches()
    from governors.registry import Registry

    for module in list(sys.modules.values()):
        for thing in list(vars(module).values()):
            if isinstance(thing, Registry):
                thing._loaded = False  # the built-in kinds are there already


def _stream(fd, like):
    """A standard stream as the interpreter opens it; `like` is the server's."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    raw = io.FileIO(fd, "w" if fd else "r", closefd=False)
    buffer = io.BufferedReader(raw) if fd == 0 else raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=not unbuffered and (fd == STREAMS - 1 or os.isatty(fd)),
        write_through=unbuffered,
    )


def main():
    """Serve; returns a child's request, or None."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the children of a terminal's group have their own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of imports, and of threads that OpenBLAS keeps
        preload(sys.argv[2])
        return serve(socket.socket(fileno=int(sys.argv[1])))


def run(module):
    """Run the module as the interpreter does, and end without taking the modules apart."""
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__" and (found := main()):
    run(found["module"])
