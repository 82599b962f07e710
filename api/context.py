"""What the routes share: the door, the checker, operations, ingest, and the settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from api.checker import Checker
from api.door import Door
from api.ingest import Ingest
from api.operations import Operations
from api.sse import Live
from edged.config.sections import ApiSection


@dataclass
class Context:
    """One API process."""

    settings: ApiSection
    door: Door
    ingest: Ingest
    checker: Checker = field(default_factory=Checker)
    operations: Operations = field(default_factory=Operations)
    live: Live = field(default_factory=Live)

    async def close(self) -> None:
        """Let go of everything; streams end, so that requests do."""
        self.live.close()
        await self.operations.close()
        await self.checker.close()
        await self.ingest.close()
        await self.door.close()


def of(request: Request) -> Context:
    """The context of the app that serves this request."""
    context: Context = request.app.state.context
    return context
