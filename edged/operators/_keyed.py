"""What plans of operators with state by key have in common: keys, order, instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, Link
from edged.data.hashing import hash_columns
from edged.documents.faults import FaultCollector
from edged.documents.reader import did_you_mean, names
from edged.errors import JobError
from edged.operators.base import InstanceOf

Ints = npt.NDArray[np.int64]
KEY_COLUMNS_MAX = 32
DAY = "1d"
"""How long the state of a key is kept without rows."""
BY_TIME, BY_ARRIVAL = ORDERS = ("time", "arrival")


def column_names(
    path: str, document: Mapping[str, Any], key: str, link: Link, default: Any = ()
) -> tuple[str, ...]:
    """A list of columns of the input.  Raises JobError with all that are unknown."""
    found, wrong = names(path, document, key, default), FaultCollector()
    for i, name in enumerate(found):
        if name not in link.schema:
            advice = did_you_mean(name, link.schema.names)
            wrong.note(f"{path}.{key}[{i}]", f"no column {name!r} in the input", advice)
    if len(found) > KEY_COLUMNS_MAX:
        wrong.note(f"{path}.{key}", f"{len(found)} columns", f"at most {KEY_COLUMNS_MAX}")
    wrong.settle()
    return tuple(found)


def refuse_weight(path: str, key: str, link: Link, kind: str) -> None:
    """Raise JobError where an input has weights."""
    if link.weight:
        raise JobError(
            f"{path}.{key}", f"has weights ({link.weight}), and {kind} cannot take a row back",
            f"put {kind} before the rows get weights, or on a stream without",
        )  # fmt: skip


def horizon(present_us: int, watermark_us: int, keep_us: int) -> int:
    """The time before which keys are forgotten; it never falls, and does not move at an end."""
    if watermark_us == WATERMARK_MAX_US:
        return present_us
    return max(present_us, WATERMARK_MIN_US, watermark_us - keep_us)


def instances_by(
    id: str, by: Sequence[str], keys: Sequence[str], instances: int, instance_of: InstanceOf
) -> Any:
    """The function that says to which new instance each row of a batch goes.

    Raises JobError where `by` is more than the keys, so that a key's rows are not in one instance.
    """
    if instances > 1 and not set(by) <= set(keys):
        raise JobError(
            f"operators.{id}", f"its state is by {', '.join(keys) or 'no key'}",
            f"deal rows out by these columns, not by {', '.join(by)}",
        )  # fmt: skip

    def goes(batch: Batch) -> Ints:
        if instances == 1:
            return np.zeros(batch.rows, np.int64)
        return instance_of(hash_columns(batch, by))

    return goes
