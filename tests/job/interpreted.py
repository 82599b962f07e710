"""Generated kernels run by Python itself: the same source, without the compiler.

A kernel takes a third of a second to compile and milliseconds to interpret, so that thousands of
expressions are compared in seconds.  The carrying types are Python's int (int64, wrapped where a
kernel wraps), numpy's uint64, float32 and float64.  Kernels of `kernels/` stay compiled.  What
differs here is confirmed by the compiled kernel before it counts (`tests.job.expression_forms`).
"""

from __future__ import annotations

import builtins
import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edged.expressions import cache, runtime

_ROOM = "edged.expressions"
_SOURCES = Path(runtime.__file__).parent
_BITS64 = 2**64 - 1
_FLOATS = {"float32": (ctypes.c_float, np.float32), "float64": (ctypes.c_double, np.float64)}


def _int64(value: Any) -> int:
    """A value as int64: wrapped."""
    return (int(value) + 2**63 & _BITS64) - 2**63


def _uint64(value: Any) -> np.uint64:
    return np.uint64(int(value) & _BITS64)


def _column(kind: str) -> tuple[Callable[..., Any], Callable[..., None]]:
    """`load(address, row)` and `store(address, row, value)` of a column."""
    carry: Callable[[Any], Any] = int
    if kind in _FLOATS:
        memory, carry = _FLOATS[kind]
    else:
        memory = getattr(ctypes, f"c_{kind}")
        carry = np.uint64 if kind == "uint64" else int
    size, plain = ctypes.sizeof(memory), float if kind in _FLOATS else int

    def load(addr: int, row: int) -> Any:
        return carry(memory.from_address(addr + size * row).value)

    def store(addr: int, row: int, value: Any) -> None:
        memory.from_address(addr + size * row).value = plain(value)

    return load, store


def _checked(operate: Callable[[int, int], int], wrap: Callable[[int], Any]) -> Callable[..., Any]:
    """`(result, overflowed)` of two integers."""

    def run(a: Any, b: Any) -> tuple[Any, bool]:
        exact = operate(int(a), int(b))
        return wrap(exact), int(wrap(exact)) != exact

    return run


def _towards_zero(a: int, b: int) -> int:
    whole = abs(int(a)) // abs(int(b))
    return whole if (a < 0) == (b < 0) else -whole


def _half_away(x: Any) -> Any:
    whole = np.trunc(x)
    return whole + np.copysign(type(x)(1), x) if abs(x - whole) >= 0.5 else np.copysign(whole, x)


def _intrinsics() -> SimpleNamespace:
    """What `edged.expressions.intrinsics` offers."""
    plain = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__}
    made: dict[str, Any] = {"bit_count": lambda x: int(x).bit_count()}
    for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        made[f"load_{kind}"], made[f"store_{kind}"] = _column(kind)
    for kind in _FLOATS:
        made[f"load_{kind}"], made[f"store_{kind}"] = _column(kind)
        made |= {f"floor_{kind}": np.floor, f"ceil_{kind}": np.ceil, f"frem_{kind}": np.fmod}
        made |= {f"trunc_{kind}": np.trunc, f"round_{kind}": _half_away}
    made["rint_float64"] = np.rint
    for name, operate in plain.items():
        made[f"w{name}"] = functools.partial(_wrapped, operate)
        made[f"s{name}"] = _checked(operate, _int64)
    made["umul"] = _checked(int.__mul__, _uint64)
    made["sdiv"] = _towards_zero
    made["srem"] = lambda a, b: a - b * _towards_zero(a, b)
    made["udiv"], made["urem"] = np.floor_divide, np.remainder
    return SimpleNamespace(**made)


def _wrapped(operate: Callable[[int, int], int], a: Any, b: Any) -> int:
    return _int64(operate(int(a), int(b)))


def _undecorated(*given: Any, **_options: Any) -> Any:
    """numba's njit, doing nothing."""
    return given[0] if given else lambda function: function


def _mathematics() -> SimpleNamespace:
    """Python's math as numba compiles it: without exceptions."""
    names = "cos cosh degrees exp isfinite isinf isnan log log2 log10 radians sin sinh sqrt tan"
    made = {name: getattr(np, name) for name in (*names.split(), "tanh", "inf", "nan")}
    for name in ("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh"):
        made[name] = getattr(np, f"arc{name[1:]}")
    return SimpleNamespace(**made, pow=lambda a, b: np.power(np.float64(a), np.float64(b)))


_NUMBA = SimpleNamespace(
    njit=_undecorated, boolean=bool, int64=_int64, uint64=_uint64,
    float32=np.float32, float64=np.float64,
)  # fmt: skip


@functools.cache
def _module(name: str) -> SimpleNamespace:
    """A module of kernels' functions, uncompiled."""
    if name == "intrinsics":
        return _intrinsics()
    path = _SOURCES / f"{name}.py"
    return _executed(compile(path.read_text(), str(path), "exec"), name)


_MATH = _mathematics()


def _import(name: str, globals_: Any = None, locals_: Any = None, wanted: Any = (), level: int = 0):
    """The import statement of these modules."""
    if name == "kernels" and tuple(wanted) == ("compiler",):
        return SimpleNamespace(compiler=_NUMBA)
    if name in ("numba", "kernels.compiler", "math"):
        return _MATH if name == "math" else _NUMBA
    part = name.removeprefix(f"{_ROOM}.")
    if part.startswith("runtime") or part == "intrinsics":
        return _module(part)
    if name == _ROOM and tuple(wanted) == ("runtime_time",):
        return SimpleNamespace(runtime_time=_module("runtime_time"))
    return builtins.__import__(name, globals_, locals_, wanted, level)


_BUILTINS = {**vars(builtins), "__import__": _import}


def _executed(code: CodeType, name: str) -> SimpleNamespace:
    """The module that the code makes; its functions and the module share their names."""
    names: dict[str, Any] = {"__builtins__": _BUILTINS, "__name__": name}
    exec(code, names)
    return SimpleNamespace(**names)


def kernel(source: str, child: bool = True) -> Callable[..., int]:
    """The kernel of a generated source, interpreted."""
    made = _executed(compile(source, "<kernel>", "exec"), "kernel").kernel

    def run(columns: Any, literals: Any, outputs: Any, *given: Any) -> int:
        *places, info = given
        tables = [dict(np.ndenumerate(t.astype(object))) for t in (columns, literals, outputs)]
        with np.errstate(all="ignore"):
            return int(made(*tables, *map(int, places), info))

    return run


@contextmanager
def interpreted() -> Iterator[None]:
    """Expressions that are built meanwhile run interpreted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "kernel", kernel)
        yield
