"""Kernels for NVIDIA GPUs, registered with `kernels.registry.cuda_kernel`.

`kernels.cuda.ring` and its neighbours are imported on first use, since they import numba's CUDA
target: naming a member of the join family does not load it, running one does.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = frozenset({"blocks", "bucket", "chain", "figures", "hells", "ring"})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
