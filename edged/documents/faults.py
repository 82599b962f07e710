"""Collects the faults of a document's part, so that a reader names all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from edged.errors import JobError, JobFaults

_T = TypeVar("_T")
_I = TypeVar("_I")


class FaultCollector:
    """Records JobErrors and raises them together.

    wrong = FaultCollector()
    size = wrong.attempt(lambda: duration(path, document, "size"), 0)
    every = wrong.attempt(lambda: duration(path, document, "every"), 0)
    wrong.settle()    # raises, if there was one
    """

    def __init__(self) -> None:
        self.faults: list[JobError] = []

    @overload
    def attempt(self, call: Callable[[], _T]) -> _T | None: ...

    @overload
    def attempt(self, call: Callable[[], _T], instead: _I) -> _T | _I: ...

    def attempt(self, call: Callable[[], Any], instead: Any = None) -> Any:
        """The result of `call`; a JobError is recorded, and the result is `instead`."""
        try:
            return call()
        except JobError as fault:
            self.faults += each(fault)
            return instead

    def note(self, path: str, problem: str, advice: str = "") -> None:
        """Record a fault."""
        self.faults.append(JobError(path, problem, advice))

    def settle(self) -> None:
        """Raise what was recorded: JobError, or JobFaults where there are several."""
        if len(self.faults) == 1:
            raise self.faults[0]
        if self.faults:
            raise JobFaults(self.faults)


def each(fault: JobError) -> tuple[JobError, ...]:
    """The single faults of an error."""
    return fault.faults if isinstance(fault, JobFaults) else (fault,)
