"""Processes without a compiler: their kernels come from libraries (`kernels.ahead`).

`python -m edged.platform.libraries MODULE` runs a module in such a process.
"""

from __future__ import annotations

import importlib.metadata
import os
import runpy
import sys
from pathlib import Path

import edged
from kernels import ahead
from kernels.ahead.library import is_whole

_LOOPS = "edged.sources._tcp_calls"
_RESTARTED = "EDGED_RESTARTED"
"""Is in the environment of a process that has restarted itself."""


def loops() -> dict[str, Path]:
    """The modules of edged that have compiled loops of their own: by name, the source."""
    parts = _LOOPS.split(".")[1:]
    return {_LOOPS: Path(edged.__file__).parent.joinpath(*parts).with_suffix(".py")}


def use_libraries() -> bool:
    """Take all kernels of this process from libraries, if there are any; call it before other
    modules of the daemon are imported.  Returns whether it does.

    With plug-ins of other packages it does not: they may bring functions to compile.
    """
    groups = sorted(g for g in importlib.metadata.entry_points().groups if g.startswith("edged."))
    if groups and not ahead.active():
        return ahead.compile_instead(ahead.Fallback(f"plug-ins are installed: {groups[0]}"))
    return ahead.activate(loops())


def restart_with_libraries() -> None:
    """Where this process has compiled its kernels because it found no libraries, and libraries are
    there now: begin again with them, as the same process.  Returns otherwise."""
    why = ahead.fallback()
    if why is None or not why.can_be_made or _RESTARTED in os.environ:
        return
    if all(is_whole(path) for path in ahead.library_paths(loops()).values()):
        os.environ[_RESTARTED] = "1"
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, sys.orig_argv)


def fallback() -> tuple[str, str] | None:
    """Level and text of the log line of a daemon that compiles its kernels."""
    why = ahead.fallback()
    if why is None or ahead.active():
        return None
    return "warning" if why.is_fault else "info", f"kernels are compiled by numba: {why.reason}"


if __name__ == "__main__":
    use_libraries()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
