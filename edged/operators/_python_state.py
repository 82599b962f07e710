"""The state of a `python` operator as the daemon has it: what `save` gave, and the batches since.

A child is asked for its states once in a while.  In between the daemon keeps the batches that it
has processed; a child that starts again gets both.  A snapshot has both as well, so that taking one
asks no child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from edged.data.flow import State
from edged.operators._python_process import ChildBatch, Resumption

SAVE_EVERY, SAVE_BYTES = 16, 1 << 20
"""A child saves when so many batches, or bytes of them, are kept."""

Owner = Callable[[int], int]
"""The child of a partition."""


class PartitionStates:
    """States by partition, and batches since."""

    def __init__(self) -> None:
        self.saved: dict[int, bytes] = {}
        self._requests: list[ChildBatch] = []
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return sum(map(len, self.saved.values())) + self._bytes

    def due(self, partitions: Mapping[int, object]) -> bool:
        """Whether the child of these partitions should save with its next batch."""
        own = [r for r in self._requests if any(p in partitions for p, _, _ in r.bounds)]
        return len(own) + 1 >= SAVE_EVERY or sum(len(r.data) for r in own) >= SAVE_BYTES

    def processed(self, request: ChildBatch, failed: Mapping[int, str]) -> None:
        """Keep a batch, without the partitions that failed."""
        bounds = [bound for bound in request.bounds if bound[0] not in failed]
        if bounds:
            self._requests.append(ChildBatch(request.data, bounds))
            self._bytes += len(request.data)

    def save(self, states: Mapping[int, bytes], owner: Owner, child: int) -> None:
        """A child has saved: its batches are in the states."""
        self.saved.update(states)
        left = [
            ChildBatch(r.data, [b for b in r.bounds if owner(b[0]) != child])
            for r in self._requests
        ]
        self._requests = [r for r in left if r.bounds]
        self._bytes = sum(len(r.data) for r in self._requests)

    def resumption(self, owner: Owner, child: int) -> Resumption:
        """What a new process of this child starts from."""
        own = [
            ChildBatch(r.data, [b for b in r.bounds if owner(b[0]) == child])
            for r in self._requests
        ]
        states = {p: data for p, data in self.saved.items() if owner(p) == child}
        return Resumption(states, [r for r in own if r.bounds])

    def to_arrays(self) -> State:
        """As named arrays."""
        bounds = [(i, *b) for i, r in enumerate(self._requests) for b in r.bounds]
        return {
            "saved": _bytes(self.saved.values()),
            "saved_sizes": _table([(p, len(data)) for p, data in self.saved.items()], 2),
            "batches": _bytes(r.data for r in self._requests),
            "batch_sizes": _table([(len(r.data),) for r in self._requests], 1),
            "batch_bounds": _table(bounds, 4),
        }

    def load(self, state: State) -> None:
        """The inverse of `to_arrays`."""
        data, at = state["saved"].tobytes(), 0
        for partition, size in state["saved_sizes"].tolist():
            self.saved[partition] = data[at : at + size]
            at += size
        data, at = state["batches"].tobytes(), 0
        bounds = state["batch_bounds"].tolist()
        for i, (size,) in enumerate(state["batch_sizes"].tolist()):
            own = [(p, a, b) for of, p, a, b in bounds if of == i]
            self._requests.append(ChildBatch(data[at : at + size], own))
            at += size
        self._bytes = at


def _bytes(parts: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = np.frombuffer(b"".join(parts), np.uint8).copy()
    return found


def _table(rows: Sequence[Sequence[int]], width: int) -> npt.NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(-1, width)
