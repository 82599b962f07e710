"""The registry of kernels: what each is called, its signatures, and its plain-Python reference.

    @kernel("int64(int64[::1], uint8[::1])", twin="tests.naive.count_valid")
    def count_valid(values, valid): ...

registers and decorates (nogil, cached on disk); nothing is compiled at import.  `compile_all`
compiles every registered signature, from the on-disk cache where it is warm, and then closes the
kernels: a call with other types raises TypeError instead of compiling within a beat.
`device` marks a helper that only other kernels call.  `task` registers an `int64(int64)` that is
called by its address, from machine code: see `kernels.cpu.team`.

`cuda_kernel` and `cuda_device` do the same for GPUs.  Without `numba-cuda` the rows are there all
the same, with plain functions for dispatchers.  A CUDA kernel is compiled when it is first launched
or by `compile_cuda`, both of which need a GPU; `kernels.cuda.figures` compiles it without one.
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
    """A registered kernel: its dotted name, dispatcher, signatures, twin's dotted name, device."""

    name: str
    dispatcher: Any
    signatures: tuple[str, ...]
    twin: str
    device: str = "cpu"


KERNELS: dict[str, Kernel] = {}
_CLOSED: set[str] = set()


def kernel(*signatures: str, twin: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Register a kernel under its dotted name; `options` go to `numba.njit` on top of ours."""

    def register(function: Callable[..., Any]) -> Any:
        settings = {"nogil": True, "cache": True, "error_model": "numpy", **options}
        dispatcher = numba.njit(**settings)(function)
        name = f"{function.__module__}.{function.__qualname__}"
        KERNELS[name] = Kernel(name, dispatcher, signatures, twin)
        return dispatcher

    return register


class Task:
    """What `task` makes of a function: a dispatcher with an address.  Like all kernels it is
    compiled when it is first needed, or by `compile_all`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self._compiled: Any = None

    def compile(self, signature: str = "int64(int64)") -> None:
        """Compile it, or load it from the cache."""
        if self._compiled is None:
            settings = {"nopython": True, "error_model": "numpy"}
            self._compiled = numba.cfunc(signature, cache=True, **settings)(self.py_func)

    def disable_compile(self) -> None:
        """It has one signature anyway."""

    @property
    def address(self) -> int:
        """Where its machine code is."""
        self.compile()
        return int(self._compiled.address)


def task(twin: str) -> Callable[[Callable[..., Any]], Task]:
    """Register an `int64(int64)` that threads of a team call."""

    def register(function: Callable[..., Any]) -> Task:
        found, name = Task(function), f"{function.__module__}.{function.__qualname__}"
        KERNELS[name] = Kernel(name, found, ("int64(int64)",), twin)
        return found

    return register


def device(function: Callable[..., Any]) -> Any:
    """A helper inlined into the kernels that call it; it has no life of its own."""
    return numba.njit(nogil=True, inline="never", error_model="numpy")(function)


def cuda_kernel(*signatures: str, twin: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a CUDA kernel under its dotted name."""

    def register(function: Callable[..., Any]) -> Any:
        dispatcher = _for_cuda(function, cache=True)
        name = f"{function.__module__}.{function.__qualname__}"
        KERNELS[name] = Kernel(name, dispatcher, signatures, twin, "cuda")
        return dispatcher

    return register


def cuda_device(function: Callable[..., Any]) -> Any:
    """A helper of CUDA kernels, inlined before types are inferred: numba compiles one that is not
    for the GPU at hand, and there need be none."""
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
    """Drop the on-disk cache where any source of `kernels` has changed since it was written.

    numba looks at a kernel's own file only, and would keep kernels whose helpers have changed.
    """
    root = Path(__file__).parent
    sources = sorted(root.rglob("*.py"))
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sources:
        digest.update(source.read_bytes())
    caches = {_cache_of(source) for source in sources}
    stamp = _cache_of(Path(__file__)) / "kernels.sha256"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    with contextlib.suppress(OSError):  # a read-only installation was compiled when it was made
        for cache in caches:
            for cached in (*cache.glob("*.nbi"), *cache.glob("*.nbc")):
                cached.unlink()
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(digest.hexdigest())


def _cache_of(source: Path) -> Path:
    """Where numba keeps a module's machine code: beside it, or in $NUMBA_CACHE_DIR."""
    if not numba.config.CACHE_DIR:
        return source.parent / "__pycache__"
    named: str = _CacheLocator.get_suitable_cache_subpath(str(source))
    return Path(numba.config.CACHE_DIR) / named


def compile_all() -> Iterator[str]:
    """Compile (or load from the cache) every CPU kernel, yielding each name when it is ready."""
    forget_stale()
    load_all()
    yield from _compile("cpu")


def compile_cuda() -> Iterator[str]:
    """The same for every CUDA kernel, for this machine's GPU; needs one, and `numba-cuda`."""
    forget_stale()
    load_all("kernels.cuda")
    yield from _compile("cuda")


def _compile(device: str) -> Iterator[str]:
    """Compile a device's kernels and close them; those that are closed already are ready."""
    for row in [row for row in KERNELS.values() if row.device == device]:
        if row.name not in _CLOSED:
            for signature in row.signatures:
                row.dispatcher.compile(signature)
            row.dispatcher.disable_compile()
            _CLOSED.add(row.name)
        yield row.name
