"""Names of the compiler in a process without it (`kernels.compiler`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from kernels import ahead


class NoCompiler:
    """A name of the compiler, or what a module makes of it, in a process without the compiler."""

    def __getattr__(self, name: str) -> NoCompiler:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> NoCompiler:
        return self


class Uncompiled:
    """A function for the compiler alone."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}"

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"{self._name} is no kernel, and this process has no compiler")


_absent: Any = NoCompiler()
carray = cgutils = ir = types = _absent
boolean = float32 = float64 = int64 = uint64 = _absent
TypingError: Any = Exception
intrinsic: Any = Uncompiled


def njit(**_: Any) -> Any:
    """numba's `njit` with options."""
    return Uncompiled


def overload(_: Callable[..., Any], **__: Any) -> Any:
    """numba's `overload`."""
    return Uncompiled


def cpu_has(feature: str) -> bool:
    """Whether kernels are compiled for a processor with a feature, by LLVM's name."""
    return bool(ahead.fact(feature))
