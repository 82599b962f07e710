"""Scratch memory: arrays that are reused from beat to beat."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Scratch:
    """Arrays that grow and are reused from beat to beat, by name."""

    def __init__(self) -> None:
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def get(self, name: str, size: int, dtype: Any) -> npt.NDArray[Any]:
        """An uninitialised array of at least `size` (cut to it), kept for the next beat."""
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = np.empty(max(1024, size + size // 2), dtype)
            self._arrays[name] = array
        return array[:size]
