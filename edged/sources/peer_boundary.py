"""The boundary between a peer's bytes and the source: each exception ends one connection only.

A source calls everything that reads a peer's bytes within `try` and gives any Exception to
`PeerBoundary.refusal`.  A PeerError is the peer's fault.  Any other exception is a defect of edged:
it is reported with its traceback and counted (`refused_defect`), and still ends the connection
alone.
"""

from __future__ import annotations

from collections.abc import Callable

from edged.errors import PeerError, SchemaMismatch, Unauthorized

Report = Callable[[str, Exception], None]
"""Called with a peer's name and a defect."""

DEFECT = "defect"
"""The reason of a refusal that is edged's own fault."""


class PeerBoundary:
    """Turns exceptions into refusals; `report` publishes defects."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def refusal(self, peer: str, problem: Exception, reason: str = "") -> tuple[str, str]:
        """The text for the peer, and a word for the reason: `reason` for every fault of the peer,
        or by its kind where it is empty."""
        if isinstance(problem, PeerError):
            kind = "token" if isinstance(problem, Unauthorized) else "greeting"
            kind = "schema" if isinstance(problem, SchemaMismatch) else kind
            return str(problem), reason or kind
        self._report(peer, problem)
        return f"a defect of edged: {type(problem).__name__}; its events have the details", DEFECT
