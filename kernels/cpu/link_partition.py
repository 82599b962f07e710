"""Which instance of the next stage each row of a link goes to, and the rows of each instance.

Inside a daemon, the top 6 bits of a key's hash choose the logical partition and the low ones the
place in a table.  Between daemons the hash is mixed once more, so that the rows of one instance
still fill all its partitions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.hash import K, fmix64
from kernels.registry import device, kernel

SALT = np.uint64(0xD6E8FEB86659FD93)
"""Sets a link's mixing apart from that inside a daemon."""


@device
def scaled(mixed: Any, instances: int) -> Any:
    """An instance, each as likely, of a mixed hash."""
    return np.int64((mixed >> np.uint64(32)) * np.uint64(instances) >> np.uint64(32))


@kernel("void(uint64[::1], int64, int64[::1])", reference="tests.naive.link_partition.by_hash")
def by_hash(hashes: Any, instances: int, out: Any) -> None:
    """The instance of each row by the hash of its key."""
    for i in range(hashes.size):
        out[i] = scaled(fmix64(hashes[i] ^ SALT), instances)


@kernel("void(int64, int64, int64[::1])", reference="tests.naive.link_partition.at_random")
def at_random(first: int, instances: int, out: Any) -> None:
    """The instance of each row by its number, which begins at `first`: evenly, without order."""
    for i in range(out.size):
        out[i] = scaled(fmix64(np.uint64(first + i) * K ^ SALT), instances)


@kernel(
    "int64(int64[::1], int64, int64[::1], int64[::1])",
    reference="tests.naive.link_partition.group",
)
def group(of: Any, instances: int, starts: Any, rows: Any) -> Any:
    """Sort row numbers by instance, in their order within each; returns how many rows go to none.

    Instance k has `rows[starts[k] : starts[k + 1]]`; `starts` is int64[instances + 1].  A row whose
    instance is not among them goes to none.
    """
    starts[:] = 0
    lost = 0
    for i in range(of.size):
        if 0 <= of[i] < instances:
            starts[of[i] + 1] += 1
        else:
            lost += 1
    for k in range(instances):
        starts[k + 1] += starts[k]
    for i in range(of.size):
        if 0 <= of[i] < instances:
            rows[starts[of[i]]] = i
            starts[of[i]] += 1
    for k in range(instances, 0, -1):
        starts[k] = starts[k - 1]
    starts[0] = 0
    return lost
