"""Deferrals: the operators of a job that leave rows to later beats, so that no beat's output grows
without bound (`edged.operators.base.Deferring`).

How many rows each of them processes in a beat is decided live and repeated in a replay.
"""

from __future__ import annotations

from collections.abc import Mapping

from edged.operators.base import Deferring, Operator

OUTPUT_SHARE = 4
"""Part of a job's memory, 1 in OUTPUT_SHARE, that the output of one beat may take."""


class Deferrals:
    """The deferring operators of one job."""

    def __init__(self, operators: Mapping[str, Operator], memory_bytes: int) -> None:
        """Of `operators`, in topological order."""
        self._operators = {
            name: operator
            for name, operator in operators.items()
            if isinstance(operator, Deferring)
        }
        for operator in self._operators.values():
            operator.bound(memory_bytes // OUTPUT_SHARE // len(self._operators))

    def waiting(self) -> int:
        """Rows that wait."""
        return sum(operator.waiting() for operator in self._operators.values())

    def begin(self, recorded: Mapping[str, list[int]] | None) -> None:
        """Say what a beat processes, by its record; None: the operators decide.

        Where rows wait, only the last operator that has some processes them: the output of those
        before it would wait there as well.
        """
        last = [name for name, operator in self._operators.items() if operator.waiting()][-1:]
        for name, operator in self._operators.items():
            operator.held = bool(last) and name != last[0]
            operator.decides = recorded is None
            operator.recorded = None if recorded is None else recorded.get(name)

    def processed(self) -> dict[str, list[int]]:
        """What the beat's record needs: the rows that operators processed, where some waited before
        or after."""
        found = {name: operator.processed for name, operator in self._operators.items()}
        return {name: list(rows) for name, rows in found.items() if rows is not None}
