"""What a running `python` operator needs of its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edged.data.flow import Link
from edged.data.schema import Schema


@dataclass(frozen=True)
class PythonTerms:
    """Its rows, its children and their limits; `edged.operators.python` describes them."""

    id: str
    schema: Schema
    """Of the input."""
    links: Mapping[str, Link]
    """Outputs by name; one without a name has the name ""."""
    by: tuple[str, ...]
    partitions: int
    processes: int
    behind_us: int
    timeout_us: int
    stateful: bool
    stops: bool
    deterministic: bool
    child_code: dict[str, Any]
    """What a child is given (`edged.operators.python_child.instances.Code`)."""
