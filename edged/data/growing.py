"""Arrays that grow with what they count."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


def at_least(array: Int64s, size: int, fill: int = 0) -> Int64s:
    """`array`, extended with `fill` to `size` elements or more."""
    if array.size >= size:
        return array
    grown = np.full(max(size, 2 * array.size), fill, np.int64)
    grown[: array.size] = array
    return grown
