"""Names of the compiler (`kernels.compiler`)."""

from __future__ import annotations

import numba
from llvmlite import ir
from numba import boolean, carray, float32, float64, int64, njit, types, uint64
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload

__all__ = [
    "TypingError",
    "boolean",
    "carray",
    "cgutils",
    "cpu_has",
    "float32",
    "float64",
    "int64",
    "intrinsic",
    "ir",
    "njit",
    "overload",
    "types",
    "uint64",
]


def cpu_has(feature: str) -> bool:
    """Whether kernels are compiled for a processor with a feature, by LLVM's name."""
    features = numba.config.CPU_FEATURES
    return f"+{feature}" in (get_host_cpu_features() if features is None else features)
