"""numba's CUDA target as `cuda`, imported on first use; None without `numba-cuda`.

Every kernel module takes `cuda` from here, so that kernels can be registered (name, signature,
reference) on a machine without it.  Code that launches kernels uses `gpu.cuda`, so that only that
code pays for the import.  NUMBA_ENABLE_CUDASIM at the first import of this module selects the GPU
or numba's simulator.
"""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from typing import Any

INSTALLED = find_spec("numba_cuda") is not None
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")

THREADS_MAX = 256
"""The most threads of a block that the kernels' shared arrays have room for."""
WORDS_MAX = 64
"""The same for `kernels.cuda.hells`, a thread of which makes a word."""


def __getattr__(name: str) -> Any:
    if name != "cuda":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module("numba.cuda") if INSTALLED else None
    globals()["cuda"] = module
    return module
