"""Scratch memory: arrays that are reused from beat to beat."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Scratch:
    """Arrays that grow and are reused from beat to beat, by name."""

    reuse = True
    """Whether they are; an arm of benchmarks allocates each time."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[str, Any], npt.NDArray[Any]] = {}
        self.nbytes = 0
        """Bytes of all arrays."""

    def get(self, name: str, size: int, dtype: Any) -> npt.NDArray[Any]:
        """An uninitialised array of at least `size` (cut to it), kept for the next beat."""
        array = self._arrays.get((name, dtype))
        if array is None or array.size < size or not self.reuse:
            self.nbytes -= 0 if array is None else array.nbytes
            array = np.empty(max(1024, size + size // 2), dtype)
            self._arrays[name, dtype] = array
            self.nbytes += array.nbytes
        return array[:size]

    def clear(self) -> None:
        """Let all arrays go; those in use stay until nothing refers to them."""
        self._arrays.clear()
        self.nbytes = 0

    def room(self, name: str, dtype: Any) -> int:
        """Elements that `get` gives out without new memory."""
        array = self._arrays.get((name, dtype))
        return 0 if array is None else array.size
