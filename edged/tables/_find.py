"""Probing runs: the kernel and its buffers, which grow with what is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.hashing import Hashes
from edged.data.scratch import Scratch
from edged.tables._cold import Ahead
from edged.tables._images import KeyImages
from edged.tables.base import Weights
from kernels.cpu.tables import probe as probes

Int64s = npt.NDArray[np.int64]
Found = tuple[Int64s, Int64s, Weights]


def find(
    places: Int64s, hashes: Hashes, valid: npt.NDArray[np.uint8], keys: KeyImages,
    start: int, stop: int, scratch: Scratch, ahead: Ahead | None = None,
) -> Found:  # fmt: skip
    """The matches of the keys `start..stop`: key, address of the record and weight of each.

    `ahead` asks for the pages of files that are not in memory.
    """
    state = np.array([start, stop, 0, keys.agree, keys.stride], np.int64)
    room = max(1024, 2 * (stop - start), scratch.room("found", np.int64))
    arrays = _arrays(scratch, room)
    for part in [(start, stop)] if ahead is None else ahead.parts(start, stop):
        state[:2] = part
        while probes.find(places, hashes, valid, keys.base, keys.at, state, *arrays) < 0:
            room *= 2
            kept = [a[: state[2]].copy() for a in arrays]
            arrays = _arrays(scratch, room)
            for array, old in zip(arrays, kept, strict=True):
                array[: old.size] = old
    probing, found, weights = (a[: state[2]] for a in arrays[:3])
    return probing, found, weights


def _arrays(scratch: Scratch, room: int) -> list[npt.NDArray[Any]]:
    """Room for so many matches: keys, records, weights, and scratch of their sort."""
    kinds = {"probe": np.int64, "found": np.int64, "weights": np.int32, "merge": np.int64,
             "spare": np.int32}  # fmt: skip
    return [scratch.get(name, room, kind) for name, kind in kinds.items()]
