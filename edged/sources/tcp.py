"""`tcp`: Arrow IPC streams from thousands of connections.

    source = { type = "tcp", listen = "127.0.0.1:7400" }

- `listen`: `host:port` or `[v6]:port`; port 0 takes a free one.  Streams with the same `listen`
  share one listener; the metadata of a sender's schema names its stream.
- `token_file`: file with the secret that senders must send.  `tls_cert`, `tls_key`: PEM files.
- `connections_max` (default 16384), `message_bytes_max` (default 64 MiB): more is refused.
- `producers_max` (default 65536): producers that each stream remembers.

docs/producers.md specifies the protocol; `edged.client.Producer` implements it.  A plain Arrow
stream writer works too, without acknowledgements.  A peer that violates the protocol is sent an
error and loses its own connection; nothing of the batch in question is staged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edged.documents import reader as doc
from edged.documents.reach import Reach
from edged.errors import JobError
from edged.platform.loopback import is_loopback
from edged.sources._tcp_socket import TcpSettings, split_address
from edged.sources._tcp_source import TcpSource
from edged.sources.base import SourcePlan, source

if TYPE_CHECKING:
    from edged.data.staging import Staging
    from edged.data.workers import Workers


@source("tcp")
@dataclass(frozen=True)
class TcpPlan(SourcePlan):
    """A checked `tcp` source."""

    numbers_batches = True

    stream: str
    listen: str
    settings: TcpSettings

    listens = True
    keys: ClassVar[frozenset[str]] = frozenset(
        {
            "listen",
            "token_file",
            "tls_cert",
            "tls_key",
            "connections_max",
            "message_bytes_max",
            "producers_max",
        }
    )

    @classmethod
    def parse(cls, path: str, document: Mapping[str, Any], stream: Any) -> TcpPlan:
        """Check the table."""
        listen = doc.text(path, document, "listen")
        try:
            host, port = split_address(listen)
        except ValueError as problem:
            raise JobError(f"{path}.listen", str(problem), "e.g. 127.0.0.1:7400") from None
        given = [key for key in ("tls_cert", "tls_key") if key in document]
        if len(given) == 1:
            raise JobError(f"{path}.{given[0]}", "tls_cert and tls_key go together")
        settings = TcpSettings(
            host,
            port,
            doc.text(path, document, "token_file", None),
            doc.text(path, document, "tls_cert", None),
            doc.text(path, document, "tls_key", None),
            doc.integer(path, document, "connections_max", 16384, least=1, most=1 << 20),
            doc.size(path, document, "message_bytes_max", 64 << 20),
            doc.integer(path, document, "producers_max", 65536, least=1, most=1 << 24),
        )
        return cls(stream.name, listen, settings)

    def share_key(self) -> str:
        """Streams with the same address share a listener."""
        return f"tcp:{self.listen}"

    def build(
        self,
        stagings: Mapping[str, Staging],
        plans: Mapping[str, SourcePlan],
        workers: Workers | None = None,
    ) -> TcpSource:
        """The running listener.  Raises JobError if streams that share it disagree."""
        for name, plan in plans.items():
            if isinstance(plan, TcpPlan) and plan.settings != self.settings:
                raise JobError(
                    f"streams.{name}.source",
                    f"listens on {self.listen} like stream {self.stream}, with other settings",
                    "give all streams of one listener the same token, TLS and limits",
                )
        return TcpSource(self.settings, stagings, workers)

    def reach(self, root: Path) -> Reach:
        """Its address, and the files of token and TLS."""
        keys = ("token_file", "tls_cert", "tls_key")
        named = {key: getattr(self.settings, key) for key in keys}
        files = {key: path for key, path in named.items() if path is not None}
        return Reach(files=files, listens={"listen": self.listen})

    def describe(self) -> list[str]:
        """The address, and which peers it admits."""
        s = self.settings
        listener = f"Arrow IPC over {'TLS' if s.tls_cert else 'TCP'} on {self.listen}"
        guard = "a token is wanted" if s.token_file else "no token is wanted"
        return [f"{listener}; {guard}; up to {s.connections_max} connections"]

    def warnings(self) -> list[str]:
        """A token that other machines must send in plain text."""
        s = self.settings
        if s.token_file is None or s.tls_cert is not None or is_loopback(s.host):
            return []
        return [f"{self.listen} takes a token without TLS: set tls_cert and tls_key"]
