"""What the gather kernels compute, said plainly."""

from __future__ import annotations


def gather(values, rows):
    """The values that `rows` names, in its order."""
    return [values[row] for row in rows]


def flagged(flags):
    """The positions of what is not 0."""
    return [i for i, flag in enumerate(flags) if flag]


def gather_offsets(lengths, rows):
    """Offsets of the picked values, laid one after the other from 0."""
    offsets = [0]
    for row in rows:
        offsets.append(offsets[-1] + lengths[row])
    return offsets
