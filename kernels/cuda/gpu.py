"""numba's CUDA target, or None where the package `numba-cuda` is not installed.

Every kernel module takes `cuda` from here, so that kernels can be registered (name, signature,
twin) on a machine without it.  Whether kernels run on a GPU or in numba's simulator is decided by
NUMBA_ENABLE_CUDASIM when this module is first imported.
"""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from typing import Any

INSTALLED = find_spec("numba_cuda") is not None
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")

cuda: Any = importlib.import_module("numba.cuda") if INSTALLED else None

THREADS_MAX = 256
"""The most threads of a block that the kernels' shared arrays have room for."""
