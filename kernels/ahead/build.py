"""The machine code of compiled kernels as a shared object.

numba has optimised each kernel; its LLVM module is taken as it is, without the functions that
unpack arguments for numba's dispatcher, and emitted once more as position-independent code.  The
code of a kernel's loops is therefore that of the dispatcher.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from numba.core.codegen import get_host_cpu_features

from kernels import ahead, compiler, registry
from kernels.ahead import linker, wrappers
from kernels.ahead.elf import LinkError
from kernels.ahead.library import ARRAY_TYPE, is_whole, sealed

FEATURES = ("avx512vl",)
"""What kernels ask about the processor (`kernels.compiler.cpu_has`)."""


class Entry(NamedTuple):
    """A kernel of a library."""

    name: str
    library: Any
    """numba's code library of the compiled function."""
    symbol: str
    signature: str
    is_task: bool = False


def of_dispatcher(name: str, dispatcher: Any, signature: str) -> Entry:
    """A dispatcher that is compiled for one signature."""
    (compiled,) = dispatcher.overloads.values()
    return Entry(name, compiled.library, compiled.fndesc.llvm_func_name, signature)


def build_all(modules: Mapping[str, Path]) -> None:
    """Make the libraries of all kernels and of the loops of `modules` (by name, the source), where
    they are missing or damaged.  All are compiled or loaded first; `modules` are imported by the
    caller.  Libraries of earlier versions are deleted.  One process at a time makes them.

    Raises LinkError or UnsupportedType where that is not possible on this machine, and OSError.
    """
    paths = ahead.library_paths(modules)
    if all(is_whole(path) for path in paths.values()):
        return
    folder = paths[ahead.KERNELS].parent
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "ahead.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(is_whole(path) for path in paths.values()):
            for _ in compile_and_build(paths):
                pass


def compile_and_build(paths: Mapping[str, Path]) -> Iterator[str]:
    """Compile all kernels, yielding each one's name, and make the libraries (by name, the path)."""
    for package in ("kernels.cpu", "kernels.cpu.shuffle", "kernels.cpu.tables"):
        registry.load_all(package)
    yield from registry.compile_all()
    entries = [_entry(row) for row in registry.KERNELS.values() if row.device == "cpu"]
    facts = {name: int(compiler.cpu_has(name)) for name in FEATURES}
    build(paths[ahead.KERNELS], entries, facts)
    for name in paths.keys() - {ahead.KERNELS}:
        rows = [row for row in registry.LOOPS.values() if row.name.rpartition(".")[0] == name]
        loops = [of_dispatcher(row.name, row.dispatcher, row.signature) for row in rows]
        build(paths[name], loops, {})
    made = {path.name for path in paths.values()}
    for path in paths.values():
        for old in path.parent.glob(f"{path.name.rpartition('-')[0]}-*{path.suffix}"):
            if old.name not in made:
                with contextlib.suppress(OSError):
                    old.unlink()


def _entry(row: registry.Kernel) -> Entry:
    (signature,) = row.signatures
    if isinstance(row.dispatcher, registry.Task):
        return Entry(row.name, *row.dispatcher.code_library, signature, True)
    return of_dispatcher(row.name, row.dispatcher, signature)


def build(path: Path, entries: Iterable[Entry], facts: Mapping[str, int]) -> None:
    """Write the library of some kernels, and constants with the names of `facts`.

    It appears under its name when it is whole.  Raises LinkError, UnsupportedType and OSError.
    """
    entries = list(entries)
    machine = _target_machine()
    module = _joined(entries, facts)
    exported = [f"edged.{entry.name}" for entry in entries]
    exported += [ARRAY_TYPE, *(f"edged.fact.{name}" for name in facts)]
    _prune(module, set(exported), machine)
    content, undefined = linker.link(machine.emit_object(module), exported)
    process = ctypes.PyDLL(None)
    if missing := [name for name in undefined if not hasattr(process, name)]:
        raise LinkError(f"no process has {', '.join(missing)}")
    _write(path, content)


def _target_machine() -> Any:
    """The processor that numba compiles for."""
    features = os.environ.get("NUMBA_CPU_FEATURES")
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name(),
        features=get_host_cpu_features() if features is None else features,
        opt=3,
        reloc="pic",
        codemodel="small",
    )


def _joined(entries: Iterable[Entry], facts: Mapping[str, int]) -> Any:
    """One module with all kernels and their wrappers."""
    text, modules = [wrappers.HELPERS, wrappers.integers(), wrappers.RUNTIME], []
    for entry in entries:
        module = llvm.parse_bitcode(entry.library._get_module_for_linking().as_bitcode())
        module.get_function(entry.symbol).linkage = "external"
        modules.append(module)
        if entry.is_task:
            text.append(wrappers.task(entry.name, entry.symbol))
        else:
            text.append(wrappers.wrapper(entry.name, entry.symbol, entry.signature))
    text += [f'@"edged.fact.{name}" = constant i64 {value}\n' for name, value in facts.items()]
    joined, *others = modules
    for module in others:
        joined.link_in(module)
    wrapping = llvm.parse_assembly("\n".join(text))
    wrapping.data_layout, wrapping.triple = joined.data_layout, joined.triple
    joined.link_in(wrapping)
    joined.verify()
    return joined


def _prune(module: Any, exported: set[str], machine: Any) -> None:
    """Drop what no exported function needs."""
    for value in [*module.functions, *module.global_variables]:
        if not value.is_declaration and value.name not in exported:
            value.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        made = Path(file.name)
        try:
            file.write(sealed(content))
            file.flush()
            made.chmod(0o755)
            made.replace(path)
        except OSError:
            made.unlink(missing_ok=True)
            raise
