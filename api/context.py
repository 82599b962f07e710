"""The objects that all routes share: door client, checker, operations, ingest, settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from api.checker import READ_SECONDS_MAX, Checker
from api.door_client import DoorClient
from api.ingest import Ingest
from api.operations import OperationStore
from api.sse import LiveStreams
from edged.config.sections import ApiSection


@dataclass
class Context:
    """The state of one API process."""

    settings: ApiSection
    door: DoorClient
    ingest: Ingest
    checker: Checker = field(default_factory=Checker)
    reader: Checker = field(default_factory=lambda: Checker(READ_SECONDS_MAX))
    """Checks documents that change nothing: they do not hold up changes of jobs."""
    operations: OperationStore = field(default_factory=OperationStore)
    live: LiveStreams = field(default_factory=LiveStreams)

    async def close(self) -> None:
        """Release everything; live streams end first, so that their requests end."""
        self.live.close()
        await self.operations.close()
        await self.checker.close()
        await self.reader.close()
        await self.ingest.close()
        await self.door.close()


def of(request: Request) -> Context:
    """The context of the application that serves this request."""
    context: Context = request.app.state.context
    return context
