"""`http`: rows sent to the REST API, `POST /v1/streams/{stream}/tuples`.

    source = { type = "http" }

The API is the producer and speaks the producers' protocol (docs/producers.md) to a unix socket in
the store's directory.  Only the daemon's user and group may open it, so it needs no token.  All
streams with such a source share it.  For the watermark, all HTTP clients of a stream are one
producer.

- `message_bytes_max` (default 64 MiB), as of `tcp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edged.documents import reader as doc
from edged.documents.reach import Reach
from edged.errors import JobError
from edged.sources._tcp_socket import TcpSettings
from edged.sources._tcp_source import TcpSource
from edged.sources.base import SourcePlan, source

if TYPE_CHECKING:
    from edged.data.staging import Staging
    from edged.data.workers import Workers

SOCKET = "ingest"
"""The socket's name in the store's directory."""


class HttpSource(TcpSource):
    """A TCP source that listens on the unix socket."""

    def place(self, directory: Path, files: Path) -> None:
        """Place the socket in the store's directory."""
        self.address = self._admission.path = str(directory / SOCKET)


@source("http")
@dataclass(frozen=True)
class HttpPlan(SourcePlan):
    """A checked `http` source."""

    stream: str
    message_bytes_max: int

    keys: ClassVar[frozenset[str]] = frozenset({"message_bytes_max"})
    listens: ClassVar[bool] = True

    @classmethod
    def parse(cls, path: str, document: Mapping[str, Any], stream: Any) -> HttpPlan:
        """Check the table."""
        return cls(stream.name, doc.size(path, document, "message_bytes_max", 64 << 20))

    def share_key(self) -> str:
        """All share the one socket."""
        return f"http:{SOCKET}"

    def build(
        self,
        stagings: Mapping[str, Staging],
        plans: Mapping[str, SourcePlan],
        workers: Workers | None = None,
    ) -> HttpSource:
        """The running listener.  Raises JobError if streams that share it disagree."""
        for name, plan in plans.items():
            if isinstance(plan, HttpPlan) and plan.message_bytes_max != self.message_bytes_max:
                raise JobError(
                    f"streams.{name}.source.message_bytes_max",
                    f"differs from stream {self.stream}'s, which shares the socket",
                    "give all http sources the same",
                )
        settings = TcpSettings("", 0, message_bytes_max=self.message_bytes_max, path=SOCKET)
        return HttpSource(settings, stagings, workers)

    def reach(self, root: Path) -> Reach:
        """A socket in the store's directory."""
        return Reach()

    def endless(self) -> str:
        """Requests may come at any time."""
        return "rows may come over the REST API at any time"

    def describe(self) -> list[str]:
        """The endpoint for rows."""
        return ["tuples over the REST API, POST /v1/streams/{stream}/tuples"]
