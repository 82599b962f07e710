"""Kernels that are compiled ahead of time: a process calls them without numba and LLVM.

`kernels.ahead.build` writes the machine code of compiled kernels into a shared object.  A process
that calls `activate` first takes its kernels from there: it starts in a fraction of the time and
saves the memory of the compiler.  `kernels.registry.kernel` then returns functions of the library,
and `kernels.compiler` has nothing in it.

A library's name holds the digest of all that its code depends on: the kernels' sources, the
versions of Python, numba and llvmlite, and the processor.  Where that library is missing, damaged
or cannot be loaded, nothing is activated, the process compiles as ever, and `fallback` says why.
`EDGED_AHEAD=0` does the same.

Where it is missing, a library for a named processor (`kernels.ahead.targets`) serves that a package
brings and whose code this machine runs.  Its name holds the digest of the sources alone.

One library holds the kernels of this package.  A module elsewhere that has loops of its own
(`kernels.registry.loop`) has a library of its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kernels.ahead import targets
from kernels.ahead.identity import identity
from kernels.ahead.library import Library, is_whole

KERNELS = "kernels"
"""The library of this package's kernels."""
_ROOT = Path(__file__).parents[1]
OBJECTS = _ROOT / "objects"
"""The libraries for named processors."""


class Fallback(NamedTuple):
    """Why a process compiles its kernels."""

    reason: str
    is_fault: bool = False
    """A library is there and cannot be used."""
    can_be_made: bool = False
    """Libraries that are made now serve the next process."""


class Chosen:
    """Where this process has its kernels from."""

    def __init__(self) -> None:
        self.opened: dict[str, Library] = {}
        self.target = ""
        self.fallback: Fallback | None = None


_CHOSEN = Chosen()


def active() -> bool:
    """Whether this process takes its kernels from libraries."""
    return KERNELS in _CHOSEN.opened


def activate(modules: Mapping[str, Path]) -> bool:
    """Open the library of the kernels and those of `modules` (by name, the source); returns whether
    all were there.  Call it before any module with kernels is imported."""
    if active():
        return True
    if os.environ.get("EDGED_AHEAD") == "0":
        return compile_instead(Fallback("EDGED_AHEAD=0"))
    if "kernels.compiler" in sys.modules:
        return compile_instead(Fallback("modules with kernels are imported already"))
    if why := _unusable(library_paths(modules)):
        for target in targets.fitting():
            if not _unusable(paths := target_paths(target, modules)):
                return _open(paths, target)
        return compile_instead(why)
    return _open(library_paths(modules))


def _unusable(paths: Mapping[str, Path]) -> Fallback | None:
    if not all(path.exists() for path in paths.values()):
        return Fallback("no object of this version is there", can_be_made=True)
    if damaged := [path.name for path in paths.values() if not is_whole(path)]:
        return Fallback(f"{damaged[0]} is damaged", True, can_be_made=True)
    return None


def _open(paths: Mapping[str, Path], target: str = "") -> bool:
    try:
        opened = {name: Library(path) for name, path in paths.items()}
    except OSError as problem:  # of another C library, or where nothing may be executed
        return compile_instead(Fallback(str(problem), is_fault=True))
    _CHOSEN.opened, _CHOSEN.target = opened, target
    return True


def compile_instead(why: Fallback) -> bool:
    """Note why this process compiles its kernels.  Returns False."""
    _CHOSEN.fallback = why
    return False


def fallback() -> Fallback | None:
    """Why this process compiles its kernels, where libraries were asked for."""
    return _CHOSEN.fallback


def form() -> str:
    """Where this process has its kernels from, as the daemon's status says it."""
    made = f"ahead of time for {_CHOSEN.target}" if _CHOSEN.target else "ahead of time"
    return made if active() else "numba"


def function(name: str) -> Any:
    """A kernel of an opened library, by dotted name.  Raises KeyError."""
    return _of(name).function(name)


def address(name: str) -> int:
    """The address of a task of an opened library.  Raises KeyError."""
    return _of(name).address(name)


def fact(name: str) -> int:
    """What the build noted about the processor."""
    return _CHOSEN.opened[KERNELS].fact(name)


def _of(name: str) -> Library:
    return _CHOSEN.opened.get(name.rpartition(".")[0], _CHOSEN.opened[KERNELS])


def library_paths(modules: Mapping[str, Path]) -> dict[str, Path]:
    """Where the libraries of the kernels and of `modules` lie, by name."""
    paths = {KERNELS: library_path(KERNELS)}
    return paths | {name: library_path(name, [source]) for name, source in modules.items()}


def library_path(name: str, sources: Iterable[Path] = ()) -> Path:
    """Where the library of a module lies, which is made from `sources` and this package's."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(named) if named else _ROOT / "__pycache__"
    digest = _digest(identity(), sources)
    return folder / f"{name}.{sys.implementation.cache_tag}-{digest}.so"


def target_paths(
    target: str, modules: Mapping[str, Path], folder: Path = OBJECTS
) -> dict[str, Path]:
    """Where the libraries of the kernels and of `modules` for a named processor lie."""
    sources: dict[str, list[Path]] = {KERNELS: []}
    sources |= {name: [source] for name, source in modules.items()}
    return {
        name: folder / f"{name}.{target}-{_digest(target.encode(), found)}.so"
        for name, found in sources.items()
    }


def _digest(facts: bytes, sources: Iterable[Path]) -> str:
    digest = hashlib.sha256(facts)
    for source in [*sorted(_ROOT.rglob("*.py")), *sources]:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
