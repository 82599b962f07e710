"""Operators' state as bytes, from one daemon to another: packed, split by key, and merged.

    operators/<id>/<array>      arrays as the operator saves them: a NumPy archive, LZ4, CRC-32

`redistributed` makes the states of new instances: `OperatorPlan.redistribute` deals the rows and
groups of the old ones out by their keys.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import lz4.frame
import numpy as np

from edged.data.flow import State, owner
from edged.errors import JobError
from edged.job.plan import JobPlan
from edged.operators.base import InstanceOf

STATE_BYTES_MAX = 1 << 30
"""Most bytes of a job's state, packed or not."""
_CHECKSUM_BYTES = 4
_PREFIX = "operators/"


def size(arrays: State) -> int:
    """Bytes of a state that is not packed."""
    return sum(array.nbytes for array in arrays.values())


def pack(arrays: State) -> bytes:
    """The bytes of named arrays."""
    out = io.BytesIO()
    named: dict[str, Any] = {key: np.asarray(array) for key, array in arrays.items()}
    np.savez(out, **named)
    data: bytes = lz4.frame.compress(out.getvalue())
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little") + data


def unpack(data: bytes) -> State:
    """The arrays of `pack`.  Raises ValueError."""
    body = data[_CHECKSUM_BYTES:]
    if len(data) < _CHECKSUM_BYTES or zlib.crc32(body) != int.from_bytes(
        data[:_CHECKSUM_BYTES], "little"
    ):
        raise ValueError("the state is damaged: it does not match its checksum")
    try:
        # Arrays' headers and names come on top of what `size` counts.
        if not 0 < lz4.frame.get_frame_info(body)["content_size"] <= 2 * STATE_BYTES_MAX:
            raise ValueError(f"the state has no size, or one above {STATE_BYTES_MAX} bytes")
        archive = np.load(io.BytesIO(lz4.frame.decompress(body)), allow_pickle=False)
        found = {key: archive[key] for key in archive.files}
    except (RuntimeError, OSError, KeyError, EOFError, zipfile.BadZipFile) as problem:
        raise ValueError(f"the state is damaged: {problem}") from None
    if strange := [key for key in found if not key.startswith(_PREFIX)]:
        raise ValueError(f"{strange[0]} is not of an operator")
    return found


def redistributed(
    plan: JobPlan,
    by: Mapping[str, Sequence[str]],
    states: Sequence[State],
    instances: int,
    instance_of: InstanceOf,
) -> list[State]:
    """The states of `instances` new instances of a job, from those of its old ones.

    `by` has, for each stream that a link feeds, the columns that the link hashes.  Raises JobError
    where the state of an operator cannot be dealt out.
    """
    found = [State() for _ in range(instances)]
    for id in plan.order:
        operator, prefix = plan.operators[id], f"{_PREFIX}{id}/"
        if not operator.signature_facts():
            continue
        own = [{k.removeprefix(prefix): a for k, a in s.items() if k.startswith(prefix)}
               for s in states]  # fmt: skip
        alone = instances == 1
        columns = [() if alone else _columns(plan, link, by) for link in plan.inputs[id]]
        parts = operator.redistribute(columns, own, instances, instance_of)
        for state, part in zip(found, parts, strict=True):
            state |= {f"{prefix}{key}": array for key, array in part.items()}
    return found


def _columns(plan: JobPlan, link: str, by: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The columns that the rows of a link were dealt out by."""
    stream = owner(link)
    while stream not in plan.streams:
        stream = owner(plan.inputs[stream][0])
    if stream not in by:
        raise JobError(f"streams.{stream}", "is not dealt out by keys", "a hash link brings it")
    return by[stream]
