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
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import _CacheLocator


@dataclass(frozen=True, slots=True)
class Kernel:
    """A registered kernel; `name` and `reference` are dotted names."""

    name: str
    dispatcher: Any
    signatures: tuple[str, ...]
    reference: str
    device: str = "cpu"


KERNELS: dict[str, Kernel] = {}
_CLOSED: set[str] = set()


def kernel(*signatures: str, reference: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Register a kernel under its dotted name; `options` are added to those for `numba.njit`."""

    def register(function: Callable[..., Any]) -> Any:
        settings = {"nogil": True, "cache": True, "error_model": "numpy", **options}
        dispatcher = numba.njit(**settings)(function)
        name = f"{function.__module__}.{function.__qualname__}"
        KERNELS[name] = Kernel(name, dispatcher, signatures, reference)
        return dispatcher

    return register


class Task:
    """A dispatcher with an address.  It is compiled by `compile_all` or when its address is first
    read."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self._compiled: Any = None

    def compile(self, signature: str = "int64(int64)") -> None:
        """Compile it, or load it from the cache."""
        if self._compiled is None:
            settings = {"nopython": True, "error_model": "numpy"}
            self._compiled = numba.cfunc(signature, cache=True, **settings)(self.py_func)

    def disable_compile(self) -> None:
        """No effect: there is one signature."""

    @property
    def address(self) -> int:
        """The address of its machine code."""
        self.compile()
        return int(self._compiled.address)


def task(reference: str) -> Callable[[Callable[..., Any]], Task]:
    """Register an `int64(int64)` function that threads of a team call."""

    def register(function: Callable[..., Any]) -> Task:
        found, name = Task(function), f"{function.__module__}.{function.__qualname__}"
        KERNELS[name] = Kernel(name, found, ("int64(int64)",), reference)
        return found

    return register


def device(function: Callable[..., Any]) -> Any:
    """A helper that is compiled into the kernels that call it."""
    return numba.njit(nogil=True, inline="never", error_model="numpy")(function)


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
    """Delete the on-disk cache if any source of `kernels` has changed since it was written.

    Numba compares a kernel's own file only and would keep kernels whose helpers have changed.
    """
    sources = _sources()
    stamp, digest = _stamp(), _digest(sources)
    if _is_current(stamp, digest):
        return
    with contextlib.suppress(OSError):  # a read-only installation was compiled when it was built
        for cache in {_cache_of(source) for source in sources}:
            for cached in (*cache.glob("*.nbi"), *cache.glob("*.nbc")):
                cached.unlink()
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest)


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.rglob("*.py"))


def _digest(sources: list[Path]) -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _stamp() -> Path:
    """The file with the digest of the sources that the cache was made from."""
    return _cache_of(Path(__file__)) / "kernels.sha256"


def _is_current(stamp: Path, digest: str) -> bool:
    return stamp.exists() and stamp.read_text() == digest


def _cache_of(source: Path) -> Path:
    """The folder of a module's machine code: beside it, or in $NUMBA_CACHE_DIR."""
    if not numba.config.CACHE_DIR:
        return source.parent / "__pycache__"
    named: str = _CacheLocator.get_suitable_cache_subpath(str(source))
    return Path(numba.config.CACHE_DIR) / named


def compiled() -> tuple[int, int]:
    """The number of CPU kernels whose machine code is in the cache, and of all CPU kernels.
    Compiles and deletes nothing."""
    load_all()
    functions = [row.dispatcher.py_func for row in KERNELS.values() if row.device == "cpu"]
    current = _is_current(_stamp(), _digest(_sources()))
    return sum(map(_is_cached, functions)) if current else 0, len(functions)


def _is_cached(function: Callable[..., Any]) -> bool:
    source = Path(function.__code__.co_filename)
    name = f"{source.stem}.{function.__qualname__}-{function.__code__.co_firstlineno}"
    return any(_cache_of(source).glob(f"{name}.*.nbi"))


def compile_all() -> Iterator[str]:
    """Compile every CPU kernel, or load it from the cache; yields each name when it is ready.

    Kernels that are closed already are ready."""
    forget_stale()
    load_all()
    for row in [row for row in KERNELS.values() if row.device == "cpu"]:
        if row.name not in _CLOSED:
            for signature in row.signatures:
                row.dispatcher.compile(signature)
            row.dispatcher.disable_compile()
            _CLOSED.add(row.name)
        yield row.name
