"""Libraries for a processor by name, made on any machine.

numba compiles for the processor at hand and loads what it has made.  Here it gets the target's
name, triple and properties, and neither loads nor caches anything: the code may be another
machine's.  The process is good for nothing else after that.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernels import ahead
from kernels.ahead.library import is_whole
from kernels.ahead.targets import TARGETS, Target


def build_for(name: str, modules: Mapping[str, Path], folder: Path) -> Iterator[str]:
    """Make the libraries for a processor by name in a folder, where they are missing; yields each
    kernel's name when it is compiled.  `modules` have loops of their own (by name, the source).

    Raises RuntimeError in a process that has imported kernels or numba, and LinkError,
    UnsupportedType and OSError as `kernels.ahead.build` does.
    """
    paths = ahead.target_paths(name, modules, folder)
    if all(is_whole(path) for path in paths.values()):
        return
    if found := {"numba", "kernels.compiler"} & sys.modules.keys():
        raise RuntimeError(f"{min(found)} is imported already")
    compile_for(TARGETS[name])
    from kernels import registry
    from kernels.ahead.build import compile_and_build

    for module in modules:
        importlib.import_module(module)
        registry.close_loops(module)
    yield from compile_and_build(paths)


def compile_for(target: Target) -> None:
    """Have numba compile for a target from now on; call it before numba is imported."""
    os.environ["NUMBA_CPU_NAME"] = target.processor
    os.environ["NUMBA_CPU_FEATURES"] = ""
    platform.machine = lambda: target.machine
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = lambda: target.triple
    _load_nothing()


def _load_nothing() -> None:
    from numba.core import ccallback, codegen, dispatcher

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def no_address(one: Any, _: str) -> int:
        one._ensure_finalized()
        return 0

    for owner, name, value in (
        (codegen.JITCodeLibrary, "_finalize_specific", nothing),
        (codegen.JITCodeLibrary, "get_pointer_to_function", no_address),
        (codegen.JITCPUCodegen, "set_env", nothing),
        (dispatcher.Dispatcher, "enable_caching", nothing),
        (ccallback.CFunc, "enable_caching", nothing),
    ):
        setattr(owner, name, value)
