"""`udp`: CSV lines in datagrams, one row a line, columns in the stream's order.

    source = { type = "udp", listen = "127.0.0.1:7411" }

Times are ISO 8601 with a zone.  UDP has no acknowledgements: datagrams that arrive while the daemon
is down are lost.  A datagram that does not parse is counted and dropped.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import csv

from edged.plugin import (
    Batch,
    ConfigError,
    JobError,
    Reach,
    Schema,
    Source,
    SourcePlan,
    Staging,
    Workers,
    read,
    source,
)

DATAGRAM_BYTES_MAX = 65_535


@source("udp")
@dataclass(frozen=True)
class UdpPlan(SourcePlan):
    """A checked `udp` source."""

    stream: str
    schema: Schema
    host: str
    port: int

    keys: ClassVar[frozenset[str]] = frozenset({"listen"})

    @classmethod
    def parse(cls, path: str, document: Mapping[str, Any], stream: Any) -> UdpPlan:
        """Check the table."""
        host, _, port = read.text(path, document, "listen").rpartition(":")
        if not host or not port.isdigit():
            raise JobError(f"{path}.listen", "is no address", "HOST:PORT, as 127.0.0.1:7411")
        return cls(stream.name, stream.schema, host, int(port))

    def share_key(self) -> str:
        """Each stream has its own socket."""
        return f"udp:{self.host}:{self.port}"

    def build(
        self,
        stagings: Mapping[str, Staging],
        plans: Mapping[str, SourcePlan],
        workers: Workers | None = None,
    ) -> UdpSource:
        """The running source."""
        return UdpSource(self, stagings[self.stream])

    def reach(self, root: Path) -> Reach:
        """Its address; without this method no job over the API may use it."""
        return Reach(listens={"listen": f"{self.host}:{self.port}"})

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        return [f"CSV lines in datagrams on {self.host}:{self.port}; not acknowledged"]


class UdpSource(Source):
    """Reads what the kernel has buffered, once a beat."""

    def __init__(self, plan: UdpPlan, staging: Staging) -> None:
        self._plan, self._staging = plan, staging
        self.address = f"{plan.host}:{plan.port}"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._more = False
        self._malformed = 0

    def start(self) -> None:
        """Bind.  Raises ConfigError where the address is taken."""
        try:
            self._socket.bind((self._plan.host, self._plan.port))
        except OSError as problem:
            raise ConfigError(f"udp {self.address}: {problem.strerror}") from problem

    def fileno(self) -> int:
        """Readable when a datagram waits."""
        return self._socket.fileno()

    def ingest(self, monotonic_us: int, wall_us: int) -> None:
        """Stage the rows of all waiting datagrams as one batch."""
        parts, room = [], self._staging.room()
        self._more = False
        while True:
            if sum(map(len, parts)) + DATAGRAM_BYTES_MAX > room:
                self._more = True
                break
            try:
                parts.append(self._socket.recv(DATAGRAM_BYTES_MAX).rstrip(b"\n") + b"\n")
            except BlockingIOError:
                break
        good = [table for part in parts for table in self._parsed(part)]
        if not good:
            return
        batch = pa.concat_tables(good).combine_chunks().to_batches()[0]
        producers = self._staging.producers
        number = producers.number(f"udp:{self._plan.stream}")
        self._staging.append(Batch.from_arrow(batch, self._plan.schema), number, wall_us)
        producers.seq[number] += batch.num_rows
        producers.seen_us[number] = monotonic_us

    def _parsed(self, lines: bytes) -> list[pa.Table]:
        schema = self._plan.schema.to_arrow()
        try:
            table = csv.read_csv(
                pa.BufferReader(lines),
                csv.ReadOptions(column_names=schema.names, use_threads=False),
                convert_options=csv.ConvertOptions(column_types=schema),
            )
        except pa.ArrowInvalid:
            self._malformed += 1
            return []
        return [table]

    def more(self) -> bool:
        """Whether datagrams wait for room in staging."""
        return self._more

    def seal(self) -> Any:
        """UDP has no acks."""

    def committed(self, ticket: Any) -> None:
        """UDP has no acks."""

    def finished(self) -> bool:
        """A socket has no end."""
        return False

    def close(self) -> None:
        """Release the socket."""
        self._socket.close()

    def counters(self) -> Mapping[str, int | float]:
        """Figures for status and metrics."""
        return {"malformed": self._malformed}
