"""`pages`: pages that devices send, by the collector's protocol; the daemon is their gateway.

    source = { type = "pages", listen = "127.0.0.1:7500" }

A device is steered by its ordinary configuration: its `uplink.url` is the gateway.

- `listen`: address and port; streams with the same `listen` share the listener.
- `stream` (default: the name of this stream): the devices' stream whose rows are decoded into it.
  Its columns are those of the registered schema, in any version.
- `forward = true`: takes all other streams, a page a row, for the sink `forward`.  Its columns are
  those of `edged.data.carried`.
- `tokens`: the devices' tokens, a file as the collector's; with `tls_cert` and `tls_key` beyond
  loopback.
- `producers_max` (default 65536): partitions of devices that each stream remembers.

`edged.central.gateway`, a process of its own, speaks to the devices.  To the daemon it is a
producer (docs/producers.md) on a unix socket: each device, epoch, stream and partition is one, a
page is a batch, and the page's number is the batch's.  So a page is taken once, durable with its
beat, and acknowledged to the device after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from edged.data.carried import ARRIVED, carried_schema
from edged.documents import reader as doc
from edged.documents.reach import Reach
from edged.errors import JobError
from edged.platform.loopback import is_loopback
from edged.sources._pages_source import DeviceStream, GatewaySettings, PagesSource
from edged.sources._tcp_socket import split_address
from edged.sources.base import SourcePlan, source

if TYPE_CHECKING:
    from edged.data.staging import Staging
    from edged.data.workers import Workers


@source("pages")
@dataclass(frozen=True)
class DevicePagesPlan(SourcePlan):
    """A checked `pages` source."""

    name: str
    listen: str
    takes: DeviceStream
    settings: GatewaySettings

    listens = True
    keys: ClassVar[frozenset[str]] = frozenset(
        {"listen", "stream", "forward", "tokens", "tls_cert", "tls_key", "producers_max"}
    )

    @classmethod
    def parse(cls, path: str, document: Mapping[str, Any], stream: Any) -> DevicePagesPlan:
        """Check the table."""
        listen = doc.text(path, document, "listen")
        try:
            host, port = split_address(listen)
        except ValueError as problem:
            raise JobError(f"{path}.listen", str(problem), "e.g. 127.0.0.1:7500") from None
        given = [key for key in ("tls_cert", "tls_key") if key in document]
        if len(given) == 1:
            raise JobError(f"{path}.{given[0]}", "tls_cert and tls_key go together")
        settings = GatewaySettings(
            host,
            port,
            doc.text(path, document, "tokens", None),
            doc.text(path, document, "tls_cert", None),
            doc.text(path, document, "tls_key", None),
            doc.integer(path, document, "producers_max", 65536, least=1, most=1 << 24),
        )
        if not is_loopback(host) and (settings.tokens is None or settings.tls_cert is None):
            advice = "set tokens, tls_cert and tls_key"
            raise JobError(f"{path}.listen", "is reached by other machines", advice)
        forward = doc.boolean(path, document, "forward", False)
        if forward:
            _check_forwarding(path, document, stream)
        name = doc.is_id(f"{path}.stream", document.get("stream", stream.name))
        takes = DeviceStream("" if forward else name, stream.schema.to_json())
        return cls(stream.name, listen, takes, settings)

    def share_key(self) -> str:
        """Streams with the same address share the listener."""
        return f"pages:{self.listen}"

    def build(
        self,
        stagings: Mapping[str, Staging],
        plans: Mapping[str, SourcePlan],
        workers: Workers | None = None,
    ) -> PagesSource:
        """The running listener.  Raises JobError if streams that share it disagree."""
        taken: dict[str, str] = {}
        found: dict[str, DeviceStream] = {}
        for name, plan in plans.items():
            assert isinstance(plan, DevicePagesPlan)
            where = f"streams.{name}.source"
            if plan.settings != self.settings:
                problem = f"listens on {self.listen} like stream {self.name}, with other settings"
                raise JobError(where, problem, "give all streams of one listener the same")
            other = taken.setdefault(plan.takes.stream, name)
            if other != name:
                what = plan.takes.stream or "all other streams"
                raise JobError(where, f"takes {what} like stream {other} on {self.listen}")
            found[name] = plan.takes
        return PagesSource(self.settings, found, stagings, workers)

    def reach(self, root: Path) -> Reach:
        """Its address, and the files of tokens and TLS."""
        keys = ("tokens", "tls_cert", "tls_key")
        named = {key: getattr(self.settings, key) for key in keys}
        files = {key: path for key, path in named.items() if path is not None}
        return Reach(files=files, listens={"listen": self.listen})

    def endless(self) -> str:
        """A device never ends."""
        return "devices may send pages at any time"

    def describe(self) -> list[str]:
        """What is taken, and from which devices."""
        s = self.settings
        guard = "with a token" if s.tokens else "without a token"
        what = f"pages of stream {self.takes.stream}" if self.takes.stream else "all other pages"
        return [
            f"{what} from devices {guard}, over {'HTTPS' if s.tls_cert else 'HTTP'} on"
            f" {self.listen}"
        ]


def _check_forwarding(path: str, document: Mapping[str, Any], stream: Any) -> None:
    """Raise JobError where pages could not pass the stream whole."""
    above = path.rpartition(".")[0]
    if "stream" in document:
        raise JobError(f"{path}.stream", "has no meaning with forward", "leave it out")
    if stream.schema != carried_schema() or stream.time != ARRIVED:
        columns = ", ".join(f'{f.name} = "{f.dtype.name}"' for f in carried_schema())
        raise JobError(
            f"{above}.columns",
            "are not those of devices' pages",
            f'columns = {{ {columns} }}, time = "{ARRIVED}"',
        )
    if stream.late != "process":
        raise JobError(f"{above}.late", "would drop pages", 'set late = "process"')
