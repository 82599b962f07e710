"""The registry of kernels: names, signatures, and plain-Python references.

    @kernel("int64(int64[::1], uint8[::1])", reference="tests.naive.count_valid")
    def count_valid(values, valid): ...

`kernel` registers a function and makes it a numba dispatcher that releases the GIL and caches its
machine code on disk.  Nothing is compiled at import.  `compile_all` compiles every registered
signature, or loads it from the cache, and then closes the kernels: a call with other types raises
TypeError instead of compiling within a beat.  `task` registers an `int64(int64)` function that
machine code calls by address (`kernels.cpu.team`).  `device` marks a helper of kernels.

`cuda_kernel` and `cuda_device` are the same for GPUs.  Without the package `numba-cuda` the rows
are registered with plain functions as dispatchers.  A CUDA kernel is compiled at its first launch,
which needs a GPU; `kernels.cuda.figures` compiles it without one.

In a process that has its kernels ahead of time (`kernels.ahead`) the functions are the library's,
and nothing is compiled.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import json
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernels import ahead, compiler
from kernels.ahead.identity import numba_version


@dataclass(frozen=True, slots=True)
class Kernel:
    """A registered kernel; `name` and `reference` are dotted names."""

    name: str
    dispatcher: Any
    signatures: tuple[str, ...]
    reference: str
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Loop:
    """A compiled function of a module elsewhere; `name` is a dotted name."""

    name: str
    dispatcher: Any
    signature: str


KERNELS: dict[str, Kernel] = {}
LOOPS: dict[str, Loop] = {}
_CLOSED: set[str] = set()
_LOADERS, _NAMES = "kernels.ahead", ("kernels.ahead.present",)
"""The package that loads machine code, and what of it numba sees."""
_ALL = "*"
"""In a stamp, the digest of all sources: where it is the same, nothing is parsed."""


def kernel(*signatures: str, reference: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Register a kernel under its dotted name; `options` are added to those for `numba.njit`."""

    def register(function: Callable[..., Any]) -> Any:
        dispatcher = _dispatcher(function, options)
        name = f"{function.__module__}.{function.__qualname__}"
        KERNELS[name] = Kernel(name, dispatcher, signatures, reference)
        return dispatcher

    return register


def loop(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """A compiled function of a module elsewhere, with a library of its own: no kernel, since it
    reads and writes more than arrays."""

    def register(function: Callable[..., Any]) -> Any:
        dispatcher = _dispatcher(function, {})
        name = f"{function.__module__}.{function.__qualname__}"
        LOOPS[name] = Loop(name, dispatcher, signature)
        return dispatcher

    return register


def _dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """The function of a library, or a dispatcher of numba."""
    if ahead.active():
        return ahead.function(f"{function.__module__}.{function.__qualname__}")
    settings = {"nogil": True, "cache": True, "error_model": "numpy", **options}
    return compiler.njit(**settings)(function)


class Task:
    """A dispatcher with an address.  It is compiled by `compile_all` or when its address is first
    read."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self._compiled: Any = None

    def compile(self, signature: str = "int64(int64)") -> None:
        """Compile it, or load it from the cache."""
        if self._compiled is None:
            import numba

            settings = {"nopython": True, "error_model": "numpy"}
            self._compiled = numba.cfunc(signature, cache=True, **settings)(self.py_func)

    def disable_compile(self) -> None:
        """No effect: there is one signature."""

    @property
    def address(self) -> int:
        """The address of its machine code."""
        if ahead.active():
            return ahead.address(f"{self.py_func.__module__}.{self.py_func.__qualname__}")
        self.compile()
        return int(self._compiled.address)

    @property
    def code_library(self) -> tuple[Any, str]:
        """numba's library of its machine code, and the function's name there."""
        self.compile()
        name: str = self._compiled.native_name
        return self._compiled._library, name.removeprefix("cfunc.")


def task(reference: str) -> Callable[[Callable[..., Any]], Task]:
    """Register an `int64(int64)` function that threads of a team call."""

    def register(function: Callable[..., Any]) -> Task:
        found, name = Task(function), f"{function.__module__}.{function.__qualname__}"
        KERNELS[name] = Kernel(name, found, ("int64(int64)",), reference)
        return found

    return register


def device(function: Callable[..., Any]) -> Any:
    """A helper that is compiled into the kernels that call it."""
    return compiler.njit(nogil=True, inline="never", error_model="numpy")(function)


def cuda_kernel(*signatures: str, reference: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a CUDA kernel under its dotted name."""

    def register(function: Callable[..., Any]) -> Any:
        dispatcher = _for_cuda(function, cache=True)
        name = f"{function.__module__}.{function.__qualname__}"
        KERNELS[name] = Kernel(name, dispatcher, signatures, reference, "cuda")
        return dispatcher

    return register


def cuda_device(function: Callable[..., Any]) -> Any:
    """A helper of CUDA kernels, inlined before types are inferred: any other would be compiled for
    the GPU at hand, and there may be none."""
    return _for_cuda(function, device=True, inline="always")


def _for_cuda(function: Callable[..., Any], **options: Any) -> Any:
    if find_spec("numba_cuda") is None:
        return function
    from numba import cuda

    return cuda.jit(**options)(function)


def load_all(package: str = "kernels.cpu") -> None:
    """Import every module of `package`, so that all its kernels are registered."""
    root = importlib.import_module(package)
    for module in pkgutil.iter_modules(root.__path__):
        importlib.import_module(f"{package}.{module.name}")


def forget_stale() -> None:
    """Delete the cached machine code of each module that has changed since it was written, or
    that imports a module of `kernels` that has.

    Numba compares a kernel's own file only and would keep kernels whose helpers have changed.
    """
    sources = _sources()
    stamp, digest = _stamp(), _digest(sources)
    written = _written(stamp)
    if written.get(_ALL) == digest:
        return
    digests = _digests_with_imports(sources)
    with contextlib.suppress(OSError):  # a read-only installation was compiled when it was built
        for source in sources:
            name = _module(source)
            if name in digests and written.get(name) != digests[name]:
                _delete_cached(source)
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(json.dumps({_ALL: digest, **digests}))


def _delete_cached(source: Path) -> None:
    for kind in ("nbi", "nbc"):
        for cached in _cache_of(source).glob(f"{source.stem}.*.{kind}"):
            cached.unlink()


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.rglob("*.py"))


def _digest(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256(numba_version().encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _module(source: Path) -> str:
    """The dotted name of a file of `kernels`; of an `__init__.py`, its package's."""
    parts = source.relative_to(Path(__file__).parent.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _digests_with_imports(sources: list[Path]) -> dict[str, str]:
    """By module, the digest of its source and of all that it imports from `kernels`, but for what
    loads machine code (`kernels.ahead`): it has no part in what numba makes."""
    files = {_module(source): source for source in sources}
    for name in [name for name in files if name.startswith(_LOADERS) and name not in _NAMES]:
        del files[name]
    imports = {name: _imports(file) & files.keys() for name, file in files.items()}
    digests = {}
    for name in files:
        reached, added = {name}, {name}
        while added:
            added = set().union(*(imports[module] for module in added)) - reached
            reached |= added
        digests[name] = _digest(files[module] for module in sorted(reached))
    return digests


def _imports(source: Path) -> set[str]:
    """Names that may be modules: of `from a import b`, both `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _stamp() -> Path:
    """The file with the digests of the sources that the cache was made from."""
    return _cache_of(Path(__file__)) / "kernels.json"


def _written(stamp: Path) -> dict[str, str]:
    """The digests of a stamp; none where it is missing or damaged."""
    try:
        written = json.loads(stamp.read_bytes())
    except (OSError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}


def _is_current() -> bool:
    return _written(_stamp()).get(_ALL) == _digest(_sources())


def _cache_of(source: Path) -> Path:
    """The folder of a module's machine code: beside it, or in $NUMBA_CACHE_DIR."""
    import numba
    from numba.core.caching import _CacheLocator

    if not numba.config.CACHE_DIR:
        return source.parent / "__pycache__"
    named: str = _CacheLocator.get_suitable_cache_subpath(str(source))
    return Path(numba.config.CACHE_DIR) / named


def compiled() -> tuple[int, int]:
    """The number of CPU kernels whose machine code is in the cache, and of all CPU kernels.
    Compiles and deletes nothing."""
    load_all()
    functions = [row.dispatcher.py_func for row in KERNELS.values() if row.device == "cpu"]
    return sum(map(_is_cached, functions)) if _is_current() else 0, len(functions)


def _is_cached(function: Callable[..., Any]) -> bool:
    source = Path(function.__code__.co_filename)
    name = f"{source.stem}.{function.__qualname__}-{function.__code__.co_firstlineno}"
    return any(_cache_of(source).glob(f"{name}.*.nbi"))


def compile_all() -> Iterator[str]:
    """Compile every CPU kernel, or load it from the cache; yields each name when it is ready.

    Kernels that are closed already are ready, and those of a library."""
    if ahead.active():
        yield from KERNELS
        return
    forget_stale()
    load_all()
    for row in [row for row in KERNELS.values() if row.device == "cpu"]:
        if row.name not in _CLOSED:
            for signature in row.signatures:
                row.dispatcher.compile(signature)
            row.dispatcher.disable_compile()
            _CLOSED.add(row.name)
        yield row.name


def close_loops(module: str) -> None:
    """Compile the loops of a module, or load them from the cache; other types raise after that."""
    for row in [] if ahead.active() else LOOPS.values():
        if row.name.rpartition(".")[0] == module and row.name not in _CLOSED:
            row.dispatcher.compile(row.signature)
            row.dispatcher.disable_compile()
            _CLOSED.add(row.name)
